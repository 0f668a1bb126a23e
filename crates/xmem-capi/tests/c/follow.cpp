// SPDX-License-Identifier: MPL-2.0

// Two consumers in two threads, over a producer that is killed. argv: POOL

#include <atomic>
#include <cstdio>
#include <thread>
#include <utility>
#include <xmem.hpp>

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    std::atomic<bool> failed{false};
    auto read = [&](int number) {
        auto consumer = xmem::Consumer::open(argv[1]);
        if (!consumer) {
            failed = true;
            return;
        }
        bool first = true;
        for (const xmem::Frame &frame : *consumer) {
            const xmem_plane &plane = frame.plane(0);
            auto bytes = static_cast<const unsigned char *>(plane.data);
            // The producer fills each frame with one value.
            for (std::uint32_t row = 0; row < plane.rows; row++)
                if (bytes[row * plane.stride] != bytes[0] || bytes[row * plane.stride + plane.row_bytes - 1] != bytes[0])
                    failed = true;
            if (std::exchange(first, false))
                std::printf("consumer %d reads %.*s\n", number, static_cast<int>(frame.format().size()), frame.format().data());
            std::fflush(stdout);
            if (consumer->stats().reconnects > 0)
                break;
        }
        if (consumer->stats().reconnects == 0)
            failed = true;
        std::printf("consumer %d: %llu reconnects\n", number, static_cast<unsigned long long>(consumer->stats().reconnects));
    };
    std::thread other(read, 2);
    read(1);
    other.join();
    return failed ? 1 : 0;
}
