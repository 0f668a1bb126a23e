# SPDX-License-Identifier: MPL-2.0

from collections.abc import Mapping, Sequence
from fractions import Fraction
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, final

import numpy

__version__: str

class _Array:
    """An array, for each library that reads arrays. The base of frames and planes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements in each dimension. Raises AttributeError if the frame has several planes."""
    @property
    def strides(self) -> tuple[int, ...]:
        """The number of bytes from one element to the next in each dimension. Raises AttributeError when `shape` does."""
    @property
    def ndim(self) -> int:
        """The number of dimensions. Raises AttributeError when `shape` does."""
    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The type of the elements: a numpy.dtype, or a str for bfloat16 or without NumPy."""
    @property
    def size(self) -> int:
        """The number of elements. Raises AttributeError when `shape` does."""
    def tobytes(self) -> bytes:
        """The elements as bytes in C order, without padding."""
    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes, without padding."""
    @property
    def readonly(self) -> bool:
        """Whether the array is read-only."""
    @property
    def device(self) -> str:
        """The memory of the elements: "cpu", or "cuda:N" for a CUDA device."""
    def __bool__(self) -> Literal[True]: ...
    def __len__(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, Any]:
        """AttributeError if the elements are on a device."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """AttributeError if the elements are in host memory. Waits until the elements are written."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Plane(_Array):
    """One plane of a frame."""

    @property
    def itemsize(self) -> int:
        """The size of one element in bytes."""
    def __copy__(self) -> Plane: ...
    def __deepcopy__(self, memo: Any, /) -> Plane: ...
    def copy(self) -> Plane:
        """A writable copy in private memory, as from Frame.copy."""
    def cpu(self) -> Plane:
        """The plane in host memory, as from Frame.cpu."""

@final
class Frame(_Array):
    """A frame of a pool. The process holds it as long as this object or an array made from it exists.

    Times are in nanoseconds.
    """

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes of the frame. A frame that is not planar has one plane."""
    @property
    def format(self) -> str | None:
        """Video: the name of the format, as in caps."""
    @property
    def width(self) -> int | None:
        """Video: the width in pixels."""
    @property
    def height(self) -> int | None:
        """Video: the height in pixels."""
    @property
    def pts(self) -> int | None:
        """The presentation time in the producer's pipeline."""
    @property
    def dts(self) -> int | None:
        """The decoding time in the producer's pipeline."""
    @property
    def duration(self) -> int | None:
        """The duration of the frame."""
    @property
    def timestamp(self) -> int | None:
        """The presentation time on CLOCK_MONOTONIC (time.monotonic_ns())."""
    @property
    def published_at(self) -> int:
        """The time of publishing on CLOCK_MONOTONIC."""
    @property
    def sequence(self) -> int:
        """The number of the frame in its pool, from 0. Frames and events are counted together."""
    @property
    def number(self) -> int:
        """The number of the frame among the frames of its pool, from 0, without events."""
    @property
    def slot(self) -> int:
        """The number of the slot that the frame is in."""
    @property
    def generation(self) -> int:
        """The generation of the slot, which changes with each use of the slot, and is never 0."""
    @property
    def flags(self) -> int:
        """The flags, as GstBufferFlags."""
    @property
    def content_type(self) -> str:
        """The type of the content, such as "image/raw"."""
    @property
    def producer(self) -> str:
        """The name of the program that published it."""
    @property
    def pool(self) -> str:
        """The name of the pool that it was received from."""
    @property
    def caps(self) -> str | None:
        """The caps of the stream, as a string."""
    @property
    def attachments(self) -> dict[str, bytes]:
        """The attachments by name."""
    def __copy__(self) -> Frame: ...
    def __deepcopy__(self, memo: Any, /) -> Frame: ...
    def copy(self) -> Frame:
        """A writable copy in private memory: without padding in host memory, or with the frame's padding on the frame's device.
        Waits until the copy is complete.
        """
    def cpu(self) -> Frame:
        """The frame in host memory: the frame itself, or a copy without padding if it is on a device."""
    def synchronize(self) -> None:
        """Waits until a frame on a device is written. Only reads without a stream need this."""
    def record_stream(self, stream: Any) -> None:
        """Keeps a frame on a device until `stream`, which also reads it, has finished the work submitted before the last array was
        deleted. Not needed for an array's own stream: DLPack does this.
        """
    def dmabuf(self) -> Dmabuf:
        """The frame in DMA buffers, as devices import them: memory of a camera's driver or, with Consumer(..., dmabuf=True), slots of a
        producer that allows it (dmabuf=allow of xmemsink).
        """
    def release_word(self) -> ReleaseWord:
        """Returns a new word that holds a frame on a device until a kernel stores 0 to the word. The kernel must store the 0 once,
        with its last instruction, after a fence for the whole system. You may delete the frame object and its arrays earlier.
        If no kernel stores 0, the frame counts towards the budget until you call `end` of the word, or this process ends.
        """

