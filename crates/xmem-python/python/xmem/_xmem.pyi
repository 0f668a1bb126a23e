# SPDX-License-Identifier: MPL-2.0

from collections.abc import Mapping, Sequence
from fractions import Fraction
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, final

__version__: str

class _Array:
    """What frames and planes have in common: they are arrays, for whatever library takes arrays."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension. AttributeError if it is not one array, as planar frames."""
    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, per dimension. AttributeError as for shape."""
    @property
    def ndim(self) -> int:
        """How many dimensions there are. AttributeError as for shape."""
    @property
    def dtype(self) -> str:
        """The type of one element, by NumPy's name."""
    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes, without padding."""
    @property
    def readonly(self) -> bool:
        """Whether it can only be read."""
    @property
    def device(self) -> str:
        """Where the elements lie: "cpu", or "cuda:0" and so on."""
    def __bool__(self) -> Literal[True]: ...
    def __len__(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Only in host memory."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Only on a device. Waits until the elements are there."""
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
        """Bytes of one element."""
    def copy(self) -> Plane:
        """A copy in memory of this process's own that may be written to; see Frame.copy."""
    def cpu(self) -> Plane:
        """The plane in host memory; see Frame.cpu."""

@final
class Frame(_Array):
    """A frame that can be read. It is held, by this process, as long as it or any array made from it lives.

    Times are in nanoseconds.
    """

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The arrays that the frame consists of; one, unless its format is planar."""
    @property
    def format(self) -> str | None:
        """Video: the format's name, as GStreamer spells it."""
    @property
    def width(self) -> int | None:
        """Video: width in pixels."""
    @property
    def height(self) -> int | None:
        """Video: height in pixels."""
    @property
    def pts(self) -> int | None:
        """Presentation time, as the producer's pipeline had it."""
    @property
    def dts(self) -> int | None:
        """Decoding time, as the producer's pipeline had it."""
    @property
    def duration(self) -> int | None:
        """How long the frame lasts."""
    @property
    def timestamp(self) -> int | None:
        """When the frame is to be presented, on CLOCK_MONOTONIC (time.monotonic_ns())."""
    @property
    def published_at(self) -> int:
        """When it was published, on CLOCK_MONOTONIC."""
    @property
    def sequence(self) -> int:
        """Number of the frame in its pool, from 0, where frames and events are counted together."""
    @property
    def number(self) -> int:
        """Number of the frame among the frames of its pool, from 0."""
    @property
    def slot(self) -> int:
        """The slot of its pool that it lies in."""
    @property
    def generation(self) -> int:
        """How often that slot was used; never 0."""
    @property
    def flags(self) -> int:
        """GstBufferFlags."""
    @property
    def content_type(self) -> str:
        """What the bytes are, such as "image/raw"."""
    @property
    def producer(self) -> str:
        """The program that published it."""
    @property
    def pool(self) -> str:
        """The pool that it came from."""
    @property
    def caps(self) -> str | None:
        """The stream's caps, as GStreamer writes them."""
    @property
    def attachments(self) -> dict[str, bytes]:
        """What else is known of it, by name."""
    def copy(self) -> Frame:
        """A copy in memory of this process's own that may be written to. It lies where the frame does: in host memory without
        padding, on a device with what padding there is. Waits until it is made."""
    def cpu(self) -> Frame:
        """The frame in host memory: a copy without padding, if it lies on a device, and else the frame itself."""
    def synchronize(self) -> None:
        """Waits until a frame on a device is written. Needed only for reads without a stream."""
    def record_stream(self, stream: Any) -> None:
        """Marks that a frame on a device is read on this stream, too: the frame is held until the stream has done the work that
        it has when the last array is gone. DLPack does this for the stream that an array is made on."""

