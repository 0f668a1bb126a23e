/* SPDX-License-Identifier: MPL-2.0 */

/* Publishes frames with known and with unknown times, and with some that cannot be meant. argv: POOL */

#define _POSIX_C_SOURCE 200112L

#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <xmem.h>

#include "check.h"

static int64_t now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    const int64_t before = now(CLOCK_MONOTONIC) - INT64_C(1000000000);
    const xmem_times none = XMEM_TIMES;
    const xmem_times zeros = {sizeof zeros, 0, 0, 0, 0, 0, 0};
    const xmem_times known = {sizeof known, before, 40, 30, 20, 0, 0};
    /* Of a program that was built before the fields after pts came. */
    const xmem_times old = {offsetof(xmem_times, dts), before, 40, 30, 20, 0, 0};
    const xmem_times forwarded = {sizeof forwarded, XMEM_NO_TIME, 40, XMEM_NO_TIME, 20, 0, 0};
    const xmem_times *const times[] = {NULL, &none, &zeros, &known, &old, &forwarded};
    xmem_producer_options options = XMEM_PRODUCER_OPTIONS;
    options.is_lossless = 1;
    xmem_producer producer;
    options.framerate_numerator = UINT32_C(1) << 31;
    if (xmem_producer_create(argv[1], &options, &producer) != XMEM_ERROR_ARGUMENT)
        return 3;
    options.framerate_numerator = 0;
    CHECK(xmem_producer_create(argv[1], &options, &producer));
    CHECK(xmem_producer_wait_for_consumers(producer, 1, XMEM_FOREVER));
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        xmem_slot slot;
        CHECK(xmem_producer_acquire(producer, 1, XMEM_FOREVER, &slot));
        xmem_times wrong[] = {XMEM_TIMES, XMEM_TIMES, XMEM_TIMES, XMEM_TIMES, XMEM_TIMES, XMEM_TIMES};
        wrong[0].timestamp = now(CLOCK_REALTIME);
        wrong[1].timestamp = now(CLOCK_MONOTONIC) / 1000;
        wrong[5].timestamp = -1;
        wrong[2].pts = wrong[3].dts = wrong[4].duration = -2;
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
            if (xmem_slot_publish(slot, &wrong[k], XMEM_FOREVER, NULL) != XMEM_ERROR_ARGUMENT)
                return 4;
        CHECK(xmem_slot_publish(slot, times[i], XMEM_FOREVER, NULL));
    }
    CHECK(xmem_producer_close(producer));
    return 0;
}
