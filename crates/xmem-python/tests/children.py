# SPDX-License-Identifier: MPL-2.0

"""Child processes of the tests: children.py ROLE POOL."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
from support import ENTRY, HALVES, HANG, LAYOUT, PLACE, assert_whole, content, publish

import xmem

# The child is killed if its test is killed.
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def reply(line: object) -> None:
    print(line, flush=True)


def read_line() -> str:
    return sys.stdin.readline().strip()


def hold(pool: str) -> None:
    """Holds three views of frames of different kinds, and checks them on command."""
    consumer = xmem.Consumer(pool, timeout=HANG, max_held=4)
    reply("joined")
    frames = [consumer.recv(HANG) for _ in range(3)]
    seeds = [frame.pts for frame in frames]
    views = [np.asarray(frames[0])[10:20, ::2], memoryview(frames[1]), frames[2].planes[0]]
    del frames
    reply(consumer.stats["held"])
    read_line()
    assert np.array_equal(views[0], content(seeds[0])[10:20, ::2])
    assert_whole(views[1], seeds[1])
    assert_whole(views[2], seeds[2])
    reply("whole")
    read_line()


def hold_at_exit(pool: str) -> None:
    """Exits while global names, a cycle and a thread hold frames."""
    global kept
    consumer = xmem.Consumer(pool, timeout=HANG)
    reply("joined")
    frames = [consumer.recv(HANG) for _ in range(3)]
    cycle = {"view": np.asarray(frames[1])}
    cycle["self"] = cycle
    kept = [consumer, np.asarray(frames[0]), cycle]
    view = memoryview(frames[2])
    del frames
    threading.Thread(target=lambda: (view[0, 0, 0], time.sleep(HANG)), daemon=True).start()
    reply("held")
    read_line()


def wait_for_signal(pool: str) -> None:
    """Waits for a frame that is never published, until Ctrl-C."""
    consumer = xmem.Consumer(pool, timeout=HANG)
    try:
        # Ctrl-C is possible from here on.
        reply("joined")
        consumer.recv()
    except KeyboardInterrupt:
        reply("interrupted")


def wait_for_producer(pool: str) -> None:
    try:
        reply("waiting")
        xmem.Consumer(pool)
    except KeyboardInterrupt:
        reply("interrupted")


def wait_for_room(pool: str) -> None:
    """Publishes in a lossless pool until its consumer is too slow, until Ctrl-C."""
    producer = xmem.Producer(pool, lossless=True)
    reply("made")
    producer.wait_for_consumer(HANG)
    try:
        for seed in range(1000):
            publish(producer, seed)
            reply(seed)
    except KeyboardInterrupt:
        reply("interrupted")


def produce(pool: str) -> None:
    """Publishes frames at full speed until a command arrives. Then the stream ends."""
    with xmem.Producer(pool, max_slots=24) as producer:
        reply("made")
        stop = threading.Event()
        threading.Thread(target=lambda: (read_line(), stop.set()), daemon=True).start()
        seed = 0
        while not stop.is_set():
            publish(producer, seed)
            seed += 1
        producer.end_stream()
        reply(seed)
        read_line()


def produce_one(pool: str) -> None:
    """Publishes one frame and waits."""
    producer = xmem.Producer(pool)
    reply("made")
    producer.wait_for_consumer(HANG)
    publish(producer, 7)
    reply("published")
    read_line()
    producer.close()


def read(pool: str) -> None:
    """Checks each frame until the stream ends."""
    consumer = xmem.Consumer(pool, timeout=HANG, max_held=2, on_producer_lost="raise")
    reply("joined")
    count = 0
    for frame in consumer:
        assert_whole(frame, frame.pts)
        count += 1
    reply(count)


def camera(source: str) -> None:
    """Receives a frame for each line of input."""
    with xmem.Camera(source, timeout=HANG) as camera:
        while camera.recv(HANG):
            reply("a frame")
            read_line()


def camera_that_dies(source: str) -> None:
    """Is killed when it has started the command."""
    start = subprocess.Popen

    def start_and_die(*args, **options):
        start(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    subprocess.Popen = start_and_die
    xmem.Camera(source)


def lie(pool: str) -> None:
    """Publishes frames, each with changed words in its description.

    A line of input has the arguments of `acquire`, and the words by their numbers (see `support`).
    """
    producer = xmem.Producer(pool)
    memory = control_memory()
    # The sizes of the fields are those of the core's `Shape`.
    slots, ring = int(memory[2]), int(memory[3])
    places = -(-(32 + 2 * slots) // 8) * 8
    layouts = -(-(places + slots * 4) // 8) * 8
    entries = layouts + 64 * 40
    extensions = entries + ring * 16
    place, before = slice(0, 0), np.empty(0, np.uint64)
    reply("made")
    while line := read_line():
        arguments, lies = json.loads(line)
        # The slot may have been reused.
        memory[place] = before
        with producer.acquire(**arguments) as frame:
            frame.publish(pts=(mark := 1 << 62 | time.monotonic_ns()))
        (found,) = np.flatnonzero(memory == mark)
        entry = (int(found) - entries) // 16
        words = memory[entries + 16 * entry :][:16]
        extension = memory[extensions + 48 * entry :][:34]
        at = places + 4 * int(words[1] & 0xFFFFFFFF)
        place = slice(at, at + 3)
        before = memory[place].copy()
        lies = {int(number): value for number, value in lies.items()}
        if any(number % HALVES >= LAYOUT for number in lies):
            # A row of the table describes several frames. An entry of layout 0 has its own description.
            row = layouts + 40 * (int(words[2] & 0xFFFF) - 1)
            extension[:] = memory[row : row + 34]
            words[2] &= 0xFFFFFFFFFFFF0000
        parts = {ENTRY: words, PLACE: memory[place], LAYOUT: extension}
        for number, value in lies.items():
            if number >= HALVES:
                extension.view(np.uint32)[number - HALVES - LAYOUT] = value
            else:
                first = number // 100 * 100
                parts[first][number - first] = value
        reply("published")


def control_memory() -> np.ndarray:
    """The words of the control memory of this process's pool, writable."""
    with open("/proc/self/maps") as maps:
        (span,) = [line.split()[0] for line in maps if "memfd:xmem-control" in line]
    start, end = (int(it, 16) for it in span.split("-"))
    return np.ctypeslib.as_array((ctypes.c_uint64 * ((end - start) // 8)).from_address(start))


def look(pool: str) -> None:
    """Takes the newest frame, each time with a new consumer, and reads it completely.

    A line of input is the timeout in seconds.
    """
    reply("ready")
    while line := read_line():
        try:
            with xmem.Consumer(pool, start_from="newest") as consumer:
                reply(json.dumps(["frame", read_all(consumer.recv(float(line)))]))
        except xmem.Error as error:
            reply(json.dumps([type(error).__name__, str(error)]))


def read_all(frame: xmem.Frame) -> int:
    """Reads a frame in each possible way. Returns its size."""
    for name in dir(frame):
        if name not in ("shape", "strides", "ndim", "size", "__array_interface__", "__cuda_array_interface__"):
            getattr(frame, name)
    repr(frame), frame.copy()
    for plane in frame.planes:
        assert plane.copy().nbytes == plane.nbytes
        if plane.dtype != "bfloat16":
            assert np.asarray(plane).tobytes() == memoryview(plane).tobytes() == np.from_dlpack(plane).tobytes()
    return frame.nbytes


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
