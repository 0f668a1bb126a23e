// SPDX-License-Identifier: MPL-2.0

// Counts edges in the plane of brightness with OpenCV, which reads the frame in shared memory.
//
//   c++ -std=c++17 edges.cpp $(pkg-config --cflags --libs xmem opencv4) -o edges && ./edges cam0 30

#include <cstdio>
#include <cstdlib>
#include <opencv2/imgproc.hpp>
#include <xmem.hpp>

int main(int argc, char **argv) {
    if (argc < 2)
        return std::fprintf(stderr, "usage: edges POOL [HOW MANY FRAMES]\n"), 2;
    long left = argc > 2 ? std::atol(argv[2]) : -1;
    auto consumer = xmem::Consumer::open(argv[1]);
    if (!consumer)
        return std::fprintf(stderr, "%s\n", consumer.error().text.c_str()), 1;
    for (const xmem::Frame &frame : *consumer) {
        if (frame.planes() == 0)
            return std::fprintf(stderr, "these frames are no raw video\n"), 1;
        cv::Mat edges;
        cv::Canny(xmem::mat(frame, CV_8UC1), edges, 50, 150);
        std::printf("frame %llu: %d pixels of edges\n", static_cast<unsigned long long>(frame.info().number), cv::countNonZero(edges));
        if (--left == 0)
            return 0;
    }
    return std::fprintf(stderr, "%s\n", consumer->error().text.c_str()), consumer->error().code == XMEM_END ? 0 : 1;
}
