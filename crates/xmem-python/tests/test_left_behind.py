# SPDX-License-Identifier: MPL-2.0

"""A lossless producer continues after its timeout without a slow consumer, which gets a warning."""

import _thread
import asyncio
import contextlib
import queue
import sys
import warnings

import pytest
from support import HANG, publish

import xmem

LEFT_BEHIND = "too slow for the producer's lossless_timeout, and disconnected"


@pytest.fixture
def producer(pool):
    with xmem.Producer(pool, lossless=True, lossless_timeout=0.2) as producer:
        yield producer


def publish_all(producer, seeds):
    for seed in seeds:
        publish(producer, seed)


def test_left_behind_is_warned_of_and_counted(producer):
    with xmem.Consumer(producer.pool) as consumer:
        publish_all(producer, range(3))
        seeds = [consumer.recv(HANG).pts for _ in range(3)]
        # It waits for the consumer once, and not again.
        publish_all(producer, range(3, 60))
        with pytest.warns(xmem.PoolWarning, match=f"{LEFT_BEHIND} after frame 2. It connects again") as caught:
            seeds.append(consumer.recv(HANG).pts)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        while seeds[-1] < 59:
            seeds.append(consumer.recv(HANG).pts)
        assert seeds == sorted(set(seeds))
        stats = consumer.stats
        assert stats["missed"] == 60 - len(seeds) > 0
        assert stats["reconnects"] == 1


def test_each_time(producer):
    with xmem.Consumer(producer.pool) as consumer:
        seeds = []
        for first in (0, 40, 80):
            publish_all(producer, range(first, first + 40))
            with pytest.warns(xmem.PoolWarning, match=LEFT_BEHIND):
                seeds.append(consumer.recv(HANG).pts)
            while seeds[-1] < first + 39:
                seeds.append(consumer.recv(HANG).pts)
        assert consumer.stats["missed"] == 120 - len(seeds)


def test_kept_frames_are_not_delivered_twice(pool):
    with xmem.Producer(pool, lossless=True, lossless_timeout=0.1, max_slots=12, max_held=2) as producer:
        with xmem.Consumer(pool) as consumer:
            publish_all(producer, range(3))
            seeds = [consumer.recv(HANG).pts for _ in range(3)]
            publish(producer, 3)
            # The producer itself uses up the slots, so this consumer does not delay it.
            kept = []
            while not producer.stats["timed_out"]:
                with contextlib.suppress(xmem.Timeout):
                    kept.append(producer.acquire((8,), timeout=0.1))
            kept.clear()
            with pytest.warns(xmem.PoolWarning, match=LEFT_BEHIND):
                seeds.append(consumer.recv(HANG).pts)
            assert seeds == [0, 1, 2, 3]
            assert consumer.stats["missed"] == 0


def test_another_producer_of_this_process_counts_anew(pool):
    with xmem.Producer(pool, lossless=True, lossless_timeout=0.2) as producer, xmem.Consumer(pool) as consumer:
        publish_all(producer, range(30))
        with pytest.warns(xmem.PoolWarning, match=LEFT_BEHIND):
            consumer.recv(HANG)
        while consumer.recv(HANG).pts < 29:
            pass
        missed = consumer.stats["missed"]
        publish_all(producer, range(30, 60))
        producer.close()
        with xmem.Producer(pool) as other, warnings.catch_warnings():
            warnings.simplefilter("ignore", xmem.PoolWarning)
            publish(other, 100)
            assert consumer.recv(HANG).pts == 100
            assert consumer.stats["missed"] == missed


def test_a_thread_without_python_frames(producer, monkeypatch):
    with xmem.Consumer(producer.pool) as consumer, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        publish_all(producer, range(30))
        taken = queue.SimpleQueue()
        monkeypatch.setattr(sys, "unraisablehook", lambda raised: taken.put(raised.exc_value))
        # The thread's only frame is that of this function, which is not Python code.
        _thread.start_new_thread(map(taken.put, consumer).__next__, ())
        assert taken.get(timeout=HANG).pts < 30
    assert [warning.category for warning in caught] == [xmem.PoolWarning]


def test_left_behind_is_no_end_of_the_stream(producer):
    with xmem.Consumer(producer.pool, on_producer_lost="end") as consumer:
        publish_all(producer, range(30))
        with pytest.raises(xmem.ProducerLost, match="lossless-timeout"):
            list(consumer)


def test_a_warning_that_is_an_error_is_none_of_the_stream(producer):
    with xmem.Consumer(producer.pool) as consumer, warnings.catch_warnings():
        warnings.simplefilter("error")
        publish_all(producer, range(30))
        with pytest.raises(xmem.PoolWarning, match=f"{LEFT_BEHIND} before the first frame"):
            consumer.recv(HANG)
        assert consumer.recv(HANG).pts < 30


async def by_arecv(consumer):
    return await consumer.arecv(HANG)


async def by_iterating(consumer):
    async for frame in consumer:
        return frame


async def by_a_task(consumer):
    return await asyncio.create_task(consumer.arecv(HANG))


@pytest.mark.parametrize("take", [by_arecv, by_iterating, by_a_task])
def test_in_a_loop(pool, take):
    async def once():
        with xmem.Producer(pool, lossless=True, lossless_timeout=0.1) as producer:
            async with await xmem.Consumer.connect(pool) as consumer:
                publish_all(producer, range(30))
                assert (await take(consumer)).pts < 30

    # As outside of tests: a text is printed once for each line.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            asyncio.run(once())
    assert [(str(it.message), it.filename) for it in caught] == [(str(caught[0].message), __file__)] * 3
    assert LEFT_BEHIND in str(caught[0].message)
