# SPDX-License-Identifier: MPL-2.0

"""Events between two frames."""

import asyncio
import subprocess
import threading
import time

import numpy as np
import pytest
from support import HANG, content, publish

import xmem


def test_events_of_a_pipeline(pool, gst_producer):
    source = gst_producer("events", pool)
    with xmem.Consumer(pool, timeout=HANG, start_from="oldest", events=True) as consumer:
        items = list(consumer)
    assert source.wait(HANG) == 0
    names = [it.name if isinstance(it, xmem.Event) else it.pts // 40_000_000 for it in items]
    assert names == [0, "scene-change", 1, "scene-change", "gap", "scene-change", 3, "scene-change"]
    changes = [it for it in items if isinstance(it, xmem.Event) and it.name == "scene-change"]
    for number, event in enumerate(changes):
        assert event.kind == "custom-downstream"
        assert event.structure == rf'scene-change, number=(int){number}, label=(string)"a\,\ \"b\"\;";'
        assert event.caps.startswith("video/x-raw")
        assert event.data == b""
        assert event.pts is None
    (gap,) = [it for it in items if isinstance(it, xmem.Event) and it.name == "gap"]
    assert (gap.kind, gap.structure) == ("gap", None)
    assert (gap.pts, gap.duration) == (80_000_000, 40_000_000)
    assert items[0].timestamp < gap.timestamp < items[-2].timestamp
    assert [it.sequence for it in items] == list(range(8))


def test_events_are_delivered_only_on_request(pool, gst_producer):
    source = gst_producer("events", pool)
    with xmem.Consumer(pool, timeout=HANG, start_from="oldest") as consumer:
        assert [frame.pts // 40_000_000 for frame in consumer] == [0, 1, 3]
    assert source.wait(HANG) == 0


def test_events_between_programs(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool, events=True) as consumer:
        with xmem.Consumer(pool) as frames_only:
            publish(producer, 1)
            data = bytes(range(256)) * 100
            now = time.monotonic_ns()
            assert producer.publish_event("cut.to/other", data, fields="score=(double)0.5", pts=5, timestamp=now) == 1
            assert producer.publish_event("gap", pts=7, duration=8) == 2
            publish(producer, 2)
            assert consumer.recv(HANG).pts == 1
            event = consumer.recv(HANG)
            assert (event.name, event.kind) == ("cut.to/other", "custom-downstream")
            assert event.structure == "cut.to/other, score=(double)0.5;"
            assert event.data == data
            assert (event.pts, event.duration, event.timestamp) == (5, None, now)
            assert set(event.attachments) == {"event", "structure", "data"}
            assert "cut.to/other" in repr(event)
            gap = consumer.try_recv()
            assert (gap.name, gap.pts, gap.duration, gap.data) == ("gap", 7, 8, b"")
            assert next(consumer).pts == 2
            assert consumer.try_recv() is None
            assert [frames_only.recv(HANG).pts for _ in range(2)] == [1, 2]
        # An event holds no slot.
        assert consumer.stats["held"] == 0
        assert event.data == data


def test_events_in_a_loop(pool):
    async def main():
        with xmem.Producer(pool, lossless=True) as producer:
            async with await xmem.Consumer.connect(pool, events=True) as consumer:

                def feed():
                    for number in range(50):
                        publish(producer, number)
                        producer.publish_event("after", number.to_bytes())
                    producer.end_stream()

                thread = threading.Thread(target=feed)
                thread.start()
                names = [it.data[0] if isinstance(it, xmem.Event) else it.pts async for it in consumer]
                assert names == [number // 2 for number in range(100)]
                thread.join()

    asyncio.run(main())


@pytest.mark.parametrize("over_budget", ["copy", "drop", "raise"])
def test_events_past_the_budget(pool, over_budget):
    with xmem.Producer(pool) as producer:
        with xmem.Consumer(pool, events=True, max_held=1, over_budget=over_budget) as consumer:
            publish(producer, 1)
            kept = consumer.recv(HANG)
            producer.publish_event("now")
            if over_budget == "raise":
                with pytest.raises(xmem.OverBudget):
                    consumer.recv(HANG)
                assert np.array_equal(kept, content(1))
                del kept
            assert consumer.recv(HANG).name == "now"
            assert consumer.stats["dropped"] == consumer.stats["copied"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "valid event name"),
        ({"name": "a b"}, "valid event name"),
        ({"name": "a;b"}, "valid event name"),
        ({"name": "7up"}, "valid event name"),
        ({"name": "gap"}, "a gap needs pts"),
    ],
)
def test_events_that_cannot_be(pool, arguments, message):
    with xmem.Producer(pool) as producer, pytest.raises(ValueError, match=message):
        producer.publish_event(**arguments)


def test_pipelines_get_them(pool, start_gst):
    with xmem.Producer(pool, lossless=True, framerate=25) as producer:
        pipeline = f"xmemsrc pool={pool} ! fakesink silent=false"
        show = start_gst("gst-launch-1.0", "-v", *pipeline.split(), stdout=subprocess.PIPE)
        producer.wait_for_consumer(HANG)
        for number in range(2):
            publish(producer, number)
            producer.publish_event("scene-change", b"unseen", fields=f"number=(int){number}")
        producer.publish_event("gap", pts=80_000_000, duration=40_000_000)
        producer.end_stream()
        output, _ = show.communicate(timeout=HANG)
        assert show.returncode == 0
    for number in range(2):
        assert f"scene-change, number=(int){number}" in output
    assert "unseen" not in output
    # The times are those of the pipeline.
    assert "duration=(guint64)40000000" in output
