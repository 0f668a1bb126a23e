# SPDX-License-Identifier: MPL-2.0

"""Hands 1080p RGB frames to a second process in the ways that Python has, side by side in one run.

Each way has the same work to do: a producer fills a frame of its own at a steady rate, of which it writes only the time into
the first bytes, and a consumer in another process has it as an array and reads the first and the last byte.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from multiprocessing import shared_memory

import numpy as np

SHAPE = (1080, 1920, 3)
SIZE = int(np.prod(SHAPE))
SLOTS = 8


class Queue:
    """multiprocessing.Queue with NumPy arrays: pickled, and copied through a pipe."""

    name = "multiprocessing.Queue"
    copies = True

    def __init__(self, context, _directory):
        self.queue = context.Queue(SLOTS)

    def open_producer(self):
        self.frame = np.zeros(SHAPE, np.uint8)

    def send(self, stamp):
        stamp(self.frame)
        # The queue pickles in another thread, so a frame must not be written again before that.
        self.queue.put(self.frame.copy() if self.queue.qsize() else self.frame)

    def finish(self):
        self.queue.put(None)

    def frames(self):
        while (frame := self.queue.get()) is not None:
            yield frame


class SharedMemory:
    """multiprocessing.shared_memory by hand: a ring of slots and a pipe for their numbers, without a check of readers."""

    name = "shared_memory by hand"
    copies = False

    def __init__(self, context, _directory):
        self.memory = shared_memory.SharedMemory(create=True, size=SIZE * SLOTS)
        self.reader, self.writer = context.Pipe(duplex=False)
        self.owner = True

    def __getstate__(self):
        return self.memory.name, self.reader, self.writer

    def __setstate__(self, state):
        name, self.reader, self.writer = state
        self.memory = shared_memory.SharedMemory(name)
        self.owner = False

    def slots(self):
        return [np.ndarray(SHAPE, np.uint8, self.memory.buf, SIZE * slot) for slot in range(SLOTS)]

    def open_producer(self):
        self.ring, self.next = self.slots(), 0

    def send(self, stamp):
        stamp(self.ring[self.next])
        self.writer.send_bytes(self.next.to_bytes(1, "little"))
        self.next = (self.next + 1) % SLOTS

    def finish(self):
        self.writer.send_bytes(b"\xff")
        del self.ring

    def frames(self):
        ring = self.slots()
        while (slot := self.reader.recv_bytes()[0]) != 255:
            yield ring[slot]

    def close(self):
        self.memory.close()
        self.memory.unlink()


class Torch:
    """torch.multiprocessing.Queue: each tensor is moved into a file in shared memory, whose descriptor is passed on."""

    name = "torch.multiprocessing.Queue"
    copies = True

    def __init__(self, _context, _directory):
        import torch.multiprocessing

        self.queue = torch.multiprocessing.get_context("spawn").Queue(SLOTS)
        self.done = torch.multiprocessing.get_context("spawn").Event()

    def open_producer(self):
        import torch

        self.empty = lambda: torch.empty(SHAPE, dtype=torch.uint8)

    def send(self, stamp):
        tensor = self.empty()
        stamp(tensor.numpy())
        self.queue.put(tensor)

    def finish(self):
        self.queue.put(None)
        # A tensor's memory has to stay until the receiver has opened it.
        self.done.wait()

    def frames(self):
        while (tensor := self.queue.get()) is not None:
            yield tensor.numpy()
        self.done.set()


class ZeroMQ:
    """ZeroMQ over a Unix socket, without copies on its own side of the socket."""

    name = "ZeroMQ, ipc"
    copies = True

    def __init__(self, _context, directory):
        self.address = f"ipc://{directory}/zmq"

    def open_producer(self):
        import zmq

        self.socket = zmq.Context().socket(zmq.PUSH)
        self.socket.setsockopt(zmq.SNDHWM, SLOTS)
        self.socket.bind(self.address)

    def send(self, stamp):
        frame = np.zeros(SHAPE, np.uint8)
        stamp(frame)
        self.socket.send(frame, copy=False)

    def finish(self):
        self.socket.send(b"")

    def frames(self):
        import zmq

        socket = zmq.Context().socket(zmq.PULL)
        socket.connect(self.address)
        while len(message := socket.recv(copy=False)):
            yield np.frombuffer(message, np.uint8).reshape(SHAPE)


class Xmem:
    """This module: the frame is written where the consumer reads it."""

    name = "xmem"
    copies = False

    def __init__(self, _context, directory):
        self.pool = f"{directory}/bench.sock"

    def open_producer(self):
        import xmem

        self.producer = xmem.Producer(self.pool)
        self.producer.wait_for_consumer(60)

    def send(self, stamp):
        with self.producer.acquire(SHAPE, "uint8") as frame:
            stamp(np.asarray(frame))
            frame.publish()

    def finish(self):
        self.producer.end_stream()
        while self.producer.num_consumers:
            time.sleep(0.001)
        self.producer.close()

    def frames(self):
        import xmem

        with xmem.Consumer(self.pool, timeout=60) as consumer:
            for frame in consumer:
                yield np.asarray(frame)


WAYS = [Queue, SharedMemory, Torch, ZeroMQ, Xmem]


def consume(way, results):
    """Latencies in nanoseconds, and processor time of the whole process."""
    latencies, start = [], None
    for frame in way.frames():
        sent = int(frame[0, 0:3].reshape(-1)[:8].view(np.uint64)[0])
        frame[-1, -1, -1]
        latencies.append(time.monotonic_ns() - sent)
        # The first frames open memory and warm caches.
        if len(latencies) == WARM:
            start = time.process_time_ns()
    results.send((latencies[WARM:], time.process_time_ns() - start))


WARM = 30


def measure(make, seconds, fps):
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="xm") as directory:
        way = make(context, directory)
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=consume, args=(way, writer))
        process.start()
        way.open_producer()
        # It has to be there, whichever way it joins.
        time.sleep(1.0 if make is Torch else 0.5)

        def stamp(frame):
            frame[0, 0:3].reshape(-1)[:8].view(np.uint64)[0] = time.monotonic_ns()

        count = WARM + int(seconds * fps)
        next_at = time.monotonic()
        for number in range(count):
            if number == WARM:
                start = time.process_time_ns()
            way.send(stamp)
            next_at += 1 / fps
            time.sleep(max(0.0, next_at - time.monotonic()))
        producer_cpu = time.process_time_ns() - start
        box = []
        thread = threading.Thread(target=lambda: box.append(reader.recv()))
        thread.start()
        way.finish()
        thread.join()
        process.join()
        if hasattr(way, "close"):
            way.close()
        (latencies, consumer_cpu), frames = box[0], count - WARM
        ordered = sorted(latencies)
        return {
            "p50": ordered[len(ordered) // 2] / 1e3,
            "p99": ordered[len(ordered) * 99 // 100] / 1e3,
            "producer": producer_cpu / frames / 1e3,
            "consumer": consumer_cpu / frames / 1e3,
            "arrived": len(latencies) / frames,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--fps", type=float, default=60)
    parser.add_argument("--by-hand-only", action="store_true", help="leave out the ways that copy")
    options = parser.parse_args()
    ways = [way for way in WAYS if not (way.copies and options.by_hand_only)]
    figures = {way: [] for way in ways}
    for number in range(options.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            figures[way].append(measure(way, options.seconds, options.fps))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    medians = {
        way: {key: statistics.median(it[key] for it in rounds) for key in rounds[0]} for way, rounds in figures.items()
    }
    for it in medians.values():
        it["both"] = it["producer"] + it["consumer"]
    print(
        f"Python {sys.version.split()[0]}, {os.cpu_count()} cores; 1080p RGB at {options.fps:g} frames a second, medians of "
        f"{options.rounds} rounds of {options.seconds:g} s\n"
    )
    keys = ["p50", "p99", "producer", "consumer", "both"]
    print("| | p50 µs | p99 µs | CPU producer µs | CPU consumer µs | CPU both µs | arrived |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for way, it in medians.items():
        print(f"| {way.name} | {' | '.join(f'{it[key]:.1f}' for key in keys)} | {it['arrived']:.2f} |")
    xmem = medians[Xmem]
    others = {"by hand / xmem": medians[SharedMemory]}
    if copying := [way for way in ways if way.copies]:
        others["the best that copies / xmem"] = {key: min(medians[way][key] for way in copying) for key in keys}
    for label, other in others.items():
        print(f"| **{label}** | {' | '.join(f'{other[key] / xmem[key]:.2f}' for key in keys)} | |")


if __name__ == "__main__":
    main()
