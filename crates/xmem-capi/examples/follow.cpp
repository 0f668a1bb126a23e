// SPDX-License-Identifier: MPL-2.0

// Two consumers of one pool, each in a thread, over restarts of the producer: kill it and start it again. They print the range of
// brightness in the first frame of each producer.
//
//   c++ -std=c++17 follow.cpp $(pkg-config --cflags --libs xmem) -pthread -o follow && ./follow cam0 [HOW MANY PRODUCERS]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <xmem.hpp>

static bool read(int number, const char *pool, long producers) {
    auto consumer = xmem::Consumer::open(pool);
    if (!consumer)
        return std::fprintf(stderr, "%s\n", consumer.error().text.c_str()), false;
    long seen = 0;
    for (const xmem::Frame &frame : *consumer) {
        const long now = 1 + static_cast<long>(consumer->stats().reconnects);
        if (now == seen)
            continue;
        seen = now;
        unsigned char darkest = 255, brightest = 0;
        for (xmem::Bytes row : frame.rows(0)) {
            const auto [low, high] = std::minmax_element(row.begin(), row.end());
            darkest = std::min(darkest, *low);
            brightest = std::max(brightest, *high);
        }
        std::printf("consumer %d: producer %ld, %s %ux%u, brightness %d to %d\n", number, seen, frame.info().format, frame.width(),
                    frame.height(), darkest, brightest);
        std::fflush(stdout);
        if (seen == producers)
            return true;
    }
    return std::fprintf(stderr, "%s\n", consumer->error().text.c_str()), consumer->error().code == XMEM_END;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return std::fprintf(stderr, "usage: follow POOL [HOW MANY PRODUCERS]\n"), 2;
    const long producers = argc > 2 ? std::atol(argv[2]) : -1;
    bool second = false;
    std::thread other([&] { second = read(2, argv[1], producers); });
    const bool first = read(1, argv[1], producers);
    other.join();
    return first && second ? 0 : 1;
}
