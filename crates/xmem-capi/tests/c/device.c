/* SPDX-License-Identifier: MPL-2.0 */

/* Frames on a CUDA device. The program calls the driver itself, on streams of its own, and waits only at the end.
 * argv: POOL produce|consume */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xmem.h>

#define OK(call)                                                                                                                     \
    do {                                                                                                                             \
        int result_ = (call);                                                                                                        \
        if (result_ != 0) {                                                                                                          \
            printf("line %d: %s gave %d: %s\n", __LINE__, #call, result_, xmem_error());                                             \
            exit(1);                                                                                                                 \
        }                                                                                                                            \
    } while (0)
#define IS(code, call)                                                                                                               \
    do {                                                                                                                             \
        int result_ = (call);                                                                                                        \
        if (result_ != (code)) {                                                                                                     \
            printf("line %d: %s gave %d\n", __LINE__, #call, result_);                                                               \
            exit(1);                                                                                                                 \
        }                                                                                                                            \
    } while (0)

enum { WIDTH = 64, HEIGHT = 48, FRAMES = 6, SIZE = WIDTH * HEIGHT * 3 };

/* The part of cuda.h that is used here. */
typedef unsigned long long CUdeviceptr;
static int (*cuInit)(unsigned);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *);
static int (*cuStreamCreate)(void **, unsigned);
static int (*cuStreamSynchronize)(void *);
static int (*cuMemAllocHost)(void **, size_t);
static int (*cuMemcpyHtoDAsync)(CUdeviceptr, const void *, size_t, void *);
static int (*cuMemcpyDtoHAsync)(void *, CUdeviceptr, size_t, void *);

static void load(void *driver, const char *name, void *function) {
    void *found = dlsym(driver, name);
    if (!found)
        exit(printf("the driver has no %s\n", name));
    memcpy(function, &found, sizeof found);
}

static void *new_stream(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver)
        exit(printf("%s\n", dlerror()));
    load(driver, "cuInit", &cuInit);
    load(driver, "cuDevicePrimaryCtxRetain", &cuDevicePrimaryCtxRetain);
    load(driver, "cuCtxSetCurrent", &cuCtxSetCurrent);
    load(driver, "cuStreamCreate", &cuStreamCreate);
    load(driver, "cuStreamSynchronize", &cuStreamSynchronize);
    load(driver, "cuMemAllocHost_v2", &cuMemAllocHost);
    load(driver, "cuMemcpyHtoDAsync_v2", &cuMemcpyHtoDAsync);
    load(driver, "cuMemcpyDtoHAsync_v2", &cuMemcpyDtoHAsync);
    void *context, *stream;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, 1));
    return stream;
}

/* Copies wait on the CPU for memory that isn't pinned. */
static void *new_bytes(void) {
    void *bytes;
    OK(cuMemAllocHost(&bytes, FRAMES * SIZE));
    return bytes;
}

static CUdeviceptr on_device(const void *data) { return (CUdeviceptr)(uintptr_t)data; }

/* dlpack.h, version 1.1, with the parts of its structures in line. */
struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *);
    uint64_t flags;
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

static void produce(const char *pool) {
    void *stream = new_stream(), *other;
    unsigned char(*bytes)[SIZE] = new_bytes();
    OK(cuStreamCreate(&other, 1));
    xmem_producer_options options = XMEM_PRODUCER_OPTIONS;
    options.is_lossless = 1;
    options.min_slots = 16;
    xmem_producer producer;
    OK(xmem_producer_create(pool, &options, &producer));
    IS(XMEM_ERROR_SYSTEM, xmem_producer_use_cuda(producer, 77));
    OK(xmem_producer_use_cuda(producer, 0));
    OK(xmem_producer_wait_for_consumers(producer, 1, XMEM_FOREVER));
    for (int number = 0; number < FRAMES; number++) {
        xmem_slot slot;
        xmem_slot_info info = XMEM_SLOT_INFO;
        OK(xmem_producer_acquire_video(producer, "RGB", WIDTH, HEIGHT, XMEM_FOREVER, &slot));
        OK(xmem_slot_get(slot, &info));
        if (info.data || info.n_planes)
            exit(printf("an address of the host\n"));
        OK(xmem_slot_get_cuda(slot, stream, &info));
        IS(XMEM_ERROR_ARGUMENT, xmem_slot_get_cuda(slot, other, &info));
        if (info.n_planes != 1 || info.planes[0].stride != 3 * WIDTH || info.size != SIZE)
            exit(printf("%zu bytes\n", info.size));
        memset(bytes[number], number + 1, SIZE);
        OK(cuMemcpyHtoDAsync(on_device(info.planes[0].data), bytes[number], SIZE, stream));
        OK(xmem_slot_publish(slot, NULL, XMEM_FOREVER, NULL));
        /* The test stops the streams of this process then. */
        if (number == 0 && getchar() != '\n')
            exit(1);
    }
    /* One that is given back while it is written, and one in host memory. */
    xmem_slot slot;
    xmem_slot_info info = XMEM_SLOT_INFO;
    OK(xmem_producer_acquire(producer, SIZE, XMEM_FOREVER, &slot));
    OK(xmem_slot_get_cuda(slot, stream, &info));
    OK(cuMemcpyHtoDAsync(on_device(info.data), bytes[0], SIZE, stream));
    OK(xmem_slot_release(slot));
    OK(xmem_producer_use_cuda(producer, -1));
    OK(xmem_producer_acquire(producer, SIZE, XMEM_FOREVER, &slot));
    IS(XMEM_ERROR_ARGUMENT, xmem_slot_get_cuda(slot, stream, &info));
    OK(xmem_slot_get(slot, &info));
    memset(info.data, 99, SIZE);
    OK(xmem_slot_publish(slot, NULL, XMEM_FOREVER, NULL));
    xmem_producer_end_stream(producer);
    /* Consumers read what is on the device. */
    if (getchar() != EOF)
        exit(1);
    OK(xmem_producer_close(producer));
}

