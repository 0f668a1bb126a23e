# SPDX-License-Identifier: MPL-2.0

"""A process that reads and may have no more descriptors or address space gets an error that names the limit, and loses nothing."""

import errno
import os
import resource
import time

import numpy as np
import pytest
from channel_support import HANG, Process, forkserver

import xmem

# Each frame is of another size, so it needs a region of its own.
SIZES = [4096 << 2 * n for n in range(6)]


class Shortage:
    """No descriptor, or hardly any address space, is left in this process until `end`."""

    def __init__(self, kind):
        self.kind = getattr(resource, kind)
        self.taken = []
        self.before = resource.getrlimit(self.kind)
        if kind == "RLIMIT_NOFILE":
            most = max(int(it) for it in os.listdir("/proc/self/fd")) + 1
            resource.setrlimit(self.kind, (most, self.before[1]))
            try:
                while True:
                    self.taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError as error:
                assert error.errno == errno.EMFILE
        else:
            with open("/proc/self/statm") as statm:
                pages = int(statm.read().split()[0])
            resource.setrlimit(self.kind, (pages * resource.getpagesize() + (1 << 20), self.before[1]))

    def end(self):
        resource.setrlimit(self.kind, self.before)
        for fd in self.taken:
            os.close(fd)


def until_short(take, kind):
    """Takes with a shortage until there is an error, and the rest without. Returns the first bytes of all that was taken."""
    first = take()
    assert first is not None
    shortage = Shortage(kind)
    got, errors = [first], []
    try:
        while len(got) + len(errors) < len(SIZES) + 2 and len(errors) < 3:
            try:
                got.append(take())
            except xmem.SystemFailure as error:
                errors.append((error.errno, str(error)))
    finally:
        shortage.end()
    end = time.monotonic() + HANG
    while len(got) < len(SIZES):
        try:
            got.append(take())
        except xmem.SystemFailure:
            # The thread of a channel tries again soon.
            assert time.monotonic() < end, "the error stays"
            time.sleep(0.01)
    return [int(np.asarray(it).reshape(-1)[0]) for it in got], errors


def consume(pool, kind, use, results):
    if use == "Channel":
        channel = xmem.Channel.connect(pool, timeout=HANG)
        results.put(until_short(lambda: channel.recv(timeout=HANG), kind))
        channel.close()
        return
    consumer = xmem.Consumer(pool, timeout=HANG, max_held=8)
    if use == "fileno":
        # What event loops use.
        consumer.fileno()
        waited = time.monotonic() + HANG

        def take():
            while (frame := consumer.try_recv()) is None:
                assert time.monotonic() < waited, "nothing came"
            return frame

        results.put(until_short(take, kind))
    else:
        results.put(until_short(lambda: consumer.recv(HANG), kind))


@pytest.mark.parametrize("use", ["live", "lossless", "fileno", "Channel"])
@pytest.mark.parametrize(("kind", "number", "named"), [
    ("RLIMIT_NOFILE", errno.EMFILE, "ulimit -n"),
    ("RLIMIT_AS", errno.ENOMEM, "ulimit -v"),
])
def test_a_limit_at_the_reading_side_is_named(pool, use, kind, number, named):
    results = forkserver.Queue()
    if use == "Channel":
        with xmem.Channel(pool) as channel, Process(consume, pool, kind, use, results):
            for n, size in enumerate(SIZES):
                channel.send(np.full(size, n, np.uint8), timeout=HANG)
            got, errors = results.get(timeout=HANG)
    else:
        with xmem.Producer(pool, lossless=use == "lossless", history=8, max_held=16) as producer:
            with Process(consume, pool, kind, use, results):
                producer.wait_for_consumer(HANG)
                for n, size in enumerate(SIZES):
                    with producer.acquire(size) as frame:
                        np.asarray(frame)[:] = n
                        frame.publish()
                got, errors = results.get(timeout=HANG)
    assert errors, "no error came"
    for error, text in errors:
        assert error == number and named in text, text
    assert got == list(range(len(SIZES)))


def get(pool, indices, kind, results):
    buffers = xmem.BufferPool(pool)
    todo = list(indices)

    def take():
        buf = buffers.get(todo[0])
        todo.pop(0)
        return buf

    results.put(until_short(take, kind))


@pytest.mark.parametrize(("kind", "named"), [("RLIMIT_NOFILE", "ulimit -n"), ("RLIMIT_AS", "ulimit -v")])
def test_a_buffer_that_cannot_be_taken(pool, kind, named):
    results = forkserver.Queue()
    with xmem.BufferPool(pool) as buffers:
        indices = []
        for n, size in enumerate(SIZES):
            buf = buffers.acquire_cpu(size)
            np.asarray(buf)[:] = n
            indices.append(buf.forget())
        with Process(get, pool, indices, kind, results):
            got, errors = results.get(timeout=HANG)
    assert errors and all(named in text for _, text in errors)
    assert got == list(range(len(SIZES)))
