/* SPDX-License-Identifier: MPL-2.0 */

/* Publishes a moving picture, 30 times a second.
 *
 *   cc publish.c $(pkg-config --cflags --libs xmem) -o publish && ./publish cam0
 */

#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xmem.h>

int main(int argc, char **argv) {
    if (argc < 2)
        return fprintf(stderr, "usage: publish POOL [HOW MANY FRAMES]\n"), 2;
    const long count = argc > 2 ? atol(argv[2]) : -1;
    xmem_producer_options options = XMEM_PRODUCER_OPTIONS;
    options.framerate_numerator = 30;
    options.framerate_denominator = 1;
    xmem_producer producer;
    if (xmem_producer_create(argv[1], &options, &producer) != XMEM_OK)
        return fprintf(stderr, "%s\n", xmem_error()), 1;
    for (long number = 0; number != count; number++) {
        xmem_slot slot;
        xmem_slot_info info = XMEM_SLOT_INFO;
        xmem_result result = xmem_producer_acquire_video(producer, "GRAY8", 640, 480, 0, &slot);
        /* Consumers hold all slots: a live producer goes on with its next frame. */
        if (result != XMEM_ERROR_POOL_FULL) {
            if (result != XMEM_OK || xmem_slot_get(slot, &info) != XMEM_OK)
                return fprintf(stderr, "%s\n", xmem_error()), 1;
            memset(info.data, (int)(number % 256), info.size);
            if (xmem_slot_publish(slot, NULL, XMEM_FOREVER, NULL) != XMEM_OK)
                return fprintf(stderr, "%s\n", xmem_error()), 1;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000000 / 30}, NULL);
    }
    xmem_producer_end_stream(producer);
    xmem_producer_close(producer);
    return 0;
}
