/* SPDX-License-Identifier: MPL-2.0 */

/*
 * xmem: frames of other processes, used where they lie.
 *
 *   xmem_consumer camera;
 *   if (xmem_consumer_open("cam0", NULL, &camera) != XMEM_OK)
 *       fprintf(stderr, "%s\n", xmem_error());
 *   xmem_frame frame;
 *   while (xmem_consumer_next(camera, XMEM_FOREVER, &frame) == XMEM_OK) {
 *       xmem_frame_info info = XMEM_FRAME_INFO;
 *       if (xmem_frame_get(frame, &info) == XMEM_OK)
 *           use(info.planes[0].data, info.planes[0].stride);    // read-only, not copied
 *       xmem_frame_release(frame);
 *   }
 *   xmem_consumer_close(camera);
 *
 * Handles are small structures that you pass by value. {0} is no handle. A handle that was closed or released, or never was one,
 * gives XMEM_ERROR_HANDLE; no use of a handle is undefined.
 *
 * Threads: every function may be called from every thread. While one thread is in xmem_consumer_next or xmem_consumer_fd, another
 * one that calls either of them for the same consumer gets XMEM_ERROR_BUSY.
 *
 * Memory: `info.data` and `info.planes[].data` of a frame are valid until the frame's last handle is released. The kernel lets this
 * process only read them. A frame that is not released counts towards the budget of the consumer, 8 frames by default; further
 * frames are copied, and the statistics count that.
 *
 * Times are in nanoseconds. Time limits below 0 (XMEM_FOREVER) mean no limit, and 0 means no wait.
 *
 * After a fork, each function of the child returns XMEM_ERROR_FORKED.
 *
 * Structures begin with their size, so that programs and libraries of different versions fit together: initialise them with the
 * macro of the same name. A function that fails leaves them as they were.
 */

#ifndef XMEM_H
#define XMEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define XMEM_FOREVER (-1)
/* A time that is not known. */
#define XMEM_NO_TIME INT64_MIN
#define XMEM_MAX_PLANES 4

/* What functions return. Below 0: an error, for which xmem_error has a text. */
typedef enum xmem_result {
    XMEM_OK = 0,
    XMEM_TIMEOUT = 1,              /* nothing happened within the time limit */
    XMEM_END = 2,                  /* the stream has ended */
    XMEM_CANCELLED = 3,            /* another thread called xmem_consumer_cancel or closed the consumer */
    XMEM_ERROR_ARGUMENT = -1,      /* an argument is invalid */
    XMEM_ERROR_HANDLE = -2,        /* the handle was closed, released or published, or is none */
    XMEM_ERROR_BUSY = -3,          /* another thread uses this consumer */
    XMEM_ERROR_NO_PRODUCER = -4,   /* the pool has no producer */
    XMEM_ERROR_PRODUCER_LOST = -5, /* the producer ended or disconnected this consumer, and on_producer_lost says to fail */
    XMEM_ERROR_REFUSED = -6,       /* this user may not open the pool, or the versions differ */
    XMEM_ERROR_POOL_IN_USE = -7,   /* another process is the producer of the pool */
    XMEM_ERROR_POOL_FULL = -8,     /* all slots are in use, and the pool can't grow */
    XMEM_ERROR_OVER_BUDGET = -9,   /* this consumer holds as many frames as it may */
    XMEM_ERROR_NOT_READABLE = -10, /* the bytes are on a device, can't be mapped, or are gone */
    XMEM_ERROR_INVALID = -11,      /* the data of the other process is invalid */
    XMEM_ERROR_FORKED = -12,       /* this is a forked child */
    XMEM_ERROR_SYSTEM = -13,       /* the system refused something, for example a descriptor */
    XMEM_ERROR_INTERNAL = -14      /* a bug in this library */
} xmem_result;

/* Why the last function of this thread failed, and what to do. Valid until the next failure in this thread. */
const char *xmem_error(void);

/* The version of the library, for example "0.1.0". */
const char *xmem_version(void);

/* ---- Receive ------------------------------------------------------------------------------------------------------------- */

typedef struct xmem_consumer { uint64_t id; } xmem_consumer;
typedef struct xmem_frame { uint64_t id; } xmem_frame;

