/* SPDX-License-Identifier: MPL-2.0 */

// Moves frames and slots. argv: POOL

#include <cstdio>
#include <utility>
#include <xmem.hpp>

#define EXPECT(condition)                                                                                                            \
    do {                                                                                                                             \
        if (!(condition))                                                                                                            \
            return std::printf("line %d: %s\n", __LINE__, #condition), 1;                                                            \
    } while (0)

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    auto producer = xmem::Producer::create(argv[1]);
    EXPECT(producer);
    auto consumer = xmem::Consumer::open(argv[1]);
    EXPECT(consumer);
    const auto held = [&] { return consumer->stats().held; };
    const auto next = [&](unsigned char value) {
        auto slot = producer->acquire(16);
        auto moved = std::move(*slot);
        static_cast<unsigned char *>(moved.data())[0] = value;
        const bool is_empty = slot->data() == nullptr && slot->size() == 0;
        const bool is_published = moved.publish() && moved.data() == nullptr;
        return is_empty && is_published;
    };
    // Joins the pool.
    (void)consumer->next(0);
    EXPECT(next(1) && next(2));
    auto first = consumer->next();
    auto second = consumer->next();
    EXPECT(first && second);
    EXPECT(held() == 2);
    *first = std::move(*second);
    EXPECT(held() == 1);
    EXPECT(first->bytes()[0] == 2);
    EXPECT(second->bytes().empty() && second->planes() == 0);
    auto &itself = *first;
    *first = std::move(itself);
    EXPECT(first->bytes()[0] == 2);
    {
        auto moved = std::move(*first);
        EXPECT(moved.bytes()[0] == 2);
    }
    EXPECT(held() == 0);
    EXPECT(first->bytes().empty());
    return 0;
}