@final
class Dmabuf:
    """A frame in DMA buffers, as EGL, V4L2, DRM and FFmpeg import them. Holds the frame, and its descriptors are open, as long as this
    object exists. Do not write to the memory: other consumers read it.
    """

    @property
    def fourcc(self) -> int:
        """The format, as DRM_FORMAT_... of drm_fourcc.h. 0: it is not known."""
    @property
    def modifier(self) -> int:
        """DRM_FORMAT_MOD_LINEAR."""
    @property
    def fds(self) -> tuple[int, ...]:
        """For each plane, the descriptor of its buffer. Planes may share one."""
    @property
    def offsets(self) -> tuple[int, ...]:
        """For each plane, its first byte in the buffer."""
    @property
    def strides(self) -> tuple[int, ...]:
        """For each plane, the bytes from one row to the next. 0 if the frame is no video: the plane has all bytes."""

class ReleaseWord:
    """A 32-bit word that holds a frame until a kernel stores 0 to it: see `Frame.release_word`.

    Numba and CuPy take it as an array of one uint32.
    """

    @property
    def ptr(self) -> int:
        """The address of the word on the device."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def end(self) -> None:
        """Releases the frame now, if you did not launch the kernel. No kernel may store to the word after this."""

@final
class Event:
    """An event between two frames: a custom event of a GStreamer pipeline, a gap, or an event of a program.

    Times are in nanoseconds. An event holds no slot.
    """

    @property
    def name(self) -> str:
        """The name: "gap", or the name of the custom event's structure."""
    @property
    def kind(self) -> str:
        """The type of the GStreamer event, such as "custom-downstream" or "gap". Other programs may use other names."""
    @property
    def structure(self) -> str | None:
        """The structure of a custom event with all fields, as a string."""
    @property
    def data(self) -> bytes:
        """The data that a program sent with the event."""
    @property
    def attachments(self) -> dict[str, bytes]:
        """All attachments by name. The other properties are read from them."""
    @property
    def pts(self) -> int | None:
        """The presentation time in the producer's pipeline."""
    @property
    def duration(self) -> int | None:
        """The duration of a gap."""
    @property
    def timestamp(self) -> int | None:
        """The presentation time on CLOCK_MONOTONIC (time.monotonic_ns())."""
    @property
    def published_at(self) -> int:
        """The time of publishing on CLOCK_MONOTONIC."""
    @property
    def sequence(self) -> int:
        """The number of the event in its pool. Frames and events are counted together."""
    @property
    def producer(self) -> str:
        """The name of the program that published it."""
    @property
    def pool(self) -> str:
        """The name of the pool that it was received from."""
    @property
    def caps(self) -> str | None:
        """The caps of the stream, as a string."""

