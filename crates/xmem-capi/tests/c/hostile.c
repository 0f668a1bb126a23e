/* SPDX-License-Identifier: MPL-2.0 */

/* Every function with NULL, with handles that are none, twice, from several threads, and in a forked child. argv: POOL, NAME of a pool of
 * buffers, how many FORKS, and how many THREADS use the handles meanwhile */

#define _GNU_SOURCE

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmem.h>

/* In nanoseconds, also on a busy machine. */
#define PATIENCE INT64_C(60000000000)
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

/* dlpack.h, version 1.1, up to the function that ends a tensor, and the address of its bytes. */
struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *);
    uint64_t flags;
    const unsigned char *data;
};

struct handles {
    xmem_consumer consumer;
    xmem_frame frame;
    xmem_producer producer;
    xmem_slot slot;
    xmem_pool pool;
    xmem_buffer buffer;
};

/* The handles that a test uses, and the variables that calls of all functions write. */
struct all {
    struct handles has, made;
    xmem_frame other;
    xmem_slot video;
    xmem_buffer read;
    xmem_consumer_stats consumer_stats;
    xmem_producer_stats producer_stats;
    xmem_frame_info frame_info;
    xmem_slot_info slot_info;
    xmem_buffer_info buffer_info;
    xmem_dmabuf dmabuf;
    struct DLManagedTensorVersioned *tensor;
    const char *text;
    const void *data;
    size_t size;
    uint32_t index;
    int fd;
};

static struct all with(struct handles handles) {
    struct all all = {.has = handles,
                      .consumer_stats = XMEM_CONSUMER_STATS,
                      .producer_stats = XMEM_PRODUCER_STATS,
                      .frame_info = XMEM_FRAME_INFO,
                      .slot_info = XMEM_SLOT_INFO,
                      .buffer_info = XMEM_BUFFER_INFO,
                      .dmabuf = XMEM_DMABUF};
    return all;
}

/* A call of each function of xmem.h. main.rs fails for a function without a row, and for one with a pointer that NULLS lacks. */

/* They have no error. */
#define TEXTS(ROW)                                                                                                                   \
    ROW(xmem_error, ())                                                                                                              \
    ROW(xmem_version, ())

/* They make a first handle. */
#define OPENS(ROW)                                                                                                                   \
    ROW(xmem_consumer_open, ("a", NULL, &it->made.consumer))                                                                         \
    ROW(xmem_producer_create, ("a", NULL, &it->made.producer))                                                                       \
    ROW(xmem_pool_open, ("a", &it->made.pool))

/* They use a handle. */
#define USES(ROW)                                                                                                                    \
    ROW(xmem_consumer_next, (it->has.consumer, 0, &it->made.frame))                                                                  \
    ROW(xmem_consumer_fd, (it->has.consumer, &it->fd))                                                                               \
    ROW(xmem_consumer_request_key_frame, (it->has.consumer))                                                                         \
    ROW(xmem_consumer_get_stats, (it->has.consumer, &it->consumer_stats))                                                            \
    ROW(xmem_frame_get, (it->has.frame, &it->frame_info))                                                                            \
    ROW(xmem_frame_caps, (it->has.frame, &it->text))                                                                                 \
    ROW(xmem_frame_attachment, (it->has.frame, "a", &it->data, &it->size))                                                           \
    ROW(xmem_frame_ref, (it->has.frame, &it->other))                                                                                 \
    ROW(xmem_frame_get_cuda, (it->has.frame, NULL, &it->frame_info))                                                                 \
    ROW(xmem_frame_dlpack, (it->has.frame, 0, NULL, &it->tensor))                                                                    \
    ROW(xmem_frame_dmabuf, (it->has.frame, &it->dmabuf))                                                                             \
    ROW(xmem_producer_set_caps, (it->has.producer, "a/b"))                                                                           \
    ROW(xmem_producer_use_cuda, (it->has.producer, -1))                                                                              \
    ROW(xmem_producer_acquire, (it->has.producer, 1, 0, &it->made.slot))                                                             \
    ROW(xmem_producer_acquire_video, (it->has.producer, "RGB", 1, 1, 0, &it->video))                                                 \
    ROW(xmem_producer_wait_for_consumers, (it->has.producer, 1, 0))                                                                  \
    ROW(xmem_producer_get_stats, (it->has.producer, &it->producer_stats))                                                            \
    ROW(xmem_slot_get, (it->has.slot, &it->slot_info))                                                                               \
    ROW(xmem_slot_get_cuda, (it->has.slot, NULL, &it->slot_info))                                                                    \
    ROW(xmem_pool_acquire, (it->has.pool, 1, &it->made.buffer))                                                                      \
    ROW(xmem_pool_get, (it->has.pool, 1, &it->read))                                                                                 \
    ROW(xmem_pool_set_count, (it->has.pool, 1, 1))                                                                                   \
    ROW(xmem_pool_discard, (it->has.pool, 1))                                                                                        \
    ROW(xmem_pool_wait_until_read, (it->has.pool, 0))                                                                                \
    ROW(xmem_buffer_get, (it->has.buffer, &it->buffer_info))

