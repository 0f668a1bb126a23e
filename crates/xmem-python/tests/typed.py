# SPDX-License-Identifier: MPL-2.0

"""A program with types, which type checkers read and nobody runs."""

import asyncio
import contextlib
import selectors
from pathlib import Path

import numpy as np
import xmem
import xmem.multiprocessing


def receive(pool: Path) -> int:
    total = 0
    with xmem.Consumer(pool, timeout=5, max_held=2) as consumer:
        selectors.DefaultSelector().register(consumer, selectors.EVENT_READ)
        frame: xmem.Frame
        for frame in consumer:
            if frame.dtype == np.uint16 and frame.timestamp is not None:
                total += int(np.asarray(frame).sum()) + frame.size
            data: bytes = frame.tobytes()
            view = memoryview(frame)
            total += len(data) + view.nbytes
    with xmem.Camera("test", max_rate=5) as camera:
        total += camera.recv(timeout=5).nbytes
    return total


def publish(pool: str) -> None:
    with xmem.Producer(pool, framerate=29.97) as producer:
        with producer.acquire((4, 4), "uint8") as frame:
            np.asarray(frame)[:] = 1
            number: int = frame.publish(pts=0)
            assert number == 0
        producer.end_stream()
    try:
        xmem.query(pool)
    except xmem.Refused as error:
        raise PermissionError from error
    except xmem.SystemFailure as error:
        print(error.errno)


def buffers(pool: Path) -> None:
    with xmem.BufferPool(pool) as opened:
        buf = opened.acquire_cpu(4)
        np.asarray(buf)[:] = 1
        with opened.get(buf.forget()) as got:
            assert memoryview(got).nbytes == got.size


async def tasks(name: str) -> None:
    async with await xmem.Consumer.connect(name) as consumer:
        async for frame in consumer:
            print(frame.shape)
    async with await xmem.Channel.aconnect(name) as channel:
        selectors.DefaultSelector().register(channel, selectors.EVENT_READ)
        async for job in channel:
            await channel.asend(job)


def objects(name: str) -> None:
    with xmem.Channel(name) as channel, contextlib.suppress(xmem.ProducerLost):
        for job in channel:
            channel.send(job, timeout=1)


if __name__ == "__main__":
    xmem.multiprocessing.install(timeout=None)
    asyncio.run(tasks("cam0"))