@final
class WritableFrame(_Array):
    """A frame that can be written until it is published.

    A frame that was not published is discarded at the end of a `with` block.
    """

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes of the frame. A frame that is not planar has one plane."""
    @property
    def format(self) -> str | None:
        """Video: the name of the format, as in caps."""
    @property
    def width(self) -> int | None:
        """Video: the width in pixels."""
    @property
    def height(self) -> int | None:
        """Video: the height in pixels."""
    @property
    def caps(self) -> str:
        """The caps that the frame will be published with."""
    def publish(
        self,
        *,
        pts: int | None = None,
        dts: int | None = None,
        duration: int | None = None,
        timestamp: int | None = None,
        attachments: Mapping[str, bytes] | None = None,
        flags: int = 0,
        content_type: str | None = None,
        trust_views: bool = False,
        stream: Any | None = None,
        timeout: float | None = None,
    ) -> int:
        """Publishes the frame. Returns its sequence. Times are in nanoseconds.

        timestamp: the presentation time on CLOCK_MONOTONIC, as from time.monotonic_ns(). Default: now. Raises ValueError for
        a time that is clearly of another clock or unit.
        attachments: named bytes. More than 1 KiB need `room` in `acquire`.
        flags: GstBufferFlags.
        content_type: the type of the content, such as "image/jpeg". Default: the type of the acquired format.
        trust_views: publish even if arrays can still write to the frame. Your program must not write to them.
        stream: the stream that writes a frame on a device. The work of this stream may still be running. Default: the streams
        of the arrays.
        timeout: in a lossless pool, the longest wait in seconds for consumers that are behind. On Timeout the frame can
        be published later.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class ReceiveStats(TypedDict):
    """Statistics of a consumer, over all its producers.

    received: frames that it took.
    missed: frames whose slots were used again before the consumer took them, and frames of a lossless producer that
    continued without this consumer.
    skipped: frames that max_rate left out.
    copied: of the received frames, those that were copied because the budget was used up.
    dropped: frames past the budget that were dropped instead of copied.
    reconnects: the number of producers after the first one.
    held: the number of slots that the consumer holds, also of producers that have ended.
    budget: the number of slots that the consumer may hold, according to the last producer.
    budget_limit: the producer's property that limits the budget: "max_held", "max_slots" or "max_bytes". Empty if the
    budget is as requested.
    latency: the smoothed time in nanoseconds from publishing to receiving.
    """

    received: int
    missed: int
    skipped: int
    copied: int
    dropped: int
    reconnects: int
    held: int
    budget: int
    budget_limit: str
    latency: int