static void consume(const char *pool) {
    void *stream = new_stream();
    unsigned char(*bytes)[SIZE] = new_bytes();
    xmem_consumer consumer;
    OK(xmem_consumer_open(pool, NULL, &consumer));
    for (int number = 0; number < FRAMES; number++) {
        xmem_frame frame;
        xmem_frame_info info = XMEM_FRAME_INFO;
        OK(xmem_consumer_next(consumer, XMEM_FOREVER, &frame));
        OK(xmem_frame_get(frame, &info));
        if (info.device != 0 || info.data || info.n_planes || strcmp(info.format, "RGB"))
            exit(printf("an address of the host\n"));
        struct DLManagedTensorVersioned *tensor = NULL;
        if (number % 2) {
            IS(XMEM_ERROR_ARGUMENT, xmem_frame_dlpack(frame, 1, stream, &tensor));
            OK(xmem_frame_dlpack(frame, 0, stream, &tensor));
            if (tensor->major != 1 || tensor->device_type != 2 || tensor->device_id != 0 || tensor->ndim != 3 || tensor->bits != 8 ||
                tensor->code != 1 || tensor->shape[0] != HEIGHT || tensor->shape[1] != WIDTH || tensor->shape[2] != 3 ||
                tensor->strides[0] != 3 * WIDTH || tensor->strides[1] != 3 || tensor->strides[2] != 1 || tensor->flags != 1)
                exit(printf("another tensor\n"));
            info.data = tensor->data;
        } else {
            OK(xmem_frame_get_cuda(frame, stream, &info));
            if (info.n_planes != 1 || info.planes[0].rows != HEIGHT || info.planes[0].data != info.data)
                exit(printf("other planes\n"));
        }
        OK(cuMemcpyDtoHAsync(bytes[number], on_device(info.data), SIZE, stream));
        OK(xmem_frame_release(frame));
        if (tensor)
            tensor->deleter(tensor);
        if (number == 0) {
            OK(cuStreamSynchronize(stream));
            printf("received the first\n");
            fflush(stdout);
        }
    }
    xmem_frame frame;
    xmem_frame_info info = XMEM_FRAME_INFO;
    OK(xmem_consumer_next(consumer, XMEM_FOREVER, &frame));
    IS(XMEM_ERROR_ARGUMENT, xmem_frame_get_cuda(frame, stream, &info));
    OK(xmem_frame_get(frame, &info));
    struct DLManagedTensorVersioned *tensor;
    OK(xmem_frame_dlpack(frame, 0, NULL, &tensor));
    if (info.device != -1 || tensor->data != info.data || tensor->device_type != 1 || tensor->ndim != 1 || tensor->shape[0] != SIZE)
        exit(printf("another tensor\n"));
    /* It holds the frame, also after its handle and the consumer. */
    OK(xmem_frame_release(frame));
    IS(XMEM_END, xmem_consumer_next(consumer, XMEM_FOREVER, &frame));
    OK(xmem_consumer_close(consumer));
    if (((unsigned char *)tensor->data)[SIZE - 1] != 99)
        exit(printf("another byte\n"));
    tensor->deleter(tensor);
    printf("received them all\n");
    fflush(stdout);
    OK(cuStreamSynchronize(stream));
    for (int number = 0; number < FRAMES; number++)
        for (int at = 0; at < SIZE; at++)
            if (bytes[number][at] != number + 1)
                exit(printf("byte %d of frame %d is %d\n", at, number, bytes[number][at]));
    printf("read them all\n");
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    (strcmp(argv[2], "produce") == 0 ? produce : consume)(argv[1]);
    return 0;
}