enum xmem_start { XMEM_START_NEXT = 0, XMEM_START_NEWEST = 1, XMEM_START_OLDEST = 2 };
enum xmem_over_budget { XMEM_OVER_BUDGET_COPY = 0, XMEM_OVER_BUDGET_DROP = 1, XMEM_OVER_BUDGET_FAIL = 2 };
enum xmem_eos { XMEM_EOS_END = 0, XMEM_EOS_WAIT = 1 };
enum xmem_lost { XMEM_LOST_WAIT = 0, XMEM_LOST_END = 1, XMEM_LOST_FAIL = 2 };

/* Fields that are 0 have their default. They are the properties of xmemsrc. */
typedef struct xmem_consumer_options {
    size_t struct_size;
    const char *name;          /* in the statistics of the producer. NULL: the name of this program */
    uint32_t max_held;         /* the budget: how many frames this consumer may hold at one time. 0: 8 */
    uint32_t start_from;       /* the first frame: XMEM_START_... */
    uint32_t over_budget;      /* what to do with a frame past the budget: XMEM_OVER_BUDGET_... */
    uint32_t on_eos;           /* whether the end of the stream is XMEM_END, or the consumer waits for the next stream */
    uint32_t on_producer_lost; /* whether a consumer without a producer waits for the next one, ends, or fails: XMEM_LOST_... */
    uint32_t newest_only;      /* 1: skip frames for which there is a newer one, and count them as missed */
    int64_t connect_timeout;   /* how long to wait for a producer, at the start and after a loss. 0: no limit */
    int64_t busy_poll;         /* how long to spin for the next frame before sleeping */
    double max_rate;           /* the most frames per second, on average; the others are left out. 0: all. Not for encoded streams */
    uint32_t dmabuf;           /* 1: get frames as DMA buffers, for xmem_frame_dmabuf. A frame without one is an error, which says why */
    uint32_t reserved;
} xmem_consumer_options;
#define XMEM_CONSUMER_OPTIONS {sizeof(xmem_consumer_options), NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef struct xmem_consumer_stats {
    size_t struct_size;
    uint64_t received;
    uint64_t missed;       /* frames that the pool had released, or that newest_only skipped */
    uint64_t copied;       /* of the received ones: past the budget */
    uint64_t dropped;      /* frames past the budget that were not copied */
    uint64_t reconnects;   /* producers after the first */
    uint64_t latency;      /* ns from publishing to receiving, smoothed */
    uint32_t held;         /* frames that are held now */
    uint32_t budget;       /* how many may be held */
    uint32_t is_connected; /* whether there is a producer */
    uint32_t reserved;
    uint64_t skipped;      /* frames that max_rate left out */
} xmem_consumer_stats;
#define XMEM_CONSUMER_STATS {sizeof(xmem_consumer_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Rows of bytes. `row_bytes` of each row are content, the rest of `stride` is padding. */
typedef struct xmem_plane {
    const void *data;
    size_t stride;
    uint32_t rows;
    uint32_t row_bytes;
} xmem_plane;

typedef struct xmem_frame_info {
    size_t struct_size;
    const void *data;                    /* all bytes, or NULL if the frame is in several parts: then only the planes */
    size_t size;                         /* of all bytes */
    char format[32];                     /* video: GStreamer's name, for example "NV12"; else "" */
    char content_type[32];               /* for example "image/raw", or "" */
    uint32_t width, height;              /* video: in pixels */
    uint32_t n_planes;                   /* 0 if it is no raw video, or its format has no rows */
    uint32_t flags;                      /* as GstBufferFlags: 1 << 13 is a frame that depends on earlier ones */
    xmem_plane planes[XMEM_MAX_PLANES];
    int64_t timestamp;                   /* when it is due, on CLOCK_MONOTONIC, or XMEM_NO_TIME */
    int64_t pts, dts, duration;          /* of the producer's pipeline, or XMEM_NO_TIME */
    int64_t published_at;                /* on CLOCK_MONOTONIC */
    uint64_t sequence;                   /* among the frames and events of its pool */
    uint64_t number;                     /* among the frames */
    uint32_t slot, generation;           /* where it lies, and which use of the slot it is */
    uint32_t is_copied;                  /* 1: it is past the budget, in private memory */
    int32_t device;                      /* the CUDA device that it is on, as this process counts them. -1: host memory */
} xmem_frame_info;
#define XMEM_FRAME_INFO {sizeof(xmem_frame_info), NULL, 0, {0}, {0}, 0, 0, 0, 0, {{NULL, 0, 0, 0}}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Opens a pool by its name, or by the path of its socket, which contains a slash. There need be no producer yet:
 * xmem_consumer_next looks for it. `options` may be NULL. */
