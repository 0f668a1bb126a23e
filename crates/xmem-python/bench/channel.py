#!/usr/bin/env python3
# SPDX-License-Identifier: MPL-2.0

"""A nested dict of arrays, 100 MB, to a second process and looked at there: Channel.send against multiprocessing.Queue.

Side by side: each way has its turn in every round, in an order that changes. Ratios are what counts; times are of one
machine.
The receiver sums up one element of each page of each array, so that what is mapped and not copied is paid for too.

    cargo xtask python --bench objects [-- [--rounds 15] [--megabytes 100] [--json]]
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time

import numpy as np

import xmem


NAMES = {
    "queue": "multiprocessing.Queue",
    "channel": "Channel.send",
    "room": "the same, of Channel.room",
}


def message(megabytes, empty):
    """Ten layers of four arrays each, and some small things."""
    rest = megabytes * 1_000_000
    layers = []
    for number in range(10):
        layer = {"name": f"layer{number}", "scale": np.float32(number), "shape": (1, 2, 3)}
        for part in range(4):
            a = empty((rest // 160, 4), "u1")
            a[:] = number * 4 + part
            layer[f"w{part}"] = a
        layers.append(layer)
    return {"layers": layers, "meta": {"step": 1, "tags": ["a", "b"]}}


def look(obj):
    return sum(int(a[::1024].sum()) for layer in obj["layers"] for a in layer.values() if isinstance(a, np.ndarray))


def cpu():
    return time.process_time_ns()


def child(path, queue, turns, answers):
    """Takes messages by the queue or by the channel, on command; answers when it has looked at one."""
    channels = {
        "channel": xmem.Channel.connect(path, timeout=60),
        "room": xmem.Channel.connect(path + ".room", timeout=60),
    }
    answers.send("ready")
    while (way := turns.recv()) is not None:
        start = cpu()
        obj = queue.get() if way == "queue" else channels[way].recv(timeout=60)
        total = look(obj)
        done = time.monotonic_ns()
        del obj
        answers.send((total, done, cpu() - start))
    for channel in channels.values():
        channel.close()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--megabytes", type=int, default=100)
    arguments.add_argument("--json", action="store_true")
    arguments = arguments.parse_args()

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "bench.sock")
        # One for each way, so that neither uses what the other one made.
        channels = {"channel": xmem.Channel(path), "room": xmem.Channel(path + ".room")}
        queue = context.Queue()
        (turns, their_turns), (answers, their_answers) = context.Pipe(), context.Pipe()
        process = context.Process(target=child, args=(path, queue, their_turns, their_answers))
        process.start()
        assert answers.recv() == "ready"

        plain = message(arguments.megabytes, np.empty)
        wanted = look(plain)
        size = sum(a.nbytes for layer in plain["layers"] for a in layer.values() if isinstance(a, np.ndarray))
        ways = ["queue", "channel", "room"]
        results = {way: [] for way in ways}
        for number in range(arguments.rounds + 2):
            for way in ways[number % 3 :] + ways[: number % 3]:
                # Data in the channel's memory is written there in the first place.
                obj = message(arguments.megabytes, channels[way].room(size + 64 * 64).empty) if way == "room" else plain
                turns.send(way)
                time.sleep(0.02)
                used, start = cpu(), time.monotonic_ns()
                queue.put(obj) if way == "queue" else channels[way].send(obj)
                total, done, theirs = answers.recv()
                assert total == wanted, "what came is what was sent"
                # The first two rounds make memory and caches.
                if number >= 2:
                    results[way].append((done - start, cpu() - used + theirs))
                del obj
        turns.send(None)
        for channel in channels.values():
            channel.close()
        process.join()

    medians = {way: [statistics.median(one[i] for one in results[way]) / 1e6 for i in (0, 1)] for way in ways}
    ratios = {
        way: [statistics.median(q[i] / c[i] for q, c in zip(results["queue"], results[way])) for i in (0, 1)]
        for way in ways
    }
    if arguments.json:
        print(json.dumps({"bytes": size, "rounds": arguments.rounds, "ms": medians, "ratios": ratios}))
        return
    print(f"{size / 1e6:.0f} MB in 40 arrays, {arguments.rounds} rounds, medians")
    print(f"{'':30}{'latency':>14}{'CPU, both':>14}{'latency':>12}{'CPU':>10}")
    for way in ways:
        (latency, used), (faster, less) = medians[way], ratios[way]
        print(f"{NAMES[way]:30}{latency:11.2f} ms{used:11.2f} ms{faster:10.1f} x{less:8.1f} x")


if __name__ == "__main__":
    main()
