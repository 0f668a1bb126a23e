/* SPDX-License-Identifier: MPL-2.0 */

/* Publishes frames with known and with unknown times. argv: POOL */

#include <stddef.h>
#include <stdio.h>
#include <xmem.h>

#include "check.h"

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    const xmem_times none = XMEM_TIMES;
    const xmem_times zeros = {sizeof zeros, 0, 0, 0, 0, 0, 0};
    const xmem_times known = {sizeof known, 7000, 40, 30, 20, 0, 0};
    /* Of a program that was built before the fields after pts came. */
    const xmem_times old = {offsetof(xmem_times, dts), 7000, 40, 30, 20, 0, 0};
    const xmem_times forwarded = {sizeof forwarded, XMEM_NO_TIME, 40, XMEM_NO_TIME, 20, 0, 0};
    const xmem_times *const times[] = {NULL, &none, &zeros, &known, &old, &forwarded};
    xmem_producer_options options = XMEM_PRODUCER_OPTIONS;
    options.is_lossless = 1;
    xmem_producer producer;
    CHECK(xmem_producer_create(argv[1], &options, &producer));
    CHECK(xmem_producer_wait_for_consumers(producer, 1, XMEM_FOREVER));
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        xmem_slot slot;
        CHECK(xmem_producer_acquire(producer, 1, XMEM_FOREVER, &slot));
        CHECK(xmem_slot_publish(slot, times[i], XMEM_FOREVER, NULL));
    }
    CHECK(xmem_producer_close(producer));
    return 0;
}
