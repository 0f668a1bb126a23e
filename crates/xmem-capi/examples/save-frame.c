/* SPDX-License-Identifier: MPL-2.0 */

/* Saves the next frame of a pool as a picture in the format PGM: the plane of brightness.
 *
 *   cc save-frame.c $(pkg-config --cflags --libs xmem) -o save-frame && ./save-frame cam0 frame.pgm
 */

#include <stdio.h>
#include <xmem.h>

static int save(const xmem_frame_info *info, const char *path) {
    const xmem_plane *plane = &info->planes[0];
    FILE *file = fopen(path, "wb");
    if (!file)
        return perror(path), 1;
    fprintf(file, "P5\n%u %u\n255\n", plane->row_bytes, plane->rows);
    for (uint32_t row = 0; row < plane->rows; row++)
        fwrite((const char *)plane->data + row * plane->stride, 1, plane->row_bytes, file);
    return fclose(file) ? (perror(path), 1) : 0;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return fprintf(stderr, "usage: save-frame POOL FILE\n"), 2;
    xmem_consumer consumer;
    if (xmem_consumer_open(argv[1], NULL, &consumer) != XMEM_OK)
        return fprintf(stderr, "%s\n", xmem_error()), 1;
    xmem_frame frame;
    xmem_frame_info info = XMEM_FRAME_INFO;
    int result = 1;
    if (xmem_consumer_next(consumer, 10 * INT64_C(1000000000), &frame) != XMEM_OK || xmem_frame_get(frame, &info) != XMEM_OK)
        fprintf(stderr, "%s\n", xmem_error());
    else if (info.n_planes == 0)
        fprintf(stderr, "the frames of %s are no raw video with rows\n", argv[1]);
    else
        result = save(&info, argv[2]);
    xmem_frame_release(frame);
    xmem_consumer_close(consumer);
    return result;
}
