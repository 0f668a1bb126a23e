# SPDX-License-Identifier: MPL-2.0

"""Python and GStreamer pipelines as producer and consumer of each other."""

import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from support import HANG, assert_whole, content, eventually, publish

import xmem

FORMATS = [
    "GRAY8", "GRAY16_LE", "RGB", "BGR", "v308", "IYU2", "RGBx", "BGRx", "xRGB", "xBGR", "RGBA", "BGRA", "ARGB", "ABGR",
    "AYUV", "VUYA", "ARGB64", "AYUV64", "ARGB64_LE", "RGBA64_LE", "BGRA64_LE", "ABGR64_LE", "RGB16", "BGR16", "RGB15",
    "BGR15", "YUY2", "YVYU", "UYVY", "VYUY", "I420", "YV12", "I420_10LE", "I420_12LE", "A420", "Y42B", "I422_10LE",
    "I422_12LE", "Y41B", "Y444", "Y444_10LE", "Y444_12LE", "Y444_16LE", "GBR", "GBR_10LE", "GBR_12LE", "GBRA", "NV12",
    "NV21", "P010_10LE", "P012_LE", "P016_LE", "NV16", "NV61", "NV24",
]  # fmt: skip


def test_layouts_are_gstreamer_s(directory, gst_launch):
    """Frames of each format and of odd sizes have the same layout in GStreamer and in Python, in both directions."""
    width, height = 35, 21
    caps = {it: f"video/x-raw,format={it},width={width},height={height},framerate=0/1" for it in FORMATS}
    source = gst_launch(
        " ".join(
            f"videotestsrc num-buffers=1 pattern=snow ! {caps[it]} ! tee name={it} "
            f"{it}. ! queue ! filesink location={directory}/{it}.raw "
            f"{it}. ! queue ! xmemsink pool={directory}/{it}.sock wait-for-connection=true"
            for it in FORMATS
        )
    )
    made = {}
    for it in FORMATS:
        with xmem.Consumer(f"{directory}/{it}.sock", timeout=HANG, start_from="oldest") as consumer:
            frame = consumer.recv(HANG)
            assert (frame.format, frame.width, frame.height) == (it, width, height)
            # In the layout that GStreamer uses.
            made[it] = [(plane.shape, plane.dtype, memoryview(plane).tobytes()) for plane in frame.planes]
    assert source.wait(HANG) == 0

    with xmem.Producer(f"{directory}/q.sock", lossless=True) as producer:
        show = gst_launch(f"xmemsrc pool={directory}/q.sock ! multifilesink location={directory}/%d.shown")
        producer.wait_for_consumer(HANG)
        for it in FORMATS:
            with producer.acquire(format=it, width=width, height=height) as frame:
                raw = np.frombuffer((directory / f"{it}.raw").read_bytes(), np.uint8)
                # In the layout that Python uses by default.
                assert planes_of(raw, frame) == made[it], it
                for plane, (shape, dtype, data) in zip(frame.planes, made[it], strict=True):
                    np.asarray(plane)[...] = np.frombuffer(data, dtype).reshape(shape)
                frame.publish()
        producer.end_stream()
        assert show.wait(HANG) == 0
    for number, it in enumerate(FORMATS):
        assert len((directory / f"{number}.shown").read_bytes()) == len((directory / f"{it}.raw").read_bytes()), it


def planes_of(raw, frame):
    """The bytes of the file in the layout of the frame's planes."""
    planes = []
    start = np.asarray(frame.planes[0]).ctypes.data
    for plane in frame.planes:
        array = np.asarray(plane)
        offset = array.ctypes.data - start
        last = sum(stride * (size - 1) for stride, size in zip(array.strides, array.shape, strict=True))
        assert offset + last + array.itemsize <= len(raw)
        there = np.ndarray(array.shape, array.dtype, raw, offset, array.strides)
        planes.append((plane.shape, plane.dtype, there.tobytes()))
    return planes


def test_python_receives_frames_of_xmemsink(pool, gst_launch):
    source = gst_launch(
        "videotestsrc num-buffers=20 pattern=ball ! video/x-raw,format=RGB,width=320,height=240,framerate=30/1 ! "
        f"timeoverlay ! xmemsink pool={pool} wait-for-connection=true delivery=lossless"
    )
    with xmem.Consumer(pool, timeout=HANG, start_from="oldest") as consumer:
        frames = []
        for number, frame in enumerate(consumer):
            assert frame.shape == (240, 320, 3)
            assert frame.sequence == number
            assert frame.pts == number * 1_000_000_000 // 30
            assert frame.caps.startswith("video/x-raw")
            frames.append(np.asarray(frame).copy())
        assert len(frames) == 20
        assert not np.array_equal(frames[0], frames[10])
        assert consumer.stats["missed"] == 0
    assert source.wait(HANG) == 0


