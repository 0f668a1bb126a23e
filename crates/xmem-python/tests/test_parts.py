# SPDX-License-Identifier: MPL-2.0

"""Frames in several parts, and pictures of which a frame has half of the rows."""

import numpy as np
from support import HANG

import xmem

WIDTH, HEIGHT = 64, 32
# The frames of `gst_producer.py`: of its four ways to cut a frame, those that keep each plane in one memory.
WHOLE = {0}


def content(number: int, size: int) -> np.ndarray:
    at = np.arange(size)
    return ((7 * number + 3 * at + at // 251) % 251).astype(np.uint8)


def assert_nv12(frame, number, height=HEIGHT):
    luma, chroma = (np.asarray(plane) for plane in frame.planes)
    expected = content(number, WIDTH * height * 3 // 2)
    assert np.array_equal(luma, expected[: WIDTH * height].reshape(height, WIDTH))
    assert np.array_equal(chroma, expected[WIDTH * height :].reshape(height // 2, WIDTH // 2, 2))


def test_planes_in_memories_of_their_own(pool, gst_producer):
    source = gst_producer("parts", pool)
    with xmem.Consumer(pool, timeout=HANG, start_from="oldest") as consumer:
        number = -1
        for frame in consumer:
            number += 1
            assert frame.format == "NV12"
            assert_nv12(frame, number)
            # Only parts that cannot be one array are copied.
            assert frame.readonly == (number % 4 in WHOLE)
            assert consumer.stats["copied"] == sum(it % 4 not in WHOLE for it in range(number + 1))
            if frame.readonly:
                # A plane holds the frame, and so all of its memories.
                chroma = np.asarray(frame.planes[1])[4:, ::2]
                expected = chroma.copy()
                del frame
                assert consumer.stats["held"] == 1
                assert np.array_equal(chroma, expected)
                del chroma
                assert consumer.stats["held"] == 0
        assert number == 19
    assert source.wait(HANG) == 0


def test_parts_that_are_passed_on(pool, directory, gst_producer, gst_launch):
    """The same through another pool, whose consumers map the memories of the first."""
    second = f"{directory}/q.sock"
    hop = gst_launch(
        f"xmemsrc pool={pool} ! xmemsink pool={second} delivery=lossless wait-for-connection=true sync=false"
    )
    with xmem.Consumer(second, timeout=HANG, start_from="oldest") as consumer:
        source = gst_producer("parts", pool)
        for number, frame in enumerate(consumer):
            assert_nv12(frame, number)
        assert number == 19
    assert source.wait(HANG) == 0
    # It ends with the stream.
    assert hop.wait(HANG) == 0


def test_fields(pool, gst_producer):
    source = gst_producer("fields", pool)
    with xmem.Consumer(f"{pool}.0", timeout=HANG, start_from="oldest") as consumer:
        (frame,) = consumer
        assert (frame.format, frame.height) == ("RGB", HEIGHT)
        assert frame.shape == (HEIGHT // 2, WIDTH, 3)
        assert np.array_equal(np.asarray(frame).ravel(), content(0, WIDTH * HEIGHT // 2 * 3))
    with xmem.Consumer(f"{pool}.1", timeout=HANG, start_from="oldest") as consumer:
        (frame,) = consumer
        assert_nv12(frame, 1, HEIGHT // 2)
    assert source.wait(HANG) == 0