@final
class Event:
    """Something that happened between two frames: a custom event of a GStreamer pipeline, a gap, or an event of a program.

    Times are in nanoseconds. It holds nothing.
    """

    @property
    def name(self) -> str:
        """What it is: "gap", or the name of a custom event's structure."""
    @property
    def kind(self) -> str:
        """The kind of GStreamer's event, such as "custom-downstream" or "gap"; what another program calls it."""
    @property
    def structure(self) -> str | None:
        """Of a custom event: its structure with all fields, as GStreamer writes it."""
    @property
    def data(self) -> bytes:
        """Bytes that a program sent along."""
    @property
    def attachments(self) -> dict[str, bytes]:
        """All that there is of it, as it travels."""
    @property
    def pts(self) -> int | None:
        """When it is, as the producer's pipeline had it."""
    @property
    def duration(self) -> int | None:
        """How long a gap is."""
    @property
    def timestamp(self) -> int | None:
        """When it is, on CLOCK_MONOTONIC (time.monotonic_ns())."""
    @property
    def published_at(self) -> int:
        """When it was published, on CLOCK_MONOTONIC."""
    @property
    def sequence(self) -> int:
        """Its number in the pool, where frames and events are counted together."""
    @property
    def producer(self) -> str:
        """The program that published it."""
    @property
    def pool(self) -> str:
        """The pool that it came from."""
    @property
    def caps(self) -> str | None:
        """The stream's caps, as GStreamer writes them."""