xmem_result xmem_consumer_open(const char *pool, const xmem_consumer_options *options, xmem_consumer *consumer);

/* Waits for the next frame. The consumer goes on after restarts of the producer, unless the options say otherwise. The caller
 * releases the frame. After XMEM_END or an error you may call it again. */
xmem_result xmem_consumer_next(xmem_consumer consumer, int64_t timeout, xmem_frame *frame);

/* A descriptor for poll and similar functions. It is readable when a frame may be there, until xmem_consumer_next with a time limit
 * of 0 returns XMEM_TIMEOUT. While there is no producer it tells nothing: call xmem_consumer_next from time to time to look for
 * one. The consumer closes it. */
xmem_result xmem_consumer_fd(xmem_consumer consumer, int *fd);

/* Ends the wait of another thread, and all later ones, with XMEM_CANCELLED. Not for signal handlers. */
xmem_result xmem_consumer_cancel(xmem_consumer consumer);

/* Asks the encoder of the stream for a key frame. Programs that don't encode ignore it. */
xmem_result xmem_consumer_request_key_frame(xmem_consumer consumer);

/* Over all producers since the start. */
xmem_result xmem_consumer_get_stats(xmem_consumer consumer, xmem_consumer_stats *stats);

/* Leaves the pool. Frames that are held stay valid. */
xmem_result xmem_consumer_close(xmem_consumer consumer);

/* Describes a frame. Maps its memory, if that isn't done yet, and waits until a device has written it, if it is a DMA buffer.
 * A frame on a CUDA device has no addresses and no planes here: see xmem_frame_get_cuda. */
xmem_result xmem_frame_get(xmem_frame frame, xmem_frame_info *info);

/* The caps of its stream as GStreamer writes them, or "". Valid until the frame is released. */
xmem_result xmem_frame_caps(xmem_frame frame, const char **caps);

/* Bytes that the producer attached by name. NULL and 0 if there are none. Valid until the frame is released. */
xmem_result xmem_frame_attachment(xmem_frame frame, const char *name, const void **data, size_t *size);

/* One more handle for the same frame, which is not copied. */
xmem_result xmem_frame_ref(xmem_frame frame, xmem_frame *other);

xmem_result xmem_frame_release(xmem_frame frame);

/* ---- Devices and tensors ------------------------------------------------------------------------------------------------- */

/* `stream` is a CUstream or a cudaStream_t: NULL is the legacy default stream. It must exist a little longer than the frames and
 * slots that it uses. The driver is looked for at the first use; libxmem isn't linked to it. */

/* As xmem_frame_get, with addresses on the CUDA device. `stream` waits until the frame is written, and the frame ends after the
 * work that the stream has when its last handle is released: release it at once, the CPU need not wait. */
xmem_result xmem_frame_get_cuda(xmem_frame frame, void *stream, xmem_frame_info *info);

struct DLManagedTensorVersioned;

/* A plane of video as a DLPack tensor of rows, columns and, if there are several, channels; without video the tensor of the frame,
 * or its bytes. It is read-only and holds the frame until its deleter is called, on any thread; the frame may be released before.
 * On a CUDA device it is for `stream`, as above; in host memory `stream` isn't used. */
xmem_result xmem_frame_dlpack(xmem_frame frame, uint32_t plane, void *stream, struct DLManagedTensorVersioned **tensor);

/* A plane in a DMA buffer. Planes may share one descriptor. */
typedef struct xmem_dmabuf_plane {
    int fd;          /* open until the frame's last handle is released: don't close it */
    uint32_t stride; /* from one row to the next, in bytes. 0: no video, but all bytes */
    uint64_t offset; /* of the plane's first byte in the buffer */
} xmem_dmabuf_plane;

typedef struct xmem_dmabuf {
    size_t struct_size;
    uint32_t fourcc;   /* DRM_FORMAT_... of drm_fourcc.h. 0: not known */
    uint32_t n_planes;
    uint64_t modifier; /* DRM_FORMAT_MOD_LINEAR */
    xmem_dmabuf_plane planes[XMEM_MAX_PLANES];
} xmem_dmabuf;
#define XMEM_DMABUF {sizeof(xmem_dmabuf), 0, 0, 0, {{0, 0, 0}}}

