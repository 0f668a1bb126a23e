# SPDX-License-Identifier: MPL-2.0
"""Reads frames of the pool `dma` through their DMA buffers, mapped by this program. Prints a line for each step.

Each frame is compared with the same frame from memory that the consumer cannot write. Each line of stdin is a step.
"""

import mmap
import os
import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstAllocators", "1.0")
from gi.repository import Gst, GstAllocators  # noqa: E402

Gst.init(None)


def reader(options: str) -> tuple[Gst.Pipeline, Gst.Element]:
    sink = "appsink name=sink sync=false max-buffers=2 drop=true enable-last-sample=false"
    pipeline = Gst.parse_launch(f"xmemsrc pool=dma {options} ! video/x-raw ! {sink}")
    pipeline.set_state(Gst.State.PLAYING)
    return pipeline, pipeline.get_by_name("sink")


def next_of(pipeline: Gst.Pipeline, sink: Gst.Element) -> Gst.Buffer:
    sample = sink.emit("try-pull-sample", 60 * Gst.SECOND)
    if sample is None:
        message = pipeline.get_bus().pop_filtered(Gst.MessageType.ERROR)
        raise SystemExit(message.parse_error()[0].message if message else "no frame came")
    return sample.get_buffer()


def as_device(buffer: Gst.Buffer) -> bytes:
    memory = buffer.peek_memory(0)
    if buffer.n_memory() != 1 or not GstAllocators.is_dmabuf_memory(memory):
        raise SystemExit(f"not one DMA buffer: {memory.allocator}")
    size, offset, _ = memory.get_sizes()
    fd = GstAllocators.dmabuf_memory_get_fd(memory)
    with mmap.mmap(fd, offset + size, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        return mapped[offset : offset + size]


def as_usual(buffer: Gst.Buffer) -> bytes:
    return buffer.extract_dup(0, buffer.get_size())


def open_dmabufs() -> int:
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum("dmabuf" in os.readlink(link) for link in links if os.path.islink(link))


def compare(wanted: int) -> tuple[Gst.Buffer, bytes]:
    """Compares frames, by their number in the pool. Returns the last one."""
    seen, equal, other = {}, 0, None
    while equal < wanted:
        frame = next_of(*device)
        seen[frame.offset] = as_device(frame)
        if seen[frame.offset] != as_usual(frame):
            raise SystemExit("GStreamer maps other bytes")
        while other is None or other.offset < frame.offset:
            other = next_of(*usual)
        if other.offset in seen:
            if as_usual(other) != seen[other.offset]:
                raise SystemExit(f"frame {other.offset} differs")
            equal += 1
    return frame, seen[frame.offset]


device, usual = reader("dmabuf=true"), reader("")
held, expected = compare(10)
print("equal", flush=True)
sys.stdin.readline()  # The producer was killed.
if as_device(held) != expected:
    raise SystemExit("the frame of a killed producer changed")
print("held", flush=True)
sys.stdin.readline()  # The next producer is there, with frames of another size.
held = None
held, expected = compare(10)
print("back", flush=True)
held = None
most = open_dmabufs()
for pipeline, _ in (device, usual):
    pipeline.set_state(Gst.State.NULL)
if most == 0 or open_dmabufs() != 0:
    raise SystemExit(f"{most} DMA buffers were open, and {open_dmabufs()} are")
print("closed", flush=True)