/* They end what belongs to a handle, or the handle. */
#define ENDS(ROW)                                                                                                                    \
    ROW(xmem_consumer_cancel, (it->has.consumer))                                                                                    \
    ROW(xmem_consumer_close, (it->has.consumer))                                                                                     \
    ROW(xmem_frame_release, (it->has.frame))                                                                                         \
    ROW(xmem_slot_publish, (it->has.slot, NULL, 0, NULL))                                                                            \
    ROW(xmem_slot_release, (it->has.slot))                                                                                           \
    ROW(xmem_producer_end_stream, (it->has.producer))                                                                                \
    ROW(xmem_producer_close, (it->has.producer))                                                                                     \
    ROW(xmem_buffer_publish, (it->has.buffer, &it->index))                                                                           \
    ROW(xmem_buffer_release, (it->has.buffer))                                                                                       \
    ROW(xmem_pool_close, (it->has.pool))

/* Each pointer of a result or of a text that has to be there. */
#define NULLS(ROW)                                                                                                                   \
    ROW(xmem_consumer_open, (NULL, NULL, &it->made.consumer))                                                                        \
    ROW(xmem_consumer_open, ("a", NULL, NULL))                                                                                       \
    ROW(xmem_consumer_next, (it->has.consumer, 0, NULL))                                                                             \
    ROW(xmem_consumer_fd, (it->has.consumer, NULL))                                                                                  \
    ROW(xmem_consumer_get_stats, (it->has.consumer, NULL))                                                                           \
    ROW(xmem_frame_get, (it->has.frame, NULL))                                                                                       \
    ROW(xmem_frame_caps, (it->has.frame, NULL))                                                                                      \
    ROW(xmem_frame_attachment, (it->has.frame, NULL, &it->data, &it->size))                                                          \
    ROW(xmem_frame_attachment, (it->has.frame, "a", NULL, &it->size))                                                                \
    ROW(xmem_frame_attachment, (it->has.frame, "a", &it->data, NULL))                                                                \
    ROW(xmem_frame_ref, (it->has.frame, NULL))                                                                                       \
    ROW(xmem_frame_get_cuda, (it->has.frame, NULL, NULL))                                                                            \
    ROW(xmem_frame_dlpack, (it->has.frame, 0, NULL, NULL))                                                                           \
    ROW(xmem_frame_dmabuf, (it->has.frame, NULL))                                                                                    \
    ROW(xmem_producer_create, (NULL, NULL, &it->made.producer))                                                                      \
    ROW(xmem_producer_create, ("a", NULL, NULL))                                                                                     \
    ROW(xmem_producer_set_caps, (it->has.producer, NULL))                                                                            \
    ROW(xmem_producer_acquire, (it->has.producer, 1, 0, NULL))                                                                       \
    ROW(xmem_producer_acquire_video, (it->has.producer, NULL, 1, 1, 0, &it->video))                                                  \
    ROW(xmem_producer_acquire_video, (it->has.producer, "RGB", 1, 1, 0, NULL))                                                       \
    ROW(xmem_producer_get_stats, (it->has.producer, NULL))                                                                           \
    ROW(xmem_slot_get, (it->has.slot, NULL))                                                                                         \
    ROW(xmem_slot_get_cuda, (it->has.slot, NULL, NULL))                                                                              \
    ROW(xmem_pool_open, (NULL, &it->made.pool))                                                                                      \
    ROW(xmem_pool_open, ("a", NULL))                                                                                                 \
    ROW(xmem_pool_acquire, (it->has.pool, 1, NULL))                                                                                  \
    ROW(xmem_pool_get, (it->has.pool, 1, NULL))                                                                                      \
    ROW(xmem_buffer_get, (it->has.buffer, NULL))                                                                                     \
    ROW(xmem_buffer_publish, (it->has.buffer, NULL))