class Consumer:
    def __new__(
        cls,
        pool: str | PathLike[str],
        *,
        timeout: float | None = None,
        max_held: int | None = None,
        name: str | None = None,
        start_from: Literal["next", "newest", "oldest"] = "next",
        on_eos: Literal["end", "wait"] = "end",
        on_producer_lost: Literal["wait", "end", "raise"] = "wait",
        over_budget: Literal["copy", "drop", "raise"] = "copy",
        busy_poll: float = 0.0,
        newest_only: bool = False,
        max_rate: float | None = None,
        dmabuf: bool = False,
        events: bool = False,
        _look: float | None = None,
    ) -> Self: ...
    @property
    def pool(self) -> str:
        """The pool, as passed to the constructor."""
    @property
    def caps(self) -> str | None:
        """The newest known caps, also before the first frame."""
    @property
    def stats(self) -> ReceiveStats:
        """The statistics, over all producers of this consumer."""
    # With events=True these methods also return Event objects. They return Any so that other code needs no type check.
    def recv(self, timeout: float | None = None) -> Frame | Any:
        """Waits for the next frame, at most `timeout` seconds, and returns it."""
    def _dropped(self) -> int: ...
    def _no_frame(self, timeout: float, dropped: int) -> str: ...
    def try_recv(self) -> Frame | Any | None:
        """Returns the next frame, or None.

        None means that no frame is ready. Data that the first frame needs, such as its caps, may not have arrived yet.
        """
    def fileno(self) -> int:
        """A file descriptor that is readable when a frame may be ready, for select and similar functions. -1 if the
        consumer is closed.

        It stays readable until try_recv has returned None.
        """
    def request(self, name: str, data: bytes = b"") -> None:
        """Sends a request to the program that writes to the pool. That program may ignore it."""
    def close(self) -> None:
        """Leaves the pool. Frames that are held stay valid."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Frame | Any: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class Producer:
    """Publishes frames in a pool.

    pool: the name of the pool, or the path of its socket, which contains a slash.
    caps: the caps of all frames, for GStreamer. Default: the caps follow from the format of each frame, or from its shape
    and dtype.
    framerate: frames per second, for the caps: 30, 29.97, (30000, 1001), or 0 for a variable rate.
    lossless: wait for slow consumers, so that they miss no frame.
    lossless_timeout: the time in seconds after which the producer disconnects a consumer that takes no frame. None:
    never. (In xmemsink, 0 means never.)
    history: the number of newest frames that are kept for consumers that join or are behind, at least 1. (In
    xmemsink, 0 means automatic. Here it means 1.)

    The other arguments are the properties of xmemsink.
    """

    def __new__(
        cls,
        pool: str | PathLike[str],
        *,
        caps: str | None = None,
        framerate: float | Fraction | tuple[int, int] | None = None,
        lossless: bool = False,
        lossless_timeout: float | None = None,
        history: int = 4,
        min_slots: int = 0,
        max_slots: int = 256,
        max_bytes: int = 0,
        max_consumers: int = 256,
        max_held: int = 8,
        backing: Literal["memfd", "posix-shm"] = "memfd",
        socket_mode: int = 0o600,
        socket_group: str | None = None,
        allow_uids: Sequence[int] = (),
    ) -> Self: ...
    @property
    def pool(self) -> str:
        """The pool, as passed to the constructor."""
    @property
    def caps(self) -> str | None:
        """The caps of the last published frame."""
    @property
    def num_consumers(self) -> int:
        """The number of consumers."""
    @property
    def stats(self) -> dict[str, Any]:
        """The statistics of the pool, as returned by `query`."""
    def acquire(
        self,
        shape: int | Sequence[int] | None = None,
        dtype: Any = "uint8",
        *,
        format: str | None = None,
        width: int = 0,
        height: int = 0,
        room: int = 1024,
        timeout: float | None = None,
        device: str | None = None,
    ) -> WritableFrame:
        """Returns a frame to write, with a shape and dtype, or with a video format. The frame's content is undefined.

        In a live pool, `acquire` does not wait. In a lossless pool, it waits for a free slot and for consumers that are behind,
        so that `publish` does not have to wait.

        timeout: the longest wait in seconds (0: no wait). Timeout is raised after this time.
        room: the number of bytes to reserve in the slot for attachments, with their names and sizes. Unless `room` is 0, a
        frame that fills whole pages needs at least one more page.
        device: "cuda:N" for a frame on a CUDA device. Default: host memory.
        """
    def publish_event(
        self,
        name: str,
        data: bytes = b"",
        *,
        fields: str = "",
        pts: int | None = None,
        duration: int | None = None,
        timestamp: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Publishes an event between two frames, for consumers with `events=True`. Returns its sequence.

        Pipelines receive it as a custom downstream event with this name, or as a gap if the name is "gap".

        name: letters, digits and /-_.:+.
        data: bytes for programs. Pipelines do not receive them.
        fields: the fields of the structure, as GStreamer writes them, such as "score=(double)0.9, label=(string)cat".
        pts: the presentation time, which a gap needs.
        timestamp: the presentation time on CLOCK_MONOTONIC. Default: now.
        timeout: in a lossless pool, the longest wait in seconds for consumers that are behind. Timeout is raised after this
        time.
        """
    def end_stream(self) -> None:
        """Marks the end of the stream after the last published frame."""
    def wait_for_consumer(self, timeout: float | None = None, *, count: int = 1) -> None:
        """Waits until `count` consumers are connected, at most `timeout` seconds."""
    def close(self) -> None:
        """Closes the pool. Frames that consumers hold stay valid."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class PoolEntry:
    """A pool in the runtime directory."""

    def __new__(cls, name: str, path: str | PathLike[str], live: bool) -> Self: ...
    @property
    def name(self) -> str:
        """The name of the pool."""
    @property
    def path(self) -> PathLike[str]:
        """The path of its socket."""
    @property
    def live(self) -> bool:
        """Whether it has a producer."""

def pools() -> list[PoolEntry]:
    """The pools in the runtime directory."""

def query(pool: str | PathLike[str]) -> dict[str, Any]:
    """Asks the producer of a pool for its statistics. Waits at most one second.

    The keys are those of `xmem show --format json`, without time, format, up_ns and fps. Times are in nanoseconds here, too, but
    their names do not end in _ns.
    """

@final
class BufferPool:
    """A pool of buffers with numbers. Processes pass the numbers to each other by other means.

    All processes that open the pool are equal: each can write and read. Opening the pool allocates nothing.

    max_buffers: the largest number of buffers that this process can write and keep published, from 2 to 4096.
    max_held: the largest number of buffers of one writer that a process can hold at once. None: no limit. The smaller of
    the writer's and the reader's number applies.
    """

    def __new__(cls, name: str | PathLike[str], *, max_buffers: int = 256, max_held: int | None = None) -> Self: ...
    @property
    def name(self) -> str:
        """The name of the pool."""
    def preallocate_cpu(self, size: int, count: int) -> list[int]:
        """Reserves `count` buffers for this size, until `give_up`. Returns their indices.

        size: in bytes.
        """
    def preallocate_cuda(self, size: int, count: int, device_id: int = 0) -> list[int]:
        """Like `preallocate_cpu`, but on a CUDA device."""
    def give_up(self, indices: Sequence[int]) -> int:
        """Ends the reservation of preallocated buffers. Returns how many were reserved."""
    @property
    def stats(self) -> dict[str, Any]:
        """The statistics of the buffers that this process writes, like those of a producer. `unread` counts published buffers that
        readers still have to get, and `set_aside` counts preallocated buffers."""
    def wait_until_read(self, timeout: float | None = None) -> None:
        """Waits until all published buffers of this process have been read as often as their counts say. Unread buffers are lost
        when the process ends. Raises Timeout.
        """
    def acquire_cpu(self, size: int) -> BufferGuard:
        """Returns a buffer of `size` bytes to write."""
    def acquire_cuda(self, size: int, device_id: int = 0) -> BufferGuard:
        """Returns a buffer of `size` bytes on a CUDA device to write. You may call `forget` before the device has written the
        buffer, but `release` only afterwards.
        """
    def connect(self, meta_index: int) -> None:
        """Connects to the process that wrote this buffer, which then lists this process in `readers`. The first `get` also
        connects.
        """
    @property
    def readers(self) -> list[Reader]:
        """The processes that are connected to this process and can read its buffers, for `forget(to=[reader, ...])`."""
    def get(self, meta_index: int) -> BufferGuard:
        """Returns a published buffer to read. Each call counts as one read."""
    def get_mut(self, meta_index: int) -> BufferGuard:
        """Returns a published buffer to edit.

        A buffer of this process is edited in place, unless a process holds it. Then `forget` publishes the buffer again for the
        remaining reads, and `release` uses up one of these reads. A buffer of another process is copied, which counts as a
        read. Then `forget` returns the index of the copy.
        """
    def discard(self, meta_index: int) -> None:
        """Removes a buffer that this process published, whatever its count. For a buffer that its readers never read."""
    def set_ref_count(self, meta_index: int, count: int) -> None:
        """Sets the number of remaining reads of a buffer that this process wrote. The buffer is kept until it has been read and
        released this many times. Default: 1.
        """
    def add_ref(self, meta_index: int) -> None:
        """Adds a reference without a guard: this process holds the published buffer until `release`."""
    def release(self, meta_index: int) -> bool:
        """Ends one reference made by `add_ref`, or by `forget` after `get`. Returns whether there was one."""
    def close(self) -> None:
        """Closes the pool. The buffers that this process wrote are lost when its last guard is gone."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Reader:
    """A process that is connected to this process and can read its buffers: for `BufferGuard.forget(to=[reader, ...])`."""

    @property
    def id(self) -> int:
        """The number of the connection."""
    @property
    def pid(self) -> int:
        """The process ID in this process's PID namespace, or 0 if it has none there."""
    @property
    def name(self) -> str:
        """The name of the program."""

