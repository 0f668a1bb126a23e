# SPDX-License-Identifier: MPL-2.0

"""How long a lossless producer waits for its consumers."""

import asyncio
import threading

import numpy as np
import pytest
from support import HANG, content

import xmem


def fill(producer):
    """Publishes until there is no free slot. Returns the number of frames."""
    for count in range(1000):
        try:
            frame = producer.acquire((8,), timeout=0)
        except xmem.Timeout:
            return count
        # There is a free slot, so this does not wait.
        frame.publish(pts=count, timeout=0)
    raise AssertionError("there is always room")


@pytest.fixture
def producer(pool):
    with xmem.Producer(pool, lossless=True) as producer:
        yield producer


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_wait_for_room_ends(producer, timeout):
    with xmem.Consumer(producer.pool, name="slowpoke") as consumer:
        count = fill(producer)
        for use in (producer.acquire, producer.publish_event):
            with pytest.raises(xmem.Timeout, match=r"no room.* for slowpoke \(process \d+\) to receive"):
                use((8,) if use == producer.acquire else "x", timeout=timeout)
        assert [consumer.recv(HANG).pts for _ in range(count)] == list(range(count))
        producer.acquire((8,), timeout=timeout).publish(pts=count)
        assert consumer.recv(HANG).pts == count
        assert producer.publish_event("x", timeout=timeout) == count + 1


def test_frames_that_were_not_received_before_the_end_are_there_after_it(pool):
    with xmem.Producer(pool, lossless=True) as producer, xmem.Consumer(pool, on_producer_lost="raise") as consumer:
        for number in range(5):
            producer.acquire((1000, 1000 + number)).publish(pts=number)
        producer.end_stream()
        producer.close()
        assert [frame.pts for frame in consumer] == list(range(5))
        assert consumer.stats["missed"] == 0


def test_a_frame_that_found_no_room_can_be_published_later(producer):
    with xmem.Consumer(producer.pool) as consumer:
        late = producer.acquire((60, 80, 3))
        np.asarray(late)[...] = content(1000)
        # Other frames use the free slots.
        count = fill(producer)
        for timeout in (0, 0.05):
            with pytest.raises(xmem.Timeout, match="no room"):
                late.publish(pts=1000, timeout=timeout)
        np.asarray(late)[0, 0, 0] = content(1000)[0, 0, 0]
        for _ in range(count):
            consumer.recv(HANG)
        assert late.publish(pts=1000, timeout=HANG) == count
        assert np.array_equal(consumer.recv(HANG), content(1000))


def test_errors_are_raised_before_the_wait(producer):
    with xmem.Consumer(producer.pool):
        late = producer.acquire((60, 80, 3))
        array = np.asarray(late)
        fill(producer)
        with pytest.raises(xmem.ViewsExist):
            late.publish(timeout=0)
        with pytest.raises(ValueError, match="host memory"):
            late.publish(timeout=0, stream=1)
        with pytest.raises(xmem.Timeout, match="no room"):
            late.publish(timeout=0, trust_views=True)
        del array


def test_a_released_slot_ends_the_wait(producer):
    with xmem.Consumer(producer.pool) as consumer:
        count = fill(producer)
        thread = threading.Thread(target=lambda: [consumer.recv(HANG) for _ in range(count)])
        thread.start()
        producer.acquire((8,), timeout=HANG).publish()
        thread.join(HANG)
        assert consumer.recv(HANG).sequence == count


def test_a_live_pool_does_not_wait(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool):
        for _ in range(100):
            producer.acquire((8,), timeout=0).publish(timeout=0)


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_invalid_times(pool, lossless, timeout):
    with xmem.Producer(pool, lossless=lossless) as producer:
        for use in (lambda: producer.acquire((8,), timeout=timeout), lambda: producer.publish_event("x", timeout=timeout)):
            with pytest.raises(ValueError, match="valid timeout in seconds"):
                use()
        frame = producer.acquire((8,))
        with pytest.raises(ValueError, match="valid timeout in seconds"):
            frame.publish(timeout=timeout)
        assert frame.publish() == 0


def taken_while(producer, feed):
    """A consumer in the event loop in which this producer publishes."""

    async def feed_all():
        await feed()
        producer.end_stream()

    async def take():
        return [frame.pts async for frame in consumer]

    async def run():
        return (await asyncio.gather(take(), feed_all()))[0]

    with xmem.Consumer(producer.pool) as consumer:
        return asyncio.run(run())


def test_both_in_one_event_loop(producer):
    async def feed():
        for seed in range(50):
            frame = await asyncio.to_thread(producer.acquire, (8,), timeout=HANG)
            frame.publish(pts=seed)

    assert taken_while(producer, feed) == list(range(50))


def test_without_waiting_in_an_event_loop(producer):
    async def feed():
        for seed in range(50):
            while True:
                try:
                    frame = producer.acquire((8,), timeout=0)
                    break
                except xmem.Timeout:
                    await asyncio.sleep(0)
            frame.publish(pts=seed)

    assert taken_while(producer, feed) == list(range(50))