def test_xmemsrc_shows_frames_of_python(pool, directory, gst_launch):
    """Colours and times, through a pipeline that converts them."""
    shown = directory / "shown"
    with xmem.Producer(pool, lossless=True, framerate=25) as producer:
        show = gst_launch(
            f"xmemsrc pool={pool} timestamp-mode=passthrough ! videoconvert ! video/x-raw,format=RGB ! filesink location={shown}"
        )
        producer.wait_for_consumer(HANG)
        for number in range(10):
            with producer.acquire(format="BGRx", width=64, height=32) as frame:
                np.asarray(frame)[...] = (10 * number, 100, 200, 0)
                frame.publish(pts=number * 40_000_000, duration=40_000_000)
        producer.end_stream()
        assert show.wait(HANG) == 0
    images = np.frombuffer(shown.read_bytes(), np.uint8).reshape(10, 32, 64, 3)
    for number, image in enumerate(images):
        assert (image == (200, 100, 10 * number)).all()
    shown.unlink()


def test_tensors_have_caps_that_gstreamer_takes(pool, directory, gst_launch):
    shown = directory / "shown"
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    with xmem.Producer(pool, lossless=True, framerate=(30000, 1001)) as producer:
        show = gst_launch(
            f"-v xmemsrc pool={pool} ! other/tensors,dimensions=(string)4:3:2,types=(string)float32 ! "
            f"filesink location={shown}",
            stdout=subprocess.PIPE,
        )
        producer.wait_for_consumer(HANG)
        for _ in range(2):
            with producer.acquire(data.shape, data.dtype) as frame:
                np.asarray(frame)[...] = data
                frame.publish()
        producer.end_stream()
        assert show.wait(HANG) == 0
    assert shown.read_bytes() == data.tobytes() * 2
    shown.unlink()


def test_a_change_of_format_is_a_change_of_caps(pool, directory, gst_launch):
    with xmem.Producer(pool, lossless=True) as producer:
        show = gst_launch(
            f"xmemsrc pool={pool} ! videoconvert ! video/x-raw,format=GRAY8 ! "
            f"multifilesink location={directory}/%d.raw"
        )
        producer.wait_for_consumer(HANG)
        for format, width in (("RGB", 64), ("NV12", 32)):
            with producer.acquire(format=format, width=width, height=16) as frame:
                for plane in frame.planes:
                    np.asarray(plane)[...] = 128
                frame.publish()
        producer.end_stream()
        assert show.wait(HANG) == 0
    assert [len((directory / f"{number}.raw").read_bytes()) for number in range(2)] == [64 * 16, 32 * 16]


def test_key_frames_can_be_asked_for(pool, gst_launch):
    source = gst_launch(
        "videotestsrc is-live=true ! video/x-raw,width=320,height=240 ! x264enc key-int-max=100000 tune=zerolatency ! "
        f"xmemsink pool={pool}"
    )
    delta = 1 << 13
    with xmem.Consumer(pool, timeout=HANG) as consumer:
        assert consumer.recv(HANG).caps.startswith("video/x-h264")
        while not consumer.recv(HANG).flags & delta:
            pass
        consumer.request_key_frame()
        # Another frame arrives.
        while (frame := consumer.recv(HANG)).flags & delta:
            pass
        assert frame.shape == (frame.nbytes,)
        del frame
    source.send_signal(signal.SIGINT)
    source.wait(HANG)


def test_frames_that_are_forwarded(pool, directory, gst_launch):
    """A frame in another pool's slot, which a pipeline forwarded."""
    with xmem.Producer(pool, framerate=30) as producer:
        forward = gst_launch(f"xmemsrc pool={pool} timestamp-mode=passthrough ! xmemsink pool={directory}/q.sock")
        producer.wait_for_consumer(HANG)
        seed = 0
        with xmem.Consumer(f"{directory}/q.sock", timeout=HANG) as consumer:
            while xmem.query(f"{directory}/q.sock")["zero_copy"] < 20:
                seed += 1
                with producer.acquire(format="RGB", width=80, height=60) as frame:
                    np.asarray(frame)[...] = content(seed)
                    frame.publish(pts=seed)
                for frame in iter(consumer.try_recv, None):
                    assert frame.pool.endswith("q.sock")
                    assert_whole(frame, frame.pts)
                # A pipeline takes one frame at a time.
                time.sleep(0.002)
            assert consumer.stats["received"] > 0
            assert consumer.stats["copied"] == 0
            # The holder of frames that another pool forwarded.
            via = {it["pid"]: it["via"] for it in producer.stats["consumers"]}
            assert via == {forward.pid: "", os.getpid(): f"{directory}/q.sock"}
        forward.send_signal(signal.SIGINT)
        forward.wait(HANG)


def test_a_pipeline_without_descriptors_names_the_limit(pool, gst_launch):
    with xmem.Producer(pool, lossless=True) as producer:
        show = gst_launch(f"xmemsrc pool={pool} ! fakesink sync=false", stderr=subprocess.PIPE)
        producer.wait_for_consumer(HANG)
        publish(producer, 1)
        eventually(lambda: xmem.query(pool)["consumers"][0]["received"] == 1, "it takes nothing")
        # No number below the limit is free. GLib cannot poll if there are fewer than it polls.
        used = {int(number) for number in os.listdir(f"/proc/{show.pid}/fd")}
        first = next(number for number in range(len(used) + 1) if number not in used)
        _, most = resource.prlimit(show.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(show.pid, resource.RLIMIT_NOFILE, (first, most))
        # Of another size, so in another region.
        publish(producer, 2, (2000, 1000, 3))
        _, errors = show.communicate(timeout=HANG)
    assert show.returncode != 0 and "ulimit -n" in errors, errors