@final
class BufferGuard:
    """A buffer of a pool. It is held as long as this object or an array over it exists (`numpy.asarray(buffer)`,
    `memoryview`).
    """

    @property
    def pool(self) -> str:
        """The name of the pool."""
    @property
    def meta_index(self) -> int:
        """The number of this use of the buffer, for `get` in other processes."""
    @property
    def buffer(self) -> int:
        """The index of the buffer's memory, as returned by `preallocate_cpu`. Each use of the buffer has the same index."""
    @property
    def device(self) -> int | None:
        """The number of the CUDA device. None: host memory."""
    @property
    def size(self) -> int:
        """The size in bytes."""
    @property
    def readonly(self) -> bool:
        """Whether the buffer is read-only."""
    @property
    def cpu_ptr(self) -> int:
        """The address of the first byte, as long as the guard exists."""
    @property
    def cpu_ptr_mut(self) -> int:
        """The address for writing. Raises an error for a buffer from `get`."""
    @property
    def cuda_ptr(self) -> int:
        """The address on the device. For a reader, waits until the buffer is written."""
    @property
    def cuda_ptr_mut(self) -> int:
        """The address on the device, for writing."""
    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape, if one was set."""
    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The type of the elements, like that of a frame."""
    @property
    def content_type(self) -> str:
        """The type of the content, such as "image/raw"."""
    @property
    def producer(self) -> str:
        """The name of the program that wrote it."""
    @property
    def timestamp(self) -> int | None:
        """The presentation time in nanoseconds on CLOCK_MONOTONIC."""
    @property
    def sequence(self) -> int:
        """The sequence number with which the buffer was published, or 0 before."""
    def set_meta(
        self,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any | None = None,
        content_type: str | None = None,
        producer: str | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Sets the description for readers. Arguments that are None change nothing."""
    def clone_ref(self) -> BufferGuard:
        """Returns another guard for the same, already published buffer."""
    def copy_to_cpu(self) -> BufferGuard:
        """Returns a writable copy in host memory, in a buffer that this process acquires."""
    def copy_to_cuda(self, device_id: int = 0) -> BufferGuard:
        """Like `copy_to_cpu`, but on a CUDA device."""
    def copy_to_device(self, device_id: int) -> BufferGuard:
        """Like `copy_to_cuda`."""
    def forget(
        self, *, to: Sequence[Reader] | None = None, stream: Any | None = None, timeout: float | None = None
    ) -> int:
        """Publishes a buffer that is being written. Keeps a buffer that is being read until `BufferPool.release`. Returns
        the index.

        to: keep the buffer until each of these readers has read the buffer or ended. Other reads and the buffer's count do not
        matter.
        stream: the stream that writes a buffer on a device. Readers wait until it has completed its present work.
        Default: the default stream, and the streams of the arrays.
        timeout: the time in seconds after which an unread buffer is removed. A PoolWarning names the connected processes that
        did not read the buffer.
        Raises ViewsExist while arrays over the buffer exist, and CudaError for a stream that is being captured into a graph.
        The buffer is not changed then.
        """
    def release(self, *, stream: Any | None = None) -> None:
        """Releases the buffer. If arrays over it exist, the last array releases it.

        Releasing a buffer that is being written counts as one read. If reads remain, the buffer is published.
        stream: a buffer on a device is released when this stream has completed its present work.
        """
    def discard(self) -> None:
        """Releases the buffer without publishing it. A buffer from `get_mut` is removed. If arrays over the buffer exist,
        the last of them releases it. A `with` block that ends with an exception does the same."""
    def __bool__(self) -> Literal[True]: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any | None = None, copy: bool | None = None) -> Any: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

# What xmem.channel stands on.

@final
class _ChannelEnd:
    id: int
    socket: PathLike[str]
    is_closed: bool
    @staticmethod
    def make(name: str, options: dict[str, Any]) -> _ChannelEnd: ...
    @staticmethod
    def join(name: str, options: dict[str, Any], look: float | None, time: float | None) -> _ChannelEnd: ...
    def senders(self) -> list[int]: ...
    def receivers(self) -> int: ...
    def wait_for_receivers(self, count: int, time: float | None) -> None: ...
    def stuck(self) -> str | None: ...
    def room(self, size: int, time: float | None) -> _Room: ...
    def send(
        self,
        pickle: bytes,
        blocks: list[tuple[int, int, bool, int, Any, tuple[int, Any, bool, Plane | None] | None]],
        *,
        owners: Any,
        gather: Any,
        refs: Any,
        leases: list[_RefLease],
        to: int | None,
        timeout: float | None,
        answer_time: float | None,
    ) -> tuple[int, int]: ...
    def receive(self, sender: int | None, time: float | None) -> _Incoming: ...
    def poll(self, sender: int | None, time: float | None) -> bool: ...
    def fileno(self) -> int: ...
    def drain(self, time: float | None) -> bool: ...
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...

@final
class _Incoming:
    sender: int
    pickle: _Block
    def refs(self, tag: int) -> _RefLease | None: ...
    def blocks(self) -> list[tuple[_Block | _DeviceBlock, bool, int]]: ...
    def copied(self) -> _Incoming: ...

@final
class _DeviceBlock: ...

@final
class _RefLease:
    key: tuple[int, int]
    is_held: bool

@final
class _Block:
    def unprotected(self) -> _Block: ...
    def __bool__(self) -> Literal[True]: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class _View:
    @property
    def obj(self) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class _Room:
    def __buffer__(self, flags: int, /) -> memoryview: ...

def _check_timeout(seconds: float | None) -> None: ...
def _remove_left(pool: str) -> None: ...
def _whereabouts(pool: str | PathLike[str]) -> str: ...
def _address_of(view: Any) -> int: ...
def _is_shared(start: int, len: int, device: int | None = None) -> bool: ...

_Part = tuple[_Block | _DeviceBlock | bytes, int, tuple[int, ...], tuple[int, ...], str]

def _place_of(plane: Plane) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], str] | None: ...
def _bytes_of(plane: Plane) -> bytes: ...
def _known_of(frame: Frame) -> dict[str, Any]: ...
def _plane_of(part: _Part) -> Plane: ...
def _frame_of(parts: list[_Part], known: dict[str, Any]) -> Frame: ...
