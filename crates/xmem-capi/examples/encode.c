/* SPDX-License-Identifier: MPL-2.0 */

/* Encodes the frames of a pool with libavcodec (FFV1, lossless) into a Matroska file. The encoder reads the frames in shared memory:
 * an AVBuffer holds each frame until libavcodec is done with it.
 *
 *   cc encode.c $(pkg-config --cflags --libs xmem libavformat libavcodec libavutil) -o encode && ./encode cam0 clip.mkv 100
 */

#include <inttypes.h>
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/pixdesc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xmem.h>

static int fail(const char *what) { return fprintf(stderr, "%s\n", what), 1; }

static enum AVPixelFormat pixel_format(const char *format) {
    static const struct {
        const char *name;
        enum AVPixelFormat format;
    } known[] = {{"GRAY8", AV_PIX_FMT_GRAY8}, {"I420", AV_PIX_FMT_YUV420P}, {"Y42B", AV_PIX_FMT_YUV422P}, {"Y444", AV_PIX_FMT_YUV444P}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, format) == 0)
            return known[i].format;
    return AV_PIX_FMT_NONE;
}

static void release(void *opaque, uint8_t *data) {
    (void)data;
    xmem_frame *frame = opaque;
    xmem_frame_release(*frame);
    free(frame);
}

/* An AVFrame over the frame's memory, which takes the handle. NULL: no memory, and the handle was released. */
static AVFrame *wrap(xmem_frame handle, const xmem_frame_info *info, enum AVPixelFormat format, int64_t start) {
    xmem_frame *owned = malloc(sizeof *owned);
    AVFrame *frame = av_frame_alloc();
    if (owned && frame) {
        *owned = handle;
        frame->buf[0] = av_buffer_create((uint8_t *)info->planes[0].data, info->size, release, owned, AV_BUFFER_FLAG_READONLY);
    }
    if (!owned || !frame || !frame->buf[0]) {
        free(owned);
        av_frame_free(&frame);
        xmem_frame_release(handle);
        return NULL;
    }
    frame->format = format;
    frame->width = (int)info->width;
    frame->height = (int)info->height;
    frame->pts = info->timestamp - start;
    for (uint32_t plane = 0; plane < info->n_planes; plane++) {
        frame->data[plane] = (uint8_t *)info->planes[plane].data;
        frame->linesize[plane] = (int)info->planes[plane].stride;
    }
    return frame;
}

/* Writes the packets that the encoder has. */
static int write_packets(AVCodecContext *encoder, AVFormatContext *file, AVPacket *packet) {
    int result;
    while ((result = avcodec_receive_packet(encoder, packet)) == 0) {
        av_packet_rescale_ts(packet, encoder->time_base, file->streams[0]->time_base);
        packet->stream_index = 0;
        if ((result = av_interleaved_write_frame(file, packet)) < 0)
            return result;
    }
    return result == AVERROR(EAGAIN) || result == AVERROR_EOF ? 0 : result;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return fail("usage: encode POOL FILE.mkv FRAMES");
    long left = atol(argv[3]);
    xmem_consumer consumer;
    if (xmem_consumer_open(argv[1], NULL, &consumer) != XMEM_OK)
        return fail(xmem_error());
    AVCodecContext *encoder = NULL;
    AVFormatContext *file = NULL;
    AVPacket *packet = av_packet_alloc();
    int64_t start = 0;
    xmem_frame handle;
    xmem_result next = XMEM_OK;
    for (; left > 0 && (next = xmem_consumer_next(consumer, XMEM_FOREVER, &handle)) == XMEM_OK; left--) {
        xmem_frame_info info = XMEM_FRAME_INFO;
        if (xmem_frame_get(handle, &info) != XMEM_OK)
            return fail(xmem_error());
        enum AVPixelFormat format = pixel_format(info.format);
        if (format == AV_PIX_FMT_NONE || info.timestamp == XMEM_NO_TIME)
            return fail("this program encodes GRAY8, I420, Y42B and Y444, with times: `xmem share ... --format I420` converts");
        if (!encoder) {
            const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_FFV1);
            encoder = avcodec_alloc_context3(codec);
            if (!encoder || avformat_alloc_output_context2(&file, NULL, "matroska", argv[2]) < 0)
                return fail("libavformat has no FFV1 or no Matroska");
            start = info.timestamp;
            encoder->pix_fmt = format;
            encoder->width = (int)info.width;
            encoder->height = (int)info.height;
            encoder->time_base = (AVRational){1, 1000000000};
            if (file->oformat->flags & AVFMT_GLOBALHEADER)
                encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
            AVStream *stream = avformat_new_stream(file, NULL);
            if (!stream || avcodec_open2(encoder, codec, NULL) < 0 || avcodec_parameters_from_context(stream->codecpar, encoder) < 0)
                return fail("the encoder can't be opened");
            stream->time_base = encoder->time_base;
            if (avio_open(&file->pb, argv[2], AVIO_FLAG_WRITE) < 0 || avformat_write_header(file, NULL) < 0)
                return fail("the file can't be written");
        }
        AVFrame *frame = wrap(handle, &info, format, start);
        if (!frame || avcodec_send_frame(encoder, frame) < 0 || write_packets(encoder, file, packet) < 0)
            return fail("a frame can't be encoded or written");
        av_frame_free(&frame);
    }
    if (next < 0)
        fail(xmem_error());
    if (encoder && (avcodec_send_frame(encoder, NULL) < 0 || write_packets(encoder, file, packet) < 0 || av_write_trailer(file) < 0))
        return fail("the file can't be completed");
    xmem_consumer_stats stats = XMEM_CONSUMER_STATS;
    if (xmem_consumer_get_stats(consumer, &stats) == XMEM_OK)
        printf("%" PRIu64 " frames, %" PRIu64 " copied\n", stats.received, stats.copied);
    if (file) {
        avio_closep(&file->pb);
        avformat_free_context(file);
    }
    av_packet_free(&packet);
    avcodec_free_context(&encoder);
    xmem_consumer_close(consumer);
    return next < 0;
}
