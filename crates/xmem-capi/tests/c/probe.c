/* SPDX-License-Identifier: MPL-2.0 */

/* Prints what the library says of each frame of a pool, until the stream ends. argv: POOL [MAX_HELD [MAX_RATE]];
 * with MAX_HELD all are kept. */

#include <stdio.h>
#include <stdlib.h>
#include <xmem.h>

#include "check.h"

int main(int argc, char **argv) {
    xmem_consumer_options options = XMEM_CONSUMER_OPTIONS;
    options.name = "probe";
    options.max_held = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    options.max_rate = argc > 3 ? atof(argv[3]) : 0;
    xmem_consumer consumer;
    CHECK(xmem_consumer_open(argv[1], &options, &consumer));
    xmem_frame kept[64];
    size_t count = 0;
    xmem_frame frame;
    xmem_result result;
    while ((result = xmem_consumer_next(consumer, XMEM_FOREVER, &frame)) == XMEM_OK) {
        xmem_frame_info info = XMEM_FRAME_INFO;
        const char *caps;
        const void *data;
        size_t size;
        CHECK(xmem_frame_get(frame, &info));
        CHECK(xmem_frame_caps(frame, &caps));
        CHECK(xmem_frame_attachment(frame, "note", &data, &size));
        const unsigned char *first = info.data;
        printf("frame %lu size %zu first %d last %d format %s %ux%u planes %u type %s pts %ld duration %ld timestamp %ld flags %x "
               "number %lu copied %u note %.*s caps %s\n",
               (unsigned long)info.sequence, info.size, first[0], first[info.size - 1], info.format, info.width, info.height,
               info.n_planes, info.content_type, (long)info.pts, (long)info.duration, (long)info.timestamp, info.flags,
               (unsigned long)info.number, info.is_copied, (int)size, data ? (const char *)data : "", caps);
        for (uint32_t plane = 0; plane < info.n_planes; plane++)
            printf("plane %u at %ld stride %zu rows %u row_bytes %u\n", plane,
                   (long)((const unsigned char *)info.planes[plane].data - first), info.planes[plane].stride, info.planes[plane].rows,
                   info.planes[plane].row_bytes);
        fflush(stdout);
        if (options.max_held && count < 64)
            kept[count++] = frame;
        else
            CHECK(xmem_frame_release(frame));
    }
    xmem_consumer_stats stats = XMEM_CONSUMER_STATS;
    CHECK(xmem_consumer_get_stats(consumer, &stats));
    printf("ended %d received %lu missed %lu skipped %lu copied %lu reconnects %lu held %u budget %u\n", result,
           (unsigned long)stats.received, (unsigned long)stats.missed, (unsigned long)stats.skipped,
           (unsigned long)stats.copied, (unsigned long)stats.reconnects, stats.held, stats.budget);
    CHECK(xmem_consumer_close(consumer));
    while (count > 0)
        CHECK(xmem_frame_release(kept[--count]));
    return result == XMEM_END ? 0 : 1;
}