/* The frame in DMA buffers, as EGL, V4L2, DRM and FFmpeg import them without a copy: memory of a camera's driver or, with `dmabuf` in
 * the consumer's options, slots of a producer that allows it (dmabuf=allow of xmemsink). Hold the frame until the device has read it.
 * The kernel lets devices write; don't, because other consumers read the same memory. XMEM_ERROR_NOT_READABLE: it is in none. */
xmem_result xmem_frame_dmabuf(xmem_frame frame, xmem_dmabuf *dmabuf);

/* ---- Publish ------------------------------------------------------------------------------------------------------------- */

typedef struct xmem_producer { uint64_t id; } xmem_producer;
typedef struct xmem_slot { uint64_t id; } xmem_slot;

/* Fields that are 0 have their default. They are the properties of xmemsink. */
typedef struct xmem_producer_options {
    size_t struct_size;
    uint32_t is_lossless;           /* 1: wait for slow consumers, so that they miss no frame */
    uint32_t history;               /* newest frames that are kept for consumers that are behind. 0: 4 */
    uint32_t min_slots;             /* slots of the first region of memory */
    uint32_t max_slots;             /* 0: 256 */
    uint32_t max_consumers;         /* 0: 256 */
    uint32_t max_held;              /* the largest budget of a consumer. 0: 8 */
    uint64_t max_bytes;             /* of shared memory. 0: no limit */
    int64_t lossless_timeout;       /* after which a consumer that takes no frame is disconnected. 0: never */
    uint32_t framerate_numerator;   /* frames per second, for the caps of xmem_producer_acquire_video. 0: not known */
    uint32_t framerate_denominator;
    uint32_t socket_mode;           /* which users may connect, for example 0660. 0: 0600 */
    uint32_t reserved;
    const char *socket_group;       /* group of the socket, by name or number. NULL: that of new files */
} xmem_producer_options;
#define XMEM_PRODUCER_OPTIONS {sizeof(xmem_producer_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL}

typedef struct xmem_producer_stats {
    size_t struct_size;
    uint64_t published;
    uint64_t copied;
    uint64_t dropped;
    uint64_t bytes;      /* of shared memory */
    uint32_t slots;      /* that exist */
    uint32_t slots_held; /* of these, in use */
    uint32_t consumers;  /* that are connected */
    uint32_t reserved;
} xmem_producer_stats;
#define XMEM_PRODUCER_STATS {sizeof(xmem_producer_stats), 0, 0, 0, 0, 0, 0, 0, 0}

/* Where to write a frame. The planes are writable here. */
typedef struct xmem_slot_info {
    size_t struct_size;
    void *data;
    size_t size;
    uint32_t n_planes;
    uint32_t slot;
    xmem_plane planes[XMEM_MAX_PLANES];
} xmem_slot_info;
#define XMEM_SLOT_INFO {sizeof(xmem_slot_info), NULL, 0, 0, 0, {{NULL, 0, 0, 0}}}

/* The times of a frame to publish. Begin with XMEM_TIMES, because 0 is a time, except in `timestamp`. The times of an xmem_frame_info
 * can be passed on as they are. */
typedef struct xmem_times {
    size_t struct_size;
    int64_t timestamp;          /* when the frame is due, on CLOCK_MONOTONIC. 0 or XMEM_NO_TIME: now */
    int64_t pts, dts, duration; /* of your stream, from 0 on, or XMEM_NO_TIME, as XMEM_TIMES sets them */
    uint32_t flags;             /* as GstBufferFlags */
    uint32_t reserved;
} xmem_times;
#define XMEM_TIMES {sizeof(xmem_times), 0, XMEM_NO_TIME, XMEM_NO_TIME, XMEM_NO_TIME, 0, 0}

/* Creates a pool. Only one process at a time can be the producer of a pool. `options` may be NULL. */
xmem_result xmem_producer_create(const char *pool, const xmem_producer_options *options, xmem_producer *producer);

/* The caps of all later frames, as GStreamer writes them, for frames that are no raw video. xmemsrc needs caps. */
xmem_result xmem_producer_set_caps(xmem_producer producer, const char *caps);

