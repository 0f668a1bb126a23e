# SPDX-License-Identifier: MPL-2.0

"""The order in which views, frames, consumers, producers, interpreters and processes end."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
from support import HANG, assert_whole, content, eventually, publish

import xmem

# The number of frames that a producer keeps for consumers by default.
HISTORY = 4


def held(producer):
    return [consumer["held"] for consumer in producer.stats["consumers"]]


def churn(producer, frames=200):
    """Uses all free slots many times."""
    for seed in range(1000, 1000 + frames):
        publish(producer, seed)


def test_views_are_not_overwritten_in_another_process(pool, child):
    with xmem.Producer(pool, max_slots=20) as producer:
        reader = child("hold", pool)
        reader.reply()
        producer.wait_for_consumer(HANG)
        seed = 0
        while held(producer) != [3]:
            publish(producer, seed)
            seed += 1
        assert reader.reply() == "3"
        churn(producer)
        reader.send()
        assert reader.reply() == "whole"
        # They also outlive the producer.
        producer.close()
        reader.send()
        assert reader.wait() == 0


def test_held_frames_of_a_killed_producer(pool, child):
    first = child("produce", pool)
    assert first.reply() == "made"
    with xmem.Consumer(pool, max_held=5, timeout=HANG) as consumer:
        frames = [consumer.recv(HANG) for _ in range(5)]
        first.kill()
        while consumer.try_recv() is not None:
            pass
        # Detected, and still valid.
        eventually(lambda: consumer.try_recv() is None and consumer.stats["held"] == 5, "they are not counted")
        assert (consumer.stats["held"], consumer.stats["budget"]) == (5, 5)
        with xmem.Producer(pool) as second:
            while (frame := consumer.try_recv()) is None:
                publish(second, 1)
            assert consumer.stats["reconnects"] == 1
            frames.append(frame)
            del frame
            assert consumer.stats["held"] == 6
            del frames[0]
            assert consumer.stats["held"] == 5
            received = consumer.stats["received"]
            assert received >= 6
            consumer.close()
            frames.clear()
            assert (consumer.stats["held"], consumer.stats["received"]) == (0, received)


def test_a_process_that_is_killed_holds_nothing(pool, child):
    with xmem.Producer(pool, max_slots=20) as producer:
        reader = child("hold", pool)
        reader.reply()
        producer.wait_for_consumer(HANG)
        while held(producer) != [3]:
            publish(producer, 0)
        reader.kill()
        eventually(lambda: producer.stats["consumers"] == [], "it is still there")
        # The number of slots depends on how many of these frames were in the history.
        slots = producer.stats["slots"]
        churn(producer)
        assert producer.stats["slots_held"] == HISTORY
        assert producer.stats["slots"] == slots


def test_an_interpreter_that_exits_holds_nothing(pool, child):
    with xmem.Producer(pool) as producer:
        reader = child("hold_at_exit", pool)
        reader.reply()
        producer.wait_for_consumer(HANG)
        while held(producer) != [3]:
            publish(producer, 0)
        assert reader.reply() == "held"
        reader.send()
        assert reader.wait() == 0
        eventually(lambda: producer.stats["consumers"] == [], "it is still there")


def test_a_frame_outlives_a_producer_that_is_killed(pool, child):
    writer = child("produce_one", pool)
    writer.reply()
    with xmem.Consumer(pool, timeout=HANG, on_producer_lost="raise") as consumer:
        view = np.asarray(consumer.recv(HANG))
        writer.kill()
        with pytest.raises(xmem.ProducerLost):
            consumer.recv(HANG)
    # The consumer is also closed.
    assert_whole(view, 7)
    os.unlink(pool)


def test_a_consumer_rides_over_a_restart(pool, child):
    with xmem.Producer(pool) as producer:
        consumer = xmem.Consumer(pool)
        publish(producer, 1)
        kept = consumer.recv(HANG)
    writer = child("produce_one", pool)
    writer.reply()
    assert consumer.recv(HANG).pts == 7
    assert consumer.stats["reconnects"] == 1
    assert consumer.stats["received"] == 2
    assert_whole(kept, 1)
    writer.send()
    assert writer.wait() == 0


def test_no_view_ever_sees_another_frame(pool, child):
    """Under load: a producer that overtakes its consumers repeatedly, and views that are read late."""
    writer = child("produce", pool)
    writer.reply()
    readers = [child("read", pool) for _ in range(2)]
    assert [reader.reply() for reader in readers] == ["joined"] * 2
    with xmem.Consumer(pool, timeout=HANG) as consumer:
        views = []
        for number in range(500):
            frame = consumer.recv(HANG)
            if number == 250:
                # Overtaken certainly: there are fewer slots.
                eventually(lambda: xmem.query(pool)["published"] > frame.pts + 100, "no more frames are published")
            views.append((frame.pts, np.asarray(frame) if number % 2 else memoryview(frame)))
            del frame
            if len(views) == 6:
                for seed, view in views:
                    assert_whole(view, seed)
                del view
                views.clear()
        assert consumer.stats["missed"] > 0
        assert consumer.stats["copied"] == 0
    writer.send()
    writer.reply()
    for reader in readers:
        assert int(reader.reply()) > 0
        assert reader.wait() == 0
    writer.send()
    assert writer.wait() == 0


@pytest.mark.parametrize("role", ["wait_for_signal", "wait_for_producer", "wait_for_room"])
def test_ctrl_c_ends_every_wait(pool, child, role):
    others = []
    if role == "wait_for_signal":
        others.append(xmem.Producer(pool))
    waiting = child(role, pool)
    waiting.reply()
    if role == "wait_for_room":
        others.append(xmem.Consumer(pool, timeout=HANG))
        while waiting.process.poll() is None and not others[0].stats["missed"] and backlog(pool) < 8:
            waiting.reply()
    time.sleep(0.1)
    waiting.process.send_signal(signal.SIGINT)
    lines = iter(waiting.reply, "interrupted")
    for _ in lines:
        pass
    assert waiting.wait() == 0
    for other in others:
        other.close()


def backlog(pool):
    stats = xmem.query(pool)
    return stats["published"] - sum(consumer["received"] for consumer in stats["consumers"])


def test_other_threads_run_while_one_waits(pool):
    with xmem.Producer(pool), xmem.Consumer(pool) as consumer:
        thread = threading.Thread(target=lambda: pytest.raises(xmem.Closed, consumer.recv))
        thread.start()
        for _ in range(100):
            time.sleep(0.0005)
        assert thread.is_alive()
        assert consumer.stats["received"] == 0
        consumer.close()
        thread.join(HANG)
        assert not thread.is_alive()


def test_threads_share_a_consumer(pool):
    with xmem.Producer(pool, lossless=True) as producer, xmem.Consumer(pool) as consumer:
        seeds = []

        def take():
            for frame in consumer:
                assert_whole(frame, frame.pts)
                seeds.append(frame.pts)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for seed in range(300):
            publish(producer, seed)
        producer.end_stream()
        for thread in threads:
            thread.join(HANG)
        assert sorted(seeds) == list(range(300))


def use_inherited(consumer, frame, view, producer, results):
    errors = []
    for use in (
        consumer.recv,
        consumer.try_recv,
        lambda: producer.acquire((1,)),
    ):
        try:
            use()
        except xmem.Forked as error:
            errors.append(str(error))
    # It can be read as long as the parent holds it.
    results.put((errors, bool(np.array_equal(view, content(1))), frame.pts))
    consumer.close()
    producer.close()


def test_fork(pool):
    """Inherited objects have no effect in a forked child, and do not harm other processes."""
    context = multiprocessing.get_context("fork")
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        publish(producer, 1)
        frame = consumer.recv(HANG)
        view = np.asarray(frame)
        results = context.SimpleQueue()
        process = context.Process(target=use_inherited, args=(consumer, frame, view, producer, results))
        process.start()
        errors, same, pts = results.get()
        process.join(HANG)
        assert process.exitcode == 0
        assert len(errors) == 3 and all("create a new one after fork" in error for error in errors)
        assert same and pts == 1
        # The end of the child ended nothing here.
        assert consumer.stats["held"] == 1
        churn(producer)
        assert_whole(view, 1)
        publish(producer, 2)
        seeds = iter(lambda: consumer.recv(HANG).pts, 2)
        assert all(seed >= 1000 for seed in seeds)


def take_one(pool, queue):
    with xmem.Consumer(pool, timeout=HANG) as consumer:
        queue.put("joined")
        frame = consumer.recv(HANG)
        queue.put((frame.pts, bool(np.array_equal(frame, content(frame.pts)))))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_join_by_themselves(pool, method):
    context = multiprocessing.get_context(method)
    with xmem.Producer(pool) as producer:
        # The parent uses its own consumer first.
        with xmem.Consumer(pool) as consumer:
            publish(producer, 0)
            consumer.recv(HANG)
        queue = context.SimpleQueue()
        processes = [context.Process(target=take_one, args=(pool, queue)) for _ in range(2)]
        for process in processes:
            process.start()
        assert [queue.get() for _ in processes] == ["joined"] * 2
        publish(producer, 5)
        assert [queue.get() for _ in processes] == [(5, True)] * 2
        for process in processes:
            process.join(HANG)
            assert process.exitcode == 0


@pytest.mark.parametrize("way", ["published", "closed", "both"])
def test_a_written_frame_keeps_no_producer(pool, way):
    def write():
        producer = xmem.Producer(pool)
        frame = producer.acquire((8,))
        if way != "closed":
            frame.publish()
        if way != "published":
            with frame:
                pass
        return frame

    frame = write()
    # No other producer exists any more; otherwise this raises PoolInUse.
    with xmem.Producer(pool):
        assert pool in repr(frame)
        with pytest.raises(xmem.Error, match="without publishing" if way != "published" else "already published"):
            frame.publish()
    if way == "published":
        assert np.asarray(frame).shape == (8,)
