# SPDX-License-Identifier: MPL-2.0

"""Helpers that the tests and their child processes share. Without pytest, which takes as long to import as NumPy."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import xmem

# Not a limit on speed: a test that takes longer hangs.
HANG = 60.0

# The words that describe a frame have numbers. These are the first numbers of an entry, of its slot's place and of its layout.
ENTRY, PLACE, LAYOUT = 0, 100, 200
# The number of a half of a layout's word is this value, plus the number of the layout's first word, plus its index.
HALVES = 1000

# The signal may be ignored if the tests were started in the background, and children inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)


def eventually(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + HANG
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.001)


def content(seed: int, shape: tuple[int, ...] = (60, 80, 3)) -> np.ndarray:
    """The content of a seed. The contents of different seeds differ in almost all bytes."""
    count = int(np.prod(shape))
    lanes = (np.arange(count, dtype=np.uint64) + np.uint64(seed + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return (lanes >> np.uint64(56)).astype(np.uint8).reshape(shape)


def publish(producer: xmem.Producer, seed: int, shape: tuple[int, ...] = (60, 80, 3)) -> int:
    """Publishes the content of a seed. The frame's PTS is the seed."""
    with producer.acquire(shape, np.uint8) as frame:
        np.asarray(frame)[...] = content(seed, shape)
        return frame.publish(pts=seed)


def assert_whole(array: object, seed: int) -> None:
    array = np.asarray(array)
    assert np.array_equal(array, content(seed, array.shape)), f"frame {seed} is torn"


class Child:
    """A role of `children.py` in a child process."""

    def __init__(self, role: str, pool: str) -> None:
        script = Path(__file__).with_name("children.py")
        self.process = subprocess.Popen(
            [sys.executable, script, role, pool],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def reply(self) -> str:
        """The next line of its output."""
        line = self.process.stdout.readline()
        assert line, f"the child ended with {self.process.wait()}"
        return line.strip()

    def send(self, line: str = "go") -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        return self.process.wait(HANG)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(HANG)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        # Commands that were not read do not matter.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
