# SPDX-License-Identifier: MPL-2.0

"""Helpers for the tests of channels: a process that echoes messages, and processes that run functions."""

import gc
import hashlib
import multiprocessing
import os
import signal
import time

import xmem

# Not a limit on speed: a test that takes longer hangs.
HANG = 30

# A child has nothing of the test's process but what is passed to it. The server of all children imports these once.
forkserver = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload(["numpy", "pytest", "xmem", "channel_support"])


def wait_until(is_so, what="it"):
    end = time.monotonic() + HANG
    while not is_so():
        assert time.monotonic() < end, f"never happened: {what() if callable(what) else what}"
        time.sleep(0.005)


class Process:
    """A function in another process. The process ends with the block. It is killed if the test failed."""

    def __init__(self, target, *args, context=forkserver):
        self.process = context.Process(target=target, args=args, daemon=True)
        self.process.start()

    @property
    def pid(self):
        return self.process.pid

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.join(HANG)

    def join(self):
        self.process.join(HANG)
        assert self.process.exitcode == 0, f"the child ended with {self.process.exitcode}"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None and self.process.is_alive():
            self.kill()
        self.process.join(HANG)
        if self.process.is_alive():
            self.kill()
            raise AssertionError("the child did not end")


def digest(array):
    return hashlib.blake2b(memoryview(array).cast("B"), digest_size=16).hexdigest()


def echo(path, options=None):
    """Sends all messages back until the channel is closed."""
    with xmem.Channel.connect(path, timeout=HANG, **(options or {})) as channel:
        for obj in channel:
            channel.send(obj)
            del obj


def describe(path):
    """Describes a message by the types of the received objects."""
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        for obj in channel:
            channel.send([(type(one).__name__, digest(one), one.flags.writeable) for one in obj])
            del obj


class Place:
    """A directory for one test, which must be empty at its end."""

    def __init__(self, tmp_path):
        self.dir = tmp_path

    def path(self, name="c"):
        return str(self.dir / f"{name}.sock")

    def wait_for_files(self, files):
        def names():
            return sorted(os.listdir(self.dir))

        wait_until(lambda: names() == files, lambda: f"there are {names()} instead of {files}")

    def assert_clean(self):
        gc.collect()
        # Connections are closed by other threads.
        self.wait_for_files([])
