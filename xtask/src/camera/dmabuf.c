/* SPDX-License-Identifier: MPL-2.0 */

/* Compares the planes of ten frames of the pool `dma` in their DMA buffers, mapped here, with the bytes that libxmem gives. */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <xmem.h>

#define SECOND INT64_C(1000000000)

static int differs(const xmem_plane *plane, const xmem_dmabuf_plane *there) {
    size_t end = there->offset + (size_t)there->stride * plane->rows;
    char *mapped = mmap(NULL, end, PROT_READ, MAP_SHARED, there->fd, 0);
    if (mapped == MAP_FAILED)
        return perror("mmap"), 1;
    int result = there->stride != plane->stride;
    for (uint32_t row = 0; row < plane->rows; row++)
        result |= memcmp(mapped + there->offset + (size_t)row * there->stride,
                         (const char *)plane->data + row * plane->stride, plane->row_bytes) != 0;
    munmap(mapped, end);
    return result;
}

int main(void) {
    xmem_consumer_options options = XMEM_CONSUMER_OPTIONS;
    options.dmabuf = 1;
    xmem_consumer consumer;
    if (xmem_consumer_open("dma", &options, &consumer) != XMEM_OK)
        return fprintf(stderr, "%s\n", xmem_error()), 1;
    int result = 0;
    for (int number = 0; number < 10 && result == 0; number++) {
        xmem_frame frame;
        xmem_frame_info info = XMEM_FRAME_INFO;
        xmem_dmabuf there = XMEM_DMABUF;
        if (xmem_consumer_next(consumer, 60 * SECOND, &frame) != XMEM_OK || xmem_frame_get(frame, &info) != XMEM_OK ||
            xmem_frame_dmabuf(frame, &there) != XMEM_OK)
            return fprintf(stderr, "%s\n", xmem_error()), 1;
        result = there.n_planes == 0 || there.n_planes != info.n_planes || there.modifier != 0;
        for (uint32_t plane = 0; plane < there.n_planes; plane++)
            result |= differs(&info.planes[plane], &there.planes[plane]);
        printf("%.4s %" PRIu32 " %d\n", (const char *)&there.fourcc, there.n_planes, result);
        xmem_frame_release(frame);
    }
    xmem_consumer_close(consumer);
    return result;
}
