# SPDX-License-Identifier: MPL-2.0

"""Pipelines of the tests that gst-launch-1.0 cannot create: gst_producer.py ROLE POOL. For the system's Python."""

import ctypes
import fcntl
import os
import signal
import sys

import gi

for it in ("Gst", "GstApp", "GstAllocators", "GstVideo"):
    gi.require_version(it, "1.0")
from gi.repository import Gst, GstAllocators, GstApp, GstVideo  # noqa: F401 (GstApp: appsrc)

# The child is killed if its test is killed.
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

WIDTH, HEIGHT = 64, 32
PIXELS = WIDTH * HEIGHT
# For memory that no holder can shrink or punch holes into.
F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_FUTURE_WRITE = 1033, 2, 16


def content(number: int, size: int) -> bytes:
    """The bytes of a frame; the same as in `test_parts.py`."""
    return bytes((7 * number + 3 * at + at // 251) % 251 for at in range(size))


def start(pipeline: str) -> tuple[Gst.Pipeline, Gst.Element]:
    pipeline = Gst.parse_launch(pipeline)
    pipeline.set_state(Gst.State.PLAYING)
    return pipeline, pipeline.get_by_name("src")


def end(pipeline: Gst.Pipeline, source: Gst.Element) -> None:
    source.emit("end-of-stream")
    kinds = Gst.MessageType.EOS | Gst.MessageType.ERROR
    message = pipeline.get_bus().timed_pop_filtered(Gst.CLOCK_TIME_NONE, kinds)
    pipeline.set_state(Gst.State.NULL)
    if message.type == Gst.MessageType.ERROR:
        sys.exit(str(message.parse_error()))


def push(source: Gst.Element, buffer: Gst.Buffer, number: int) -> None:
    buffer.pts = number * 40 * Gst.MSECOND
    buffer.duration = 40 * Gst.MSECOND
    assert source.emit("push-buffer", buffer) == Gst.FlowReturn.OK


def parts(pool: str) -> None:
    """NV12 in imported memory: one memory for each plane, or cut at any position."""
    caps = f"video/x-raw,format=NV12,width={WIDTH},height={HEIGHT},framerate=25/1"
    pipeline, source = start(
        f"appsrc name=src format=time caps={caps} ! "
        f"xmemsink pool={pool} copy=forbid delivery=lossless wait-for-connection=true sync=false"
    )
    allocator = GstAllocators.FdAllocator.new()
    cuts = [[PIXELS], [PIXELS // 2, PIXELS], [PIXELS + 100], [1, 2, 3, PIXELS]]
    for number in range(20):
        data = content(number, PIXELS * 3 // 2)
        buffer = Gst.Buffer.new()
        ends = [*cuts[number % len(cuts)], len(data)]
        for begin, stop in zip([0, *ends], ends):
            fd = os.memfd_create("theirs", os.MFD_ALLOW_SEALING)
            os.write(fd, data[begin:stop])
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE)
            buffer.append_memory(GstAllocators.FdAllocator.alloc(allocator, fd, stop - begin, 0))
        GstVideo.buffer_add_video_meta_full(
            buffer,
            GstVideo.VideoFrameFlags.NONE,
            GstVideo.VideoFormat.NV12,
            WIDTH,
            HEIGHT,
            2,
            [0, PIXELS, 0, 0],
            [WIDTH, WIDTH, 0, 0],
        )
        push(source, buffer, number)
    end(pipeline, source)


def fields(pool: str) -> None:
    """Each buffer has every other row of a picture. The height is that of the whole picture."""
    for index, it in enumerate(("RGB", "NV12")):
        caps = (
            f"video/x-raw(format:Interlaced),format={it},width={WIDTH},height={HEIGHT},framerate=25/1,"
            "interlace-mode=alternate"
        )
        pipeline, source = start(
            f"appsrc name=src format=time caps={caps} ! "
            f"xmemsink pool={pool}.{index} delivery=lossless wait-for-connection=true sync=false"
        )
        data = content(index, PIXELS // 2 * 3 if it == "RGB" else PIXELS // 2 * 3 // 2)
        push(source, Gst.Buffer.new_wrapped(data), 0)
        end(pipeline, source)


def events(pool: str) -> None:
    """Frames, with custom events and a gap between them."""
    caps = f"video/x-raw,format=RGB,width={WIDTH},height={HEIGHT},framerate=25/1"
    pipeline, source = start(
        f"appsrc name=src format=time caps={caps} ! identity name=id drop-buffer-flags=gap ! "
        f"xmemsink pool={pool} delivery=lossless wait-for-connection=true sync=false"
    )
    for number in range(4):
        buffer = Gst.Buffer.new_wrapped(content(number, PIXELS * 3))
        if number == 2:
            buffer.set_flags(Gst.BufferFlags.GAP)
        push(source, buffer, number)
        structure = Gst.Structure.new_from_string(f'scene-change, number=(int){number}, label=(string)"a, \\"b\\";"')
        assert source.send_event(Gst.Event.new_custom(Gst.EventType.CUSTOM_DOWNSTREAM, structure))
    end(pipeline, source)


if __name__ == "__main__":
    Gst.init(None)
    globals()[sys.argv[1]](sys.argv[2])
