# SPDX-License-Identifier: MPL-2.0

"""Consumers in an event loop."""

import asyncio
import os
import select
import threading
import time

import pytest
from support import HANG, assert_whole, publish

import xmem


def test_async_for(pool):
    async def main():
        with xmem.Producer(pool, lossless=True) as producer:
            consumer = await xmem.Consumer.connect(pool, timeout=HANG)
            thread = threading.Thread(target=feed, args=(producer,))
            thread.start()
            seeds = []
            async with consumer:
                async for frame in consumer:
                    assert_whole(frame, frame.pts)
                    seeds.append(frame.pts)
            thread.join()
            assert seeds == list(range(200))

    def feed(producer):
        for seed in range(200):
            if seed % 50 == 0:
                # Lets the loop sleep from time to time.
                time.sleep(0.02)
            publish(producer, seed)
        producer.end_stream()

    asyncio.run(main())


def test_the_error_has_the_given_timeout(pool):
    async def main():
        with pytest.raises(xmem.NoProducer, match=r"in 0\.25 s: start one"):
            await xmem.Consumer.connect(pool, timeout=0.25)

    asyncio.run(main())


def test_tasks_get_frames_in_the_order_of_their_requests(pool):
    async def main():
        with xmem.Producer(pool, lossless=True) as producer, xmem.Consumer(pool, max_held=8) as consumer:
            for first in range(0, 80, 8):
                waiting = [asyncio.create_task(consumer.arecv(HANG)) for _ in range(8)]
                # All tasks are waiting.
                await asyncio.sleep(0)
                # A cancelled task is skipped.
                waiting.pop(3).cancel()
                for seed in range(first, first + 7):
                    publish(producer, seed)
                assert [frame.pts for frame in await asyncio.gather(*waiting)] == list(range(first, first + 7))

    asyncio.run(main())


def test_other_tasks_go_on_and_waits_can_be_cancelled(pool):
    async def main():
        with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
            with pytest.raises(xmem.Timeout, match=r"no frame arrived in 0\.05 s"):
                await consumer.arecv(0.05)
            waiting = asyncio.create_task(consumer.arecv(HANG))
            # If each of these turns of the loop blocked, the timeout would have passed.
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            both = [asyncio.create_task(consumer.arecv(HANG)) for _ in range(2)]
            await asyncio.sleep(0.01)
            publish(producer, 1)
            publish(producer, 2)
            assert sorted(frame.pts for frame in await asyncio.gather(*both)) == [1, 2]

    asyncio.run(main())


def test_connect_waits_for_a_producer(pool):
    async def main():
        with pytest.raises(xmem.NoProducer):
            await xmem.Consumer.connect(pool, timeout=0.3)
        waiting = asyncio.create_task(xmem.Consumer.connect(pool))
        await asyncio.sleep(0.05)
        with xmem.Producer(pool) as producer:
            async with await waiting as consumer:
                publish(producer, 1)
                assert (await consumer.arecv(HANG)).pts == 1

    asyncio.run(main())


def test_over_a_restart_of_the_producer(pool):
    async def main():
        producer = xmem.Producer(pool)
        async with await xmem.Consumer.connect(pool) as consumer:
            publish(producer, 1)
            assert (await consumer.arecv(HANG)).pts == 1
            waiting = asyncio.create_task(consumer.arecv(HANG))
            await asyncio.sleep(0)
            producer.close()
            # Longer than one attempt to find a producer.
            await asyncio.sleep(1.2)
            assert not waiting.done()
            with xmem.Producer(pool) as producer:
                publish(producer, 2)
                assert (await waiting).pts == 2
                assert consumer.stats["reconnects"] == 1

    asyncio.run(main())


def test_the_descriptor(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        fd = consumer.fileno()
        assert consumer.fileno() == fd

        def readable(timeout):
            return bool(select.select([consumer], [], [], timeout)[0])

        def empty():
            assert consumer.try_recv() is None
            # It may be readable once more without a frame, because data of a join can come later.
            end = time.monotonic() + HANG
            while readable(0):
                assert consumer.try_recv() is None
                assert time.monotonic() < end, "always readable"

        empty()
        publish(producer, 1)
        while True:
            assert readable(HANG)
            if (frame := consumer.try_recv()) is not None:
                break
        assert frame.pts == 1
        empty()
        # Waiting in recv at the same time also works.
        timer = threading.Timer(0.05, publish, (producer, 2))
        timer.start()
        assert consumer.recv(HANG).pts == 2
        timer.join()
        producer.end_stream()
        assert readable(HANG)
    # A wait ends when the consumer is closed.
    assert bool(select.select([fd], [], [], HANG)[0])
    del consumer
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_waiting_loop_costs_nothing(pool):
    async def main():
        with xmem.Producer(pool), xmem.Consumer(pool) as consumer:
            assert consumer.try_recv() is None
            turns = 0
            original = consumer._wake

            def count(waiting):
                nonlocal turns
                turns += 1
                original(waiting)

            consumer._wake = count
            with pytest.raises(xmem.Timeout):
                await consumer.arecv(0.5)
            assert turns < 5

    asyncio.run(main())