@final
class WritableFrame(_Array):
    """A frame that can be written until it is published.

    In a `with` block it is given back at the block's end, whether it was published or not.
    """

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The arrays that the frame consists of; one, unless its format is planar."""
    @property
    def format(self) -> str | None:
        """Video: the format's name, as GStreamer spells it."""
    @property
    def width(self) -> int | None:
        """Video: width in pixels."""
    @property
    def height(self) -> int | None:
        """Video: height in pixels."""
    @property
    def caps(self) -> str:
        """The caps that it will be published with."""
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
        """Makes the frame visible to consumers. Returns its sequence. Times are in nanoseconds.

        timestamp: when the frame is to be presented, on CLOCK_MONOTONIC; by default now.
        attachments: what else is known of it, by name. More than 1 KiB needs `room` where the frame was acquired.
        flags: GstBufferFlags.
        content_type: what the bytes are, such as "image/jpeg"; else it follows from what was acquired.
        trust_views: publish although arrays that could write to the frame still exist. They must not be written to.
        stream: the one that writes a frame on a device; it need not be done. Otherwise those that arrays were made on.
        timeout: the most seconds to wait for room in a lossless pool, where other threads took what `acquire` waited for. Timeout
        is raised after that, and the frame can be published later.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class ReceiveStats(TypedDict):
    """Figures of a consumer, over all producers that it had.

    missed: frames that were gone when it came for them, also while a lossless producer went on without it.
    held: how many slots it holds, of a producer that is gone too. budget: how many the last producer lets it hold.
    budget_limit: the producer's property that keeps the budget small, "max_held", "max_slots" or "max_bytes"; empty: it has what
    it asked for. latency: from publish to receive, smoothed, in nanoseconds.
    """

    received: int
    missed: int
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
        pool: str,
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
        events: bool = False,
        _look: float | None = None,
    ) -> Self: ...
    @property
    def pool(self) -> str:
        """The pool, as it was named."""
    @property
    def caps(self) -> str | None:
        """The newest caps that are known, also before the first frame."""
    @property
    def stats(self) -> ReceiveStats:
        """Figures, over all producers that this consumer had."""
    # With events=True these give an Event now and then. Any, so that code without events need not test each frame.
    def recv(self, timeout: float | None = None) -> Frame | Any:
        """The next frame; waits for it, at most for so many seconds."""
    def try_recv(self) -> Frame | Any | None:
        """The next frame, if there is one.

        None means that there is none now: what belongs to the first one, such as its caps, may still be on the way.
        """
    def fileno(self) -> int:
        """A descriptor that is readable when there may be something to receive, for select and the like.

        It stays readable until try_recv found nothing. -1 when the consumer is closed.
        """
    def request(self, name: str, data: bytes = b"") -> None:
        """Sends a request to the program that feeds the pool, by name. That program decides what to do."""
    def close(self) -> None:
        """Leaves the pool. Frames that are held stay as they are."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Frame | Any: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class Producer:
    """Publishes frames in a pool.

    pool: name of the pool, or with a slash in it the path of its socket.
    caps: the caps of all frames, for GStreamer. Else they follow from each frame's format, or shape and dtype.
    framerate: frames per second, for the caps: 30, (30000, 1001), or 0 if it varies.
    lossless: wait for slow consumers instead of going on without them.
    lossless_timeout: the most seconds that one of them may delay all before the producer goes on without it. None: for ever, which
    is 0 in xmemsink, and not here.
    history: how many of the newest frames are kept for consumers that join or are behind, at least 1. 0 is 1 here, and not automatic.
    The others are the properties of xmemsink.
    """

    def __new__(
        cls,
        pool: str,
        *,
        caps: str | None = None,
        framerate: int | Fraction | tuple[int, int] | None = None,
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
        """The pool, as it was named."""
    @property
    def caps(self) -> str | None:
        """The caps of the frames that were published last."""
    @property
    def num_consumers(self) -> int:
        """How many consumers there are now."""
    @property
    def stats(self) -> dict[str, Any]:
        """The pool's figures, as `query` gives them."""
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
        """A frame to be written: of a shape and dtype, or of a video format.

        What is in it is whatever its slot held before. Never waits in a live pool; in a lossless one for a slot, and until
        consumers have room for the frame, so that `publish` need not wait then.

        timeout: the most seconds to wait; 0 does not. Timeout is raised after that.
        room: bytes for attachments, with their names and sizes. They lie in the frame's slot: one of whole pages takes at least
        a page more, unless room is 0.
        device: "cuda:0" and so on, for a frame on a CUDA device; else it lies in host memory.
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
        """Publishes an event between two frames, for consumers that ask for events. Returns its sequence.

        Pipelines get it as a custom downstream event of this name, "gap" as a gap.

        name: letters, digits and /-_.:+.
        data: for programs; pipelines do not see it.
        fields: for both, as GStreamer writes them, such as "score=(double)0.9, label=(string)cat".
        pts: when it is; a gap needs it. timestamp: the same on CLOCK_MONOTONIC; by default now.
        timeout: the most seconds to wait for room in a lossless pool. Timeout is raised after that.
        """
    def end_stream(self) -> None:
        """Marks the end of the stream after the last published frame."""
    def wait_for_consumer(self, timeout: float | None = None, *, count: int = 1) -> None:
        """Waits until there are so many consumers, at most for so many seconds."""
    def close(self) -> None:
        """Closes the pool. Frames that are held stay as they are."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class PoolEntry:
    """A pool of the runtime directory."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> PathLike[str]: ...
    @property
    def live(self) -> bool:
        """Whether it has a producer now."""

def pools() -> list[PoolEntry]:
    """The pools of the runtime directory."""

def query(pool: str) -> dict[str, Any]:
    """The figures of a pool, from its producer. Waits at most a second."""

@final
class BufferPool:
    """A pool of buffers with numbers: processes pass each other indices by other means.

    All that open it are equal: each writes and reads. Opening makes nothing.

    max_buffers: the most buffers that this process may write and keep published, from 2 to 4096. max_held: the most buffers of one
    writer that a process may hold at once; the smaller number of writer and reader counts; None: all.
    """

    def __new__(cls, name: str, *, max_buffers: int = 256, max_held: int | None = None) -> Self: ...
    @property
    def name(self) -> str: ...
    def preallocate_cpu(self, size: int, count: int) -> list[int]:
        """Sets `count` buffers of `size` bytes aside, for this size alone and until they are given up. Returns their indices."""
    def preallocate_cuda(self, size: int, count: int, device_id: int = 0) -> list[int]:
        """The same on a CUDA device."""
    def give_up(self, indices: Sequence[int]) -> int:
        """Preallocated buffers may go, or serve other sizes. Returns how many were set aside."""
    @property
    def stats(self) -> dict[str, Any]:
        """The figures of the buffers that this process writes, as those of a producer; `set_aside` counts the preallocated
        ones."""
    def wait_until_read(self, timeout: float | None = None) -> None:
        """Waits until all buffers that this process published were read as often as their counts: they end with it. Raises
        Timeout."""
    def acquire_cpu(self, size: int) -> BufferGuard:
        """A buffer of `size` bytes, to be written."""
    def acquire_cuda(self, size: int, device_id: int = 0) -> BufferGuard:
        """A buffer of `size` bytes on a CUDA device, to be written. The device has to be done with it when it is published
        or released; `forget(stream=...)` is for when it is not yet."""
    def connect(self, meta_index: int) -> None:
        """Connects to the process that wrote this buffer, so that this one is among its `readers`. The first `get` does so too."""
    @property
    def readers(self) -> list[Reader]:
        """The processes that are connected to this one and can read its buffers, for `forget(to=[reader, ...])`."""
    def get(self, meta_index: int) -> BufferGuard:
        """A buffer that was published, for reading. Each call counts as one of its reads."""
    def get_mut(self, meta_index: int) -> BufferGuard:
        """A published buffer, to be edited.

        One that this process wrote is edited in place, unless a process holds it. `forget` publishes it again for the reads that
        are still to come; to release the guard uses up one of them. One of another process is copied, which counts as a read:
        pass on the index that `forget` returns.
        """
    def discard(self, meta_index: int) -> None:
        """Empties a buffer that this process published, whatever its count: for a buffer whose readers never come."""
    def set_ref_count(self, meta_index: int, count: int) -> None:
        """Sets how many reads of a buffer that this process wrote are to come: it is kept until it was got and released this
        often, by whichever processes. Default: 1."""
    def add_ref(self, meta_index: int) -> None:
        """One more reference of this process to a published buffer, without a guard: until `release`."""
    def release(self, meta_index: int) -> bool:
        """Gives back one reference without a guard. Returns whether there was one."""
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Reader:
    """A process that is connected to this one and can read its buffers."""

    @property
    def id(self) -> int:
        """The number of its connection."""
    @property
    def pid(self) -> int:
        """The process, as this one sees it; 0 if it cannot, for example in another PID namespace."""
    @property
    def name(self) -> str:
        """The name of the program."""

@final
class BufferGuard:
    """A buffer of a pool, for as long as this lives, and the arrays over it (`numpy.asarray(buffer)`, `memoryview`)."""

    @property
    def pool(self) -> str:
        """The name of its pool."""
    @property
    def meta_index(self) -> int:
        """The buffer's number, which other processes get it by: one of this use of the buffer."""
    @property
    def buffer(self) -> int:
        """The number of the buffer's memory, as `preallocate_cpu` returns it: the same for each use."""
    @property
    def device(self) -> int | None:
        """The number of the CUDA device that it lies on; None: in host memory."""
    @property
    def size(self) -> int:
        """Its size in bytes."""
    @property
    def readonly(self) -> bool: ...
    @property
    def cpu_ptr(self) -> int:
        """The address of its first byte, for as long as the guard lives."""
    @property
    def cpu_ptr_mut(self) -> int: ...
    @property
    def cuda_ptr(self) -> int:
        """The address on its device. A reader waits until the buffer is written."""
    @property
    def cuda_ptr_mut(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def content_type(self) -> str: ...
    @property
    def producer(self) -> str: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def sequence(self) -> int: ...
    def set_meta(
        self,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any | None = None,
        content_type: str | None = None,
        producer: str | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Describes the buffer for its readers."""
    def clone_ref(self) -> BufferGuard: ...
    def copy_to_cpu(self) -> BufferGuard:
        """A copy in host memory, to be written: a buffer that this process acquired."""
    def copy_to_cuda(self, device_id: int = 0) -> BufferGuard:
        """A copy on a CUDA device, to be written: a buffer that this process acquired."""
    def copy_to_device(self, device_id: int) -> BufferGuard:
        """The same."""
    def forget(
        self, *, to: Sequence[Reader] | None = None, stream: Any | None = None, timeout: float | None = None
    ) -> int:
        """Publishes a buffer that is being written; keeps one that is being read until the pool's `release`.

        to: keeps it until each of these readers got and released it, or ended, in place of the count; other reads do not count.
        stream: on a device, readers wait until it has got where it is now. Without one, the CPU waits for the streams that had
        the buffer by DLPack. timeout: seconds after which the buffer is empty if its readers did not come by then; a
        PoolWarning names the processes that are connected and did not get it.
        Raises ViewsExist while there are arrays over it.
        """
    def release(self, *, stream: Any | None = None) -> None:
        """Gives the buffer back; if there are arrays over it, with the last of these.

        One that was taken to be edited is published again. stream: one on a device that is read is given back when this has got
        where it is now.
        """
    def discard(self) -> None:
        """Gives the buffer back; one that is written, or was taken to be edited, is empty then. A `with` block that ends with an
        exception does so."""
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
class _Room:
    def __buffer__(self, flags: int, /) -> memoryview: ...

def _check_timeout(seconds: float | None) -> None: ...
def _remove_left(pool: str) -> None: ...
def _whereabouts(pool: str) -> str: ...
def _address_of(view: Any) -> int: ...
def _is_shared(start: int, len: int, device: int | None = None) -> bool: ...

_Part = tuple[_Block | _DeviceBlock | bytes, int, tuple[int, ...], tuple[int, ...], str]

def _place_of(plane: Plane) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], str] | None: ...
def _bytes_of(plane: Plane) -> bytes: ...
def _known_of(frame: Frame) -> dict[str, Any]: ...
def _plane_of(part: _Part) -> Plane: ...
def _frame_of(parts: list[_Part], known: dict[str, Any]) -> Frame: ...
