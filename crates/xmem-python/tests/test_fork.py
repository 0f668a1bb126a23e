# SPDX-License-Identifier: MPL-2.0

"""A forked child inherits memory that it does not own: nothing new is read or written in it."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
from support import HANG, assert_whole, publish

import xmem

WAYS = {
    "asarray": np.asarray,
    "memoryview": memoryview,
    "bytes": bytes,
    "from_dlpack": np.from_dlpack,
    "dlpack": lambda it: it.__dlpack__(max_version=(1, 1)),
    "interface": lambda it: it.__array_interface__,
    "copy": lambda it: it.copy(),
    "cpu": lambda it: it.cpu(),
    "planes": lambda it: it.planes,
}
OF_BUFFERS = {
    "asarray": np.asarray,
    "memoryview": memoryview,
    "cpu_ptr": lambda it: it.cpu_ptr,
    "clone": lambda it: it.clone_ref(),
}

# Objects without memory that belong to the parent.
OF_POOLS = {
    "acquire": lambda it: it.acquire_cpu(10),
    "get": lambda it: it.get(0),
    "get_mut": lambda it: it.get_mut(0),
    "discard": lambda it: it.discard(0),
    "set_ref_count": lambda it: it.set_ref_count(0, 2),
    "add_ref": lambda it: it.add_ref(0),
    "release": lambda it: it.release(0),
}
OF_PRODUCERS = {
    "acquire_frame": lambda it: it.acquire((8,)),
    "event": lambda it: it.publish_event("x"),
    "end": lambda it: it.end_stream(),
    "num_consumers": lambda it: it.num_consumers,
    "wait": lambda it: it.wait_for_consumer(0),
    "caps": lambda it: it.caps,
    "stats": lambda it: it.stats,
}


def use(it, names, results):
    became = {}
    for name in names:
        try:
            became[name] = repr((WAYS | OF_BUFFERS | OF_POOLS | OF_PRODUCERS)[name](it))
        except Exception as error:
            became[name] = type(error).__name__
    results.put(became)


def in_a_child(it, *names):
    """The state of each of these objects in the child."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=use, args=(it, names, results))
    process.start()
    became = results.get()
    process.join(HANG)
    assert process.exitcode == 0
    return became


def refused(names):
    return dict.fromkeys(names, "Forked")


def test_frames(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        publish(producer, 1)
        frame = consumer.recv(HANG)
        assert in_a_child(frame, *WAYS) == refused(WAYS)
        (plane,) = frame.planes
        of_planes = WAYS.keys() - {"planes"}
        assert in_a_child(plane, *of_planes) == refused(of_planes)
        with producer.acquire(format="NV12", width=64, height=48) as written:
            written.publish()
        planar = consumer.recv(HANG)
        assert in_a_child(planar, "planes", "copy") == refused(["planes", "copy"])
        assert in_a_child(planar.planes[1], "asarray") == refused(["asarray"])
        # The parent continues.
        assert_whole(frame, 1)


def test_copies_are_the_child_s_own(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        publish(producer, 1)
        copy = consumer.recv(HANG).copy()
        assert in_a_child(copy, "bytes", "planes") == {"bytes": repr(bytes(copy)), "planes": repr(copy.planes)}


def test_frames_that_are_written(pool):
    ways = ["asarray", "memoryview", "from_dlpack", "planes"]
    with xmem.Producer(pool) as producer:
        with producer.acquire((60, 80, 3)) as frame:
            assert in_a_child(frame, *ways) == refused(ways)
            np.asarray(frame)[...] = 1
            frame.publish()
            assert in_a_child(frame, *ways) == refused(ways)


def test_frames_from_a_channel(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        publish(producer, 1)
        path = pool.replace("p.sock", "c.sock")
        with xmem.Channel(path) as channel, xmem.Channel.connect(path, timeout=HANG) as other:
            channel.send(consumer.recv(HANG), timeout=HANG)
            frame = other.recv(timeout=HANG)
            assert in_a_child(frame, *WAYS) == refused(WAYS)
            assert_whole(frame, 1)


def test_buffers(pool):
    buffers = xmem.BufferPool(pool)
    guard = buffers.acquire_cpu(100)
    assert in_a_child(guard, *OF_BUFFERS) == refused(OF_BUFFERS)
    np.asarray(guard)[:] = 7
    guard = buffers.get(guard.forget())
    assert in_a_child(guard, *OF_BUFFERS) == refused(OF_BUFFERS)
    assert np.asarray(guard).sum() == 700
    guard.release()
    buffers.close()


def test_arrays_are_dropped_while_a_thread_of_the_parent_holds_a_lock(pool):
    with xmem.BufferPool(pool) as buffers:
        guard = buffers.acquire_cpu(8)
        array = np.asarray(guard)
        end = threading.Event()

        def copy():
            while not end.is_set():
                guard.copy_to_cpu().release()

        thread = threading.Thread(target=copy)
        thread.start()
        try:
            # The thread holds the lock at about one fork of 50.
            for _ in range(300):
                child = os.fork()
                if child == 0:
                    del array
                    os._exit(0)
                assert ended(child), "the child waits for the lock"
        finally:
            end.set()
            thread.join()
        del array
        guard.release()


def ended(child):
    """Whether a child ends in time. Otherwise it is killed."""
    end = time.monotonic() + HANG
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.0005)
    return True


def test_pools(pool):
    with xmem.BufferPool(pool) as buffers:
        index = buffers.acquire_cpu(100).forget()
        assert in_a_child(buffers, *OF_POOLS) == refused(OF_POOLS)
        buffers.get(index).release()


def test_producers(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool):
        publish(producer, 1)
        assert in_a_child(producer, *OF_PRODUCERS) == refused(OF_PRODUCERS)
        assert producer.num_consumers == 1 and not producer.stats["eos"]