#define IS_EXPECTED(name, arguments) IS(expected, name arguments);
#define IS_TEXT(name, arguments)                                                                                                     \
    if (!*name arguments)                                                                                                            \
        exit(printf(#name " has no text\n"));

/* Each function that has a handle gives this error. */
static void each_is(xmem_result expected, struct handles handles) {
    struct all all = with(handles), *it = &all;
    USES(IS_EXPECTED)
    ENDS(IS_EXPECTED)
}

static void no_handles(uint64_t id) { each_is(XMEM_ERROR_HANDLE, (struct handles){{id}, {id}, {id}, {id}, {id}, {id}}); }

static void bad_arguments(struct handles handles) {
    struct all all = with(handles), *it = &all;
    const xmem_result expected = XMEM_ERROR_ARGUMENT;
    NULLS(IS_EXPECTED)
    BAD(xmem_consumer_open("", NULL, &it->made.consumer));
    BAD(xmem_frame_dlpack(it->has.frame, UINT32_MAX, NULL, &it->tensor));
    BAD(xmem_producer_set_caps(it->has.producer, "\xff\xfe"));
    BAD(xmem_producer_acquire(it->has.producer, 0, 0, &it->made.slot));
    BAD(xmem_producer_acquire_video(it->has.producer, "NOPE", 1, 1, 0, &it->video));
    BAD(xmem_producer_acquire_video(it->has.producer, "RGB", 0, 0, 0, &it->video));
    BAD(xmem_producer_acquire_video(it->has.producer, "RGB", UINT32_MAX, UINT32_MAX, 0, &it->video));
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

static struct all figures(struct handles handles) {
    struct all all = with(handles);
    OK(xmem_consumer_get_stats(handles.consumer, &all.consumer_stats));
    OK(xmem_producer_get_stats(handles.producer, &all.producer_stats));
    return all;
}

static void says_dmabuf(void) {
    if (!strstr(xmem_error(), "dmabuf=allow on xmemsink"))
        exit(printf("no remedy: %s\n", xmem_error()));
}

/* A consumer without the option has no DMA buffer, and one with it no frame. */
static void no_dmabuf(const char *path, xmem_frame frame) {
    xmem_dmabuf dmabuf = XMEM_DMABUF;
    IS(XMEM_ERROR_NOT_READABLE, xmem_frame_dmabuf(frame, &dmabuf));
    says_dmabuf();
    xmem_consumer_options options = XMEM_CONSUMER_OPTIONS;
    xmem_consumer consumer;
    options.dmabuf = 1;
    options.start_from = XMEM_START_NEWEST;
    OK(xmem_consumer_open(path, &options, &consumer));
    IS(XMEM_ERROR_NOT_READABLE, xmem_consumer_next(consumer, XMEM_FOREVER, &frame));
    says_dmabuf();
    OK(xmem_consumer_close(consumer));
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

/* Ends the wait of another thread, once that thread waits. */
static void close_while_it_waits(xmem_consumer consumer) {
    xmem_frame none;
    int fd;
    while (xmem_consumer_next(consumer, 0, &none) != XMEM_ERROR_BUSY)
        ;
    IS(XMEM_ERROR_BUSY, xmem_consumer_fd(consumer, &fd));
    OK(xmem_consumer_close(consumer));
}

/* What threads use at the same time. */
struct shared {
    struct handles handles;
    int stop;
    /* How often each kind of handle was ended. */
    int closed, released, published, buffers, pools, producers;
};

#define RUN(name, arguments) (void)name arguments;

static void use_each(struct handles handles) {
    struct all all = with(handles), *it = &all;
    USES(RUN)
    (void)xmem_frame_release(it->made.frame);
    (void)xmem_frame_release(it->other);
    (void)xmem_slot_release(it->made.slot);
    (void)xmem_slot_release(it->video);
    (void)xmem_buffer_release(it->made.buffer);
    if (it->tensor)
        it->tensor->deleter(it->tensor);
}

static void *use_until_stop(void *shared) {
    struct shared *it = shared;
    while (!__atomic_load_n(&it->stop, __ATOMIC_SEQ_CST))
        use_each(it->handles);
    return NULL;
}

static void count(int *counter, xmem_result result) { __atomic_fetch_add(counter, result == XMEM_OK, __ATOMIC_SEQ_CST); }

static void *use_and_end(void *shared) {
    struct shared *it = shared;
    uint32_t index;
    for (int i = 0; i < 50; i++)
        use_each(it->handles);
    count(&it->released, xmem_frame_release(it->handles.frame));
    count(&it->published, xmem_slot_publish(it->handles.slot, NULL, 0, NULL));
    count(&it->buffers, xmem_buffer_publish(it->handles.buffer, &index));
    count(&it->pools, xmem_pool_close(it->handles.pool));
    (void)xmem_consumer_cancel(it->handles.consumer);
    count(&it->closed, xmem_consumer_close(it->handles.consumer));
    (void)xmem_producer_end_stream(it->handles.producer);
    count(&it->producers, xmem_producer_close(it->handles.producer));
    return NULL;
}

/* All functions with the same handles on four threads, each of which ends them. */
static void many_threads(const char *path, const char *name) {
    struct shared shared = {.stop = 0};
    struct handles *it = &shared.handles;
    xmem_slot slot;
    OK(xmem_producer_create(path, NULL, &it->producer));
    OK(xmem_consumer_open(path, NULL, &it->consumer));
    IS(XMEM_TIMEOUT, xmem_consumer_next(it->consumer, 0, &it->frame));
    OK(xmem_producer_wait_for_consumers(it->producer, 1, PATIENCE));
    OK(xmem_producer_acquire_video(it->producer, "GRAY8", 64, 64, 0, &slot));
    OK(xmem_slot_publish(slot, NULL, 0, NULL));
    OK(xmem_consumer_next(it->consumer, XMEM_FOREVER, &it->frame));
    OK(xmem_producer_acquire(it->producer, 1, 0, &it->slot));
    OK(xmem_pool_open(name, &it->pool));
    OK(xmem_pool_acquire(it->pool, 1, &it->buffer));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, use_and_end, &shared);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    if (shared.released != 1 || shared.published != 1 || shared.buffers != 1 || shared.pools != 1 || shared.closed != 1 ||
        shared.producers != 1)
        exit(printf("ended %d %d %d %d %d %d times\n", shared.released, shared.published, shared.buffers, shared.pools, shared.closed,
                    shared.producers));
    each_is(XMEM_ERROR_HANDLE, shared.handles);
}

/* In a child each function is an error at once, whatever other threads did, and the parent's things stay. */
static void fork_while_used(struct handles handles, struct DLManagedTensorVersioned *tensor, int forks, int threads) {
    struct shared shared = {.handles = handles};
    pthread_t users[8];
    for (int i = 0; i < threads; i++)
        pthread_create(&users[i], NULL, use_until_stop, &shared);
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        if (child == 0) {
            /* If it hangs. */
            alarm(60);
            const xmem_result expected = XMEM_ERROR_FORKED;
            struct all all = with(handles), *it = &all;
            OPENS(IS_EXPECTED)
            each_is(expected, handles);
            TEXTS(IS_TEXT)
            tensor->deleter(tensor);
            fflush(stdout);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status != 0)
            exit(printf("child %d ended with %#x\n", i, status));
    }
    __atomic_store_n(&shared.stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < threads; i++)
        pthread_join(users[i], NULL);
}

int main(int argc, char **argv) {
    if (argc < 5)
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
    OK(xmem_producer_wait_for_consumers(producer, 1, PATIENCE));

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
        if (poll(&ready, 1, PATIENCE / 1000000) != 1)
            return printf("the descriptor tells of no frame\n"), 1;
        next = xmem_consumer_next(consumer, 0, &frame);
    }
    OK(next);
    OK(xmem_producer_acquire(producer, 100, 0, &slot));
    xmem_pool pool;
    xmem_buffer buffer, read;
    OK(xmem_pool_open(argv[2], &pool));
    OK(xmem_pool_acquire(pool, 64, &buffer));
    const struct handles live = {consumer, frame, producer, slot, pool, buffer};
    bad_arguments(live);

    no_dmabuf(path, frame);
    /* A copy of the structure is the same handle: it ends once. */
    xmem_frame same = frame, other;
    OK(xmem_frame_ref(frame, &other));
    OK(xmem_frame_release(same));
    NONE(xmem_frame_release(frame));
    xmem_frame_info info = XMEM_FRAME_INFO;
    OK(xmem_frame_get(other, &info));
    if (info.n_planes != 2 || info.width != 321 || *(const unsigned char *)info.planes[1].data != 7)
        return printf("the frame is another one\n"), 1;

    /* A thread waits in one consumer, and holds its locks. */
    struct handles forked = live;
    forked.frame = other;
    OK(xmem_consumer_open(path, NULL, &forked.consumer));
    pthread_t threads[4];
    pthread_create(&threads[0], NULL, wait_for_ever, &forked.consumer);
    OK(xmem_producer_wait_for_consumers(producer, 2, PATIENCE));
    struct DLManagedTensorVersioned *tensor;
    OK(xmem_frame_dlpack(other, 0, NULL, &tensor));
    const struct all before = figures(live);
    fork_while_used(forked, tensor, atoi(argv[3]), atoi(argv[4]));
    const struct all after = figures(live);
    if (after.consumer_stats.held != before.consumer_stats.held || after.producer_stats.slots_held != before.producer_stats.slots_held)
        return printf("a child released %u, %u\n", before.consumer_stats.held, before.producer_stats.slots_held), 1;
    close_while_it_waits(forked.consumer);
    pthread_join(threads[0], NULL);
    /* The last holder of the frame. */
    OK(xmem_frame_release(other));
    if (tensor->data[0] != 7)
        return printf("the tensor is another one\n"), 1;
    tensor->deleter(tensor);
    OK(xmem_slot_get(slot, &room));
    memset(room.data, 8, room.size);
    OK(xmem_slot_publish(slot, NULL, 0, NULL));
    OK(xmem_consumer_next(consumer, XMEM_FOREVER, &frame));
    OK(xmem_frame_get(frame, &info));
    if (*(const unsigned char *)info.data != 8)
        return printf("not the frame after the fork\n"), 1;

    /* One waits; another one gets an error, and ends the wait. */
    pthread_create(&threads[0], NULL, wait_for_ever, &consumer);
    close_while_it_waits(consumer);
    pthread_join(threads[0], NULL);
    NONE(xmem_consumer_close(consumer));

    OK(xmem_producer_acquire(producer, 100, 0, &slot));
    OK(xmem_producer_close(producer));
    NONE(xmem_producer_close(producer));
    IS(XMEM_ERROR_HANDLE, xmem_slot_publish(slot, NULL, 0, NULL));
    OK(xmem_slot_release(slot));

    xmem_buffer_info bytes = XMEM_BUFFER_INFO;
    uint32_t index;
    OK(xmem_buffer_get(buffer, &bytes));
    memcpy(bytes.data, "hello", 6);
    OK(xmem_buffer_publish(buffer, &index));
    NONE(xmem_buffer_publish(buffer, &index));
    /* No process writes with the next of the 255 numbers of processes, which are in the highest byte. */
    IS(XMEM_ERROR_NO_PRODUCER, xmem_pool_get(pool, (index + (1u << 24)) % (255u << 24), &read));
    BAD(xmem_pool_set_count(pool, index, 0));
    OK(xmem_pool_get(pool, index, &read));
    OK(xmem_buffer_get(read, &bytes));
    if (bytes.is_writable || strcmp(bytes.data, "hello") != 0)
        return printf("another buffer\n"), 1;
    BAD(xmem_buffer_publish(read, &index));
    OK(xmem_pool_close(pool));
    OK(xmem_buffer_release(read));
    NONE(xmem_buffer_release(read));
    OK(xmem_frame_release(frame));
    /* All of these have ended. */
    struct handles ended = live;
    ended.frame = frame;
    each_is(XMEM_ERROR_HANDLE, ended);
    many_threads(path, argv[2]);
    puts("all errors are errors");
    return 0;
}
