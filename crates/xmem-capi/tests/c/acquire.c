/* SPDX-License-Identifier: MPL-2.0 */

/* Acquires a slot of a lossless pool whose consumer is behind, and which has no free slot. argv: POOL TIMEOUT */

#include <stdio.h>
#include <stdlib.h>
#include <xmem.h>

#include "check.h"

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    xmem_producer_options options = XMEM_PRODUCER_OPTIONS;
    options.is_lossless = 1;
    options.history = 1;
    options.max_slots = 4;
    xmem_producer producer;
    CHECK(xmem_producer_create(argv[1], &options, &producer));
    CHECK(xmem_producer_wait_for_consumers(producer, 1, XMEM_FOREVER));
    xmem_slot slots[4];
    for (int i = 0; i < 4; i++)
        CHECK(xmem_producer_acquire(producer, 100, 0, &slots[i]));
    /* The consumer may be two frames behind. */
    for (int i = 0; i < 2; i++)
        CHECK(xmem_slot_publish(slots[i], NULL, 0, NULL));
    xmem_slot slot;
    puts("acquires");
    fflush(stdout);
    xmem_result result = xmem_producer_acquire(producer, 100, atoll(argv[2]), &slot);
    if (result == XMEM_OK)
        puts("slot");
    else if (result == XMEM_TIMEOUT)
        puts("timeout");
    else
        CHECK(result);
    return 0;
}
