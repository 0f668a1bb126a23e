/* SPDX-License-Identifier: MPL-2.0 */

/* Every function with NULL, with handles that are none, twice, from several threads, and in a forked child. argv: POOL */

#define _GNU_SOURCE

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmem.h>

#define IS(code, call)                                                                                                               \
    do {                                                                                                                             \
        int result_ = (call);                                                                                                        \
        if (result_ != (code)) {                                                                                                     \
            printf("line %d: %s gave %d and not %d: %s\n", __LINE__, #call, result_, code, xmem_error());                            \
            exit(1);                                                                                                                 \
        }                                                                                                                            \
        if (result_ < 0 && strlen(xmem_error()) < 8) {                                                                               \
            printf("line %d: no text\n", __LINE__);                                                                                  \
            exit(1);                                                                                                                 \
        }                                                                                                                            \
    } while (0)
#define OK(call) IS(XMEM_OK, call)
#define NONE(call) IS(XMEM_ERROR_HANDLE, call)
#define BAD(call) IS(XMEM_ERROR_ARGUMENT, call)

static void no_handles(uint64_t id) {
    xmem_consumer consumer = {id};
    xmem_frame frame = {id}, frame2;
    xmem_producer producer = {id};
    xmem_slot slot = {id};
    xmem_pool pool = {id};
    xmem_buffer buffer = {id};
    xmem_consumer_stats stats = XMEM_CONSUMER_STATS;
    xmem_producer_stats producer_stats = XMEM_PRODUCER_STATS;
    xmem_frame_info info = XMEM_FRAME_INFO;
    xmem_slot_info slot_info = XMEM_SLOT_INFO;
    xmem_buffer_info buffer_info = XMEM_BUFFER_INFO;
    struct DLManagedTensorVersioned *tensor;
    const char *text;
    const void *data;
    size_t size;
    uint32_t index;
    int fd;
    NONE(xmem_consumer_next(consumer, 0, &frame2));
    NONE(xmem_consumer_fd(consumer, &fd));
    NONE(xmem_consumer_cancel(consumer));
    NONE(xmem_consumer_request_key_frame(consumer));
    NONE(xmem_consumer_get_stats(consumer, &stats));
    NONE(xmem_consumer_close(consumer));
    NONE(xmem_frame_get(frame, &info));
    NONE(xmem_frame_caps(frame, &text));
    NONE(xmem_frame_attachment(frame, "a", &data, &size));
    NONE(xmem_frame_ref(frame, &frame2));
    NONE(xmem_frame_get_cuda(frame, NULL, &info));
    NONE(xmem_frame_dlpack(frame, 0, NULL, &tensor));
    NONE(xmem_frame_release(frame));
    NONE(xmem_producer_set_caps(producer, "a/b"));
    NONE(xmem_producer_use_cuda(producer, -1));
    NONE(xmem_producer_acquire(producer, 1, 0, &slot));
    slot.id = id;
    NONE(xmem_producer_acquire_video(producer, "RGB", 1, 1, 0, &slot));
    slot.id = id;
    NONE(xmem_producer_wait_for_consumers(producer, 1, 0));
    NONE(xmem_producer_end_stream(producer));
    NONE(xmem_producer_get_stats(producer, &producer_stats));
    NONE(xmem_producer_close(producer));
    NONE(xmem_slot_get(slot, &slot_info));
    NONE(xmem_slot_get_cuda(slot, NULL, &slot_info));
    NONE(xmem_slot_publish(slot, NULL, 0, NULL));
    NONE(xmem_slot_release(slot));
    NONE(xmem_pool_acquire(pool, 1, &buffer));
    buffer.id = id;
    NONE(xmem_pool_get(pool, 1, &buffer));
    buffer.id = id;
    NONE(xmem_pool_set_count(pool, 1, 1));
    NONE(xmem_pool_discard(pool, 1));
    NONE(xmem_pool_wait_until_read(pool, 0));
    NONE(xmem_pool_close(pool));
    NONE(xmem_buffer_get(buffer, &buffer_info));
    NONE(xmem_buffer_publish(buffer, &index));
    NONE(xmem_buffer_release(buffer));
}

static void null_pointers(xmem_consumer consumer, xmem_producer producer, xmem_frame frame, xmem_slot slot) {
    xmem_consumer other_consumer;
    xmem_producer other_producer;
    xmem_slot other_slot;
    xmem_pool pool;
    struct DLManagedTensorVersioned *tensor;
    const void *data;
    size_t size;
    BAD(xmem_consumer_open(NULL, NULL, &other_consumer));
    BAD(xmem_consumer_open("a", NULL, NULL));
    BAD(xmem_consumer_open("", NULL, &other_consumer));
    BAD(xmem_consumer_next(consumer, 0, NULL));
    BAD(xmem_consumer_fd(consumer, NULL));
    BAD(xmem_consumer_get_stats(consumer, NULL));
    BAD(xmem_frame_get(frame, NULL));
    BAD(xmem_frame_caps(frame, NULL));
    BAD(xmem_frame_attachment(frame, NULL, &data, &size));
    BAD(xmem_frame_attachment(frame, "a", NULL, &size));
    BAD(xmem_frame_attachment(frame, "a", &data, NULL));
    BAD(xmem_frame_ref(frame, NULL));
    BAD(xmem_frame_get_cuda(frame, NULL, NULL));
    BAD(xmem_frame_dlpack(frame, 0, NULL, NULL));
    BAD(xmem_frame_dlpack(frame, UINT32_MAX, NULL, &tensor));
    BAD(xmem_producer_create(NULL, NULL, &other_producer));
    BAD(xmem_producer_create("a", NULL, NULL));
    BAD(xmem_producer_set_caps(producer, NULL));
    BAD(xmem_producer_set_caps(producer, "\xff\xfe"));
    BAD(xmem_producer_acquire(producer, 1, 0, NULL));
    BAD(xmem_producer_acquire(producer, 0, 0, &other_slot));
    BAD(xmem_producer_acquire_video(producer, NULL, 1, 1, 0, &other_slot));
    BAD(xmem_producer_acquire_video(producer, "NOPE", 1, 1, 0, &other_slot));
    BAD(xmem_producer_acquire_video(producer, "RGB", 0, 0, 0, &other_slot));
    BAD(xmem_producer_acquire_video(producer, "RGB", UINT32_MAX, UINT32_MAX, 0, &other_slot));
    BAD(xmem_producer_get_stats(producer, NULL));
    BAD(xmem_slot_get(slot, NULL));
    BAD(xmem_slot_get_cuda(slot, NULL, NULL));
    BAD(xmem_pool_open(NULL, &pool));
    BAD(xmem_pool_open("a", NULL));
}

static void options(const char *path) {
    xmem_consumer consumer;
    xmem_consumer_options bad = XMEM_CONSUMER_OPTIONS;
    bad.start_from = 3;
    BAD(xmem_consumer_open(path, &bad, &consumer));
    bad = (xmem_consumer_options)XMEM_CONSUMER_OPTIONS;
    bad.over_budget = 99;
    BAD(xmem_consumer_open(path, &bad, &consumer));
    bad = (xmem_consumer_options)XMEM_CONSUMER_OPTIONS;
    bad.struct_size = 0;
    BAD(xmem_consumer_open(path, &bad, &consumer));
    bad.struct_size = 3;
    BAD(xmem_consumer_open(path, &bad, &consumer));
    bad = (xmem_consumer_options)XMEM_CONSUMER_OPTIONS;
    bad.name = "\xff";
    BAD(xmem_consumer_open(path, &bad, &consumer));
    bad = (xmem_consumer_options)XMEM_CONSUMER_OPTIONS;
    const double rates[] = {-1, 1e-320, 1e300, 0.0 / bad.max_rate};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        bad.max_rate = rates[i];
        BAD(xmem_consumer_open(path, &bad, &consumer));
    }
    /* Of an older program: only its first fields exist. */
    struct {
        size_t struct_size;
        const char *name;
        uint64_t behind;
    } old = {2 * sizeof(size_t), "old", UINT64_MAX};
    OK(xmem_consumer_open(path, (const xmem_consumer_options *)(void *)&old, &consumer));
    OK(xmem_consumer_close(consumer));
    /* Of a newer one: it has more fields. */
    struct {
        xmem_consumer_options known;
        uint64_t more[8];
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.known.struct_size = sizeof newer;
    newer.more[0] = 7;
    OK(xmem_consumer_open(path, &newer.known, &consumer));
    OK(xmem_consumer_close(consumer));
    /* The library writes no more than the caller has room for. */
    xmem_producer_options wrong = XMEM_PRODUCER_OPTIONS;
    xmem_producer producer;
    wrong.socket_mode = 07777;
    BAD(xmem_producer_create(path, &wrong, &producer));
}

static void *wait_for_ever(void *consumer) {
    xmem_frame frame;
    xmem_result result;
    do
        result = xmem_consumer_next(*(xmem_consumer *)consumer, XMEM_FOREVER, &frame);
    while (result == XMEM_ERROR_BUSY);
    IS(XMEM_CANCELLED, result);
    return NULL;
}

struct shared {
    xmem_frame frame;
    int released;
};

static void *race(void *shared) {
    struct shared *it = shared;
    xmem_frame_info info = XMEM_FRAME_INFO;
    for (int i = 0; i < 1000; i++)
        (void)xmem_frame_get(it->frame, &info);
    if (xmem_frame_release(it->frame) == XMEM_OK)
        __atomic_fetch_add(&it->released, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    const char *path = argv[1];
    no_handles(0);
    no_handles(UINT64_MAX);
    no_handles(7);
    no_handles(UINT64_C(1) << 32);
    options(path);

    xmem_consumer consumer;
    xmem_frame frame;
    OK(xmem_consumer_open(path, NULL, &consumer));
    IS(XMEM_TIMEOUT, xmem_consumer_next(consumer, 0, &frame));
    IS(XMEM_ERROR_PRODUCER_LOST, xmem_consumer_request_key_frame(consumer));
    if (frame.id != 0)
        return printf("a failure gave a frame\n"), 1;

    xmem_producer producer, second;
    OK(xmem_producer_create(path, NULL, &producer));
    IS(XMEM_ERROR_POOL_IN_USE, xmem_producer_create(path, NULL, &second));
    IS(XMEM_TIMEOUT, xmem_producer_wait_for_consumers(producer, 1, 0));
    int fd;
    OK(xmem_consumer_fd(consumer, &fd));
    IS(XMEM_TIMEOUT, xmem_consumer_next(consumer, 100000000, &frame));
    OK(xmem_producer_wait_for_consumers(producer, 1, 5000000000));

    xmem_slot slot;
    xmem_slot_info room = XMEM_SLOT_INFO;
    OK(xmem_producer_acquire_video(producer, "NV12", 321, 241, 0, &slot));
    OK(xmem_slot_get(slot, &room));
    memset(room.data, 7, room.size);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    while (xmem_consumer_next(consumer, 0, &frame) != XMEM_TIMEOUT)
        ;
    OK(xmem_slot_publish(slot, NULL, 0, NULL));
    NONE(xmem_slot_publish(slot, NULL, 0, NULL));
    NONE(xmem_slot_get(slot, &room));
    NONE(xmem_slot_release(slot));
    /* It may be readable before all that belongs to the frame is here, for example the caps. */
    xmem_result next = XMEM_TIMEOUT;
    while (next == XMEM_TIMEOUT) {
        if (poll(&ready, 1, 10000) != 1)
            return printf("the descriptor tells of no frame\n"), 1;
        next = xmem_consumer_next(consumer, 0, &frame);
    }
    OK(next);
    OK(xmem_producer_acquire(producer, 100, 0, &slot));
    null_pointers(consumer, producer, frame, slot);
    OK(xmem_slot_release(slot));

    /* A copy of the structure is the same handle: it ends once. */
    xmem_frame same = frame, other;
    OK(xmem_frame_ref(frame, &other));
    OK(xmem_frame_release(same));
    NONE(xmem_frame_release(frame));
    xmem_frame_info info = XMEM_FRAME_INFO;
    OK(xmem_frame_get(other, &info));
    if (info.n_planes != 2 || info.width != 321 || *(const unsigned char *)info.planes[1].data != 7)
        return printf("the frame is another one\n"), 1;

    struct shared shared = {other, 0};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, race, &shared);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    if (shared.released != 1)
        return printf("released %d times\n", shared.released), 1;

    /* In a child each function is an error, and the parent goes on. */
    pid_t child = fork();
    if (child == 0) {
        int failed = xmem_consumer_next(consumer, 0, &frame) != XMEM_ERROR_FORKED;
        failed |= xmem_consumer_close(consumer) != XMEM_ERROR_FORKED;
        failed |= xmem_producer_close(producer) != XMEM_ERROR_FORKED;
        failed |= xmem_producer_acquire(producer, 1, 0, &slot) != XMEM_ERROR_FORKED;
        _exit(failed);
    }
    int status;
    waitpid(child, &status, 0);
    if (status != 0)
        return printf("the child: %d\n", status), 1;

    /* One waits; another one gets an error, and ends the wait. */
    pthread_create(&threads[0], NULL, wait_for_ever, &consumer);
    while (xmem_consumer_next(consumer, 0, &frame) != XMEM_ERROR_BUSY)
        ;
    OK(xmem_consumer_close(consumer));
    pthread_join(threads[0], NULL);
    NONE(xmem_consumer_close(consumer));

    OK(xmem_producer_acquire(producer, 100, 0, &slot));
    OK(xmem_producer_close(producer));
    NONE(xmem_producer_close(producer));
    IS(XMEM_ERROR_HANDLE, xmem_slot_publish(slot, NULL, 0, NULL));
    OK(xmem_slot_release(slot));

    xmem_pool pool;
    xmem_buffer buffer, read;
    xmem_buffer_info bytes = XMEM_BUFFER_INFO;
    uint32_t index;
    OK(xmem_pool_open(argv[2], &pool));
    IS(XMEM_ERROR_NO_PRODUCER, xmem_pool_get(pool, 12345, &buffer));
    OK(xmem_pool_acquire(pool, 64, &buffer));
    OK(xmem_buffer_get(buffer, &bytes));
    memcpy(bytes.data, "hello", 6);
    OK(xmem_buffer_publish(buffer, &index));
    NONE(xmem_buffer_publish(buffer, &index));
    BAD(xmem_pool_set_count(pool, index, 0));
    OK(xmem_pool_get(pool, index, &read));
    OK(xmem_buffer_get(read, &bytes));
    if (bytes.is_writable || strcmp(bytes.data, "hello") != 0)
        return printf("another buffer\n"), 1;
    OK(xmem_pool_close(pool));
    OK(xmem_buffer_release(read));
    NONE(xmem_buffer_release(read));
    puts("all errors are errors");
    return 0;
}
