# SPDX-License-Identifier: MPL-2.0

"""Writing frames, and frames that must not be written any more."""

import fractions
import threading

import numpy as np
import pytest
from support import HANG, assert_whole, content, publish

import xmem


def test_views_that_could_write_keep_a_frame_from_being_published(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        with producer.acquire((60, 80, 3)) as frame:
            views = [np.asarray(frame)[1:], memoryview(frame), np.from_dlpack(frame).T, np.asarray(frame.planes[0])]
            assert views[0].flags.writeable and views[2].flags.writeable
            while views:
                with pytest.raises(xmem.ViewsExist, match=f"{len(views)} array.*del array.*trust_views"):
                    frame.publish()
                views.pop()
            np.asarray(frame)[...] = content(1)
            assert frame.publish() == 0
            with pytest.raises(xmem.Error, match="already published"):
                frame.publish()
            # A view that is created now is read-only.
            late = np.asarray(frame)
            assert not late.flags.writeable
            assert_whole(late, 1)
            with pytest.raises(BufferError, match="before version 1"):
                frame.__dlpack__()
        assert_whole(consumer.recv(HANG), 1)
        assert_whole(late, 1)


def test_views_that_are_trusted(pool):
    with xmem.Producer(pool, history=1) as producer, xmem.Consumer(pool) as consumer:
        with producer.acquire((60, 80, 3)) as frame:
            view = np.asarray(frame)
            view[...] = content(1)
            frame.publish(trust_views=True)
        del frame
        # The slot is not reused while the view exists.
        for seed in range(2, 300):
            publish(producer, seed)
        assert_whole(view, 1)
        assert consumer.stats["received"] == 0


def test_a_frame_that_is_not_published_is_given_back(pool):
    with xmem.Producer(pool) as producer:
        with producer.acquire((1000,)) as frame:
            pass
        assert producer.stats["slots_held"] == 0
        with pytest.raises(xmem.Closed, match="without publishing"):
            frame.publish()
        for use in (memoryview, np.asarray, np.from_dlpack):
            with pytest.raises(xmem.Closed, match="`with` block"):
                use(frame)
        with pytest.raises(AttributeError):
            producer.acquire((1,)).planes[0].__array_interface__  # noqa: B018
        # But not while a view exists.
        with producer.acquire((1000,)) as frame:
            view = np.asarray(frame)
        assert producer.stats["slots_held"] == 1
        view[...] = 1
        del view
        assert producer.stats["slots_held"] == 0
        with pytest.raises(ZeroDivisionError), producer.acquire((1000,)) as frame:
            1 / 0
        assert producer.stats["published"] == 0
        assert producer.stats["slots_held"] == 0


def test_frames_outlive_their_producer(pool):
    producer = xmem.Producer(pool)
    consumer = xmem.Consumer(pool)
    publish(producer, 1)
    writable = producer.acquire((60, 80, 3))
    view = np.asarray(writable)
    frame = consumer.recv(HANG)
    producer.close()
    view[...] = content(2)
    del view
    with pytest.raises(xmem.Closed):
        writable.publish()
    with pytest.raises(xmem.Closed, match="producer is closed"):
        producer.acquire((1,))
    del producer, writable
    consumer.close()
    assert_whole(frame, 1)


def test_caps(pool):
    with xmem.Producer(pool, framerate=30) as producer:
        assert producer.caps is None
        with producer.acquire(format="NV12", width=320, height=240) as frame:
            frame.publish()
        assert producer.caps == (
            "video/x-raw, format=(string)NV12, width=(int)320, height=(int)240, interlace-mode=(string)progressive, "
            "pixel-aspect-ratio=(fraction)1/1, framerate=(fraction)30/1"
        )
        with producer.acquire((2, 3), "float32") as frame:
            frame.publish()
        assert "dimensions=(string)3:2, types=(string)float32" in producer.caps
    with xmem.Producer(pool, caps="my/format, a=1") as producer:
        with producer.acquire((2, 3), "float32") as frame:
            frame.publish()
        assert producer.caps == "my/format, a=1"
        with xmem.Consumer(pool, start_from="newest") as consumer:
            assert consumer.recv(HANG).caps == "my/format, a=1"
            assert consumer.caps == "my/format, a=1"


def test_frames_of_several_kinds_in_turn(pool):
    """The metadata of a frame does not appear in the next one."""
    kinds = [
        ({"shape": (2, 3), "dtype": "uint8"}, (2, 3), "uint8", "dimensions=(string)3:2, types=(string)uint8"),
        ({"shape": (2, 3), "dtype": "int8"}, (2, 3), "int8", "types=(string)int8"),
        ({"shape": [3, 2], "dtype": np.int8}, (3, 2), "int8", "dimensions=(string)2:3"),
        ({"shape": (3, 2, 1), "dtype": "int8"}, (3, 2, 1), "int8", "dimensions=(string)1:2:3"),
        ({"shape": 6}, (6,), "uint8", "dimensions=(string)6"),
        ({"shape": np.int64(6)}, (6,), "uint8", "dimensions=(string)6"),
        ({"format": "RGB", "width": 4, "height": 2}, (2, 4, 3), "uint8", "format=(string)RGB, width=(int)4, height=(int)2"),
        ({"format": "RGB", "width": 2, "height": 4}, (4, 2, 3), "uint8", "width=(int)2, height=(int)4"),
        ({"format": "BGR", "width": 2, "height": 4}, (4, 2, 3), "uint8", "format=(string)BGR"),
    ]
    with xmem.Producer(pool, history=1) as producer, xmem.Consumer(pool) as consumer:
        for wanted, shape, dtype, caps in kinds * 2:
            for _ in range(2):
                with producer.acquire(**wanted) as writable:
                    assert (writable.shape, writable.dtype) == (shape, dtype)
                    writable.publish()
                frame = consumer.recv(HANG)
                assert (frame.shape, frame.dtype) == (shape, dtype)
                assert caps in frame.caps


@pytest.mark.parametrize(
    ("framerate", "text"), [(None, "0/1"), (25, "25/1"), ((30000, 1001), "30000/1001"), (fractions.Fraction(15, 2), "15/2")]
)
def test_framerates(pool, framerate, text):
    with xmem.Producer(pool, framerate=framerate) as producer:
        assert producer.acquire((1,)).caps.endswith(f"framerate=(fraction){text}")


def test_a_lossless_pool_waits(pool):
    with xmem.Producer(pool, lossless=True) as producer, xmem.Consumer(pool) as consumer:
        thread = threading.Thread(target=lambda: [publish(producer, seed) for seed in range(100)] and None)
        thread.start()
        for seed in range(100):
            frame = consumer.recv(HANG)
            assert frame.pts == seed
            assert_whole(frame, seed)
        thread.join()


def test_a_lossless_pool_waits_only_for_so_long(pool):
    with xmem.Producer(pool, lossless=True, lossless_timeout=0.3) as producer:
        with xmem.Consumer(pool, on_producer_lost="raise") as consumer:
            for seed in range(50):
                publish(producer, seed)
            with pytest.raises(xmem.ProducerLost, match="lossless-timeout"):
                while True:
                    consumer.recv(HANG)
        assert producer.stats["timed_out"] == 1


def test_release_of_slots_at_the_limit(pool):
    with xmem.Producer(pool, history=1, max_slots=4) as producer:
        kept = [producer.acquire((10,)) for _ in range(4)]
        with pytest.raises(xmem.PoolFull, match="all 4 slots"):
            producer.acquire((10,))
        kept.pop()
        producer.acquire((10,))


def test_threads_with_frames_of_their_own_caps(pool):
    with xmem.Producer(pool, lossless=True) as producer, xmem.Consumer(pool) as consumer:

        def feed(size):
            for _ in range(100):
                with producer.acquire(format="GRAY8", width=size, height=size) as frame:
                    frame.publish()

        threads = [threading.Thread(target=feed, args=(size,)) for size in (16, 32, 48)]
        for thread in threads:
            thread.start()
        for _ in range(300):
            frame = consumer.recv(HANG)
            assert f"width=(int){frame.width}," in frame.caps
        for thread in threads:
            thread.join()


def test_views_come_and_go_while_others_try_to_publish(pool):
    """Errors are raised without the lock that views need."""
    with xmem.Producer(pool) as producer, producer.acquire((1000,)) as frame:
        kept = memoryview(frame)
        stop = threading.Event()
        refused = 0

        def publish_in_vain():
            nonlocal refused
            while not stop.is_set():
                with pytest.raises(xmem.ViewsExist):
                    frame.publish()
                refused += 1

        threads = [threading.Thread(target=publish_in_vain) for _ in range(2)]
        for thread in threads:
            thread.start()
        while refused < 2000:
            memoryview(frame).release()
        stop.set()
        for thread in threads:
            thread.join()
        del kept


def test_waiting_for_several_consumers(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool):
        producer.wait_for_consumer(0)
        producer.wait_for_consumer(0, count=0)
        with pytest.raises(xmem.Timeout, match=r"1 of 2 consumer\(s\) of pool"):
            producer.wait_for_consumer(0, count=2)
        with pytest.raises(ValueError, match="-1 is not between 0"):
            producer.wait_for_consumer(0, count=-1)
        waited = threading.Event()
        thread = threading.Thread(target=lambda: (producer.wait_for_consumer(HANG, count=3), waited.set()))
        thread.start()
        with xmem.Consumer(pool), xmem.Consumer(pool):
            assert waited.wait(HANG)
        thread.join()