/* A slot of `size` bytes to write, with any content. In a lossless pool it waits until consumers are not behind. */
xmem_result xmem_producer_acquire(xmem_producer producer, size_t size, int64_t timeout, xmem_slot *slot);

/* A slot for a raw video frame, with its planes. `format` is GStreamer's name, for example "NV12" or "RGB". The caps follow from it. */
xmem_result xmem_producer_acquire_video(xmem_producer producer, const char *format, uint32_t width, uint32_t height, int64_t timeout,
                                        xmem_slot *slot);

/* Later slots are on this CUDA device, or, below 0, in host memory. */
xmem_result xmem_producer_use_cuda(xmem_producer producer, int device);

/* Waits until this number of consumers are connected. */
xmem_result xmem_producer_wait_for_consumers(xmem_producer producer, size_t count, int64_t timeout);

/* Consumers get XMEM_END after the last frame. The next frame begins a new stream. */
xmem_result xmem_producer_end_stream(xmem_producer producer);

xmem_result xmem_producer_get_stats(xmem_producer producer, xmem_producer_stats *stats);

/* Closes the pool. Frames that consumers hold stay valid. */
xmem_result xmem_producer_close(xmem_producer producer);

/* The addresses are valid until the slot is published or released. A slot on a CUDA device has none here. */
xmem_result xmem_slot_get(xmem_slot slot, xmem_slot_info *info);

/* As xmem_slot_get, with addresses on the CUDA device. `stream` waits until the memory is free, and consumers' streams wait for the
 * work that it has when the slot is published: publish at once, the CPU need not wait. One stream for each slot. */
xmem_result xmem_slot_get_cuda(xmem_slot slot, void *stream, xmem_slot_info *info);

/* Publishes the frame, and ends the handle. Don't write to the slot any more: consumers read it. `times` and `sequence` may be
 * NULL. After an error the handle is still valid. */
xmem_result xmem_slot_publish(xmem_slot slot, const xmem_times *times, int64_t timeout, uint64_t *sequence);

/* Gives a slot back that is not to be published. */
xmem_result xmem_slot_release(xmem_slot slot);

/* ---- Buffers by number --------------------------------------------------------------------------------------------------- */

/* Buffers whose number processes pass to each other by other means. All processes that open the pool are equal. */
typedef struct xmem_pool { uint64_t id; } xmem_pool;
typedef struct xmem_buffer { uint64_t id; } xmem_buffer;

typedef struct xmem_buffer_info {
    size_t struct_size;
    void *data;
    size_t size;
    uint32_t index;       /* the number to pass on */
    uint32_t is_writable; /* 0: don't write. The kernel prevents it, unless this process wrote the buffer */
} xmem_buffer_info;
#define XMEM_BUFFER_INFO {sizeof(xmem_buffer_info), NULL, 0, 0, 0}

xmem_result xmem_pool_open(const char *name, xmem_pool *pool);

/* A buffer to write. */
xmem_result xmem_pool_acquire(xmem_pool pool, size_t size, xmem_buffer *buffer);

/* A published buffer to read. Each call counts as one read. */
xmem_result xmem_pool_get(xmem_pool pool, uint32_t index, xmem_buffer *buffer);

/* How often the buffer has to be read until it is free: 1 by default. Only in the process that wrote it. */
xmem_result xmem_pool_set_count(xmem_pool pool, uint32_t index, int count);

/* Removes a buffer that this process published, whatever its count. */
xmem_result xmem_pool_discard(xmem_pool pool, uint32_t index);

/* Waits until all buffers that this process published have been read. */
xmem_result xmem_pool_wait_until_read(xmem_pool pool, int64_t timeout);

xmem_result xmem_pool_close(xmem_pool pool);

xmem_result xmem_buffer_get(xmem_buffer buffer, xmem_buffer_info *info);

/* Publishes a buffer that was written, and ends the handle. A buffer that is only read gives XMEM_ERROR_ARGUMENT. */
xmem_result xmem_buffer_publish(xmem_buffer buffer, uint32_t *index);

/* Ends a read. A buffer that was written and not published becomes empty. */
xmem_result xmem_buffer_release(xmem_buffer buffer);

#ifdef __cplusplus
}
#endif

#endif
