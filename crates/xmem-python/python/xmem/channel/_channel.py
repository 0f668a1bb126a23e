# SPDX-License-Identifier: MPL-2.0

"""`Channel`. The package's documentation describes how it works."""

from __future__ import annotations

import math
import operator
import os
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Self

from .._errors import Closed, EndOfStream, Error, PoolWarning, Timeout
from .._warnings import warn_each_time
from .._waiting import LOOK_AGAIN, Patience, Waiting
from .._xmem import _check_timeout, _ChannelEnd, _whereabouts
from . import _calls, _pickling


# After this many seconds `send` checks whether the other process may be waiting for this one.
_STUCK_AFTER = 5.0


def _waits_for(name):
    return f"waiting for the maker of channel {_whereabouts(os.fspath(name))}"


def _finish(end, linger):
    """Closes an end that was not closed."""
    is_taken = True
    try:
        if not end.is_closed and linger:
            is_taken = end.drain(linger)
    except (Error, KeyboardInterrupt):
        pass
    finally:
        socket, is_closed = os.fspath(end.socket), end.is_closed
        end.close()
    if not is_taken and not is_closed:
        warn_each_time(
            f"channel {socket!r} was closed with unread messages after {linger} s: these may be lost; raise linger to wait longer"
        )


# The receivers of a process that joined are the maker, and the processes that hold its forwarded frames.
def _options(budget, max_slots, max_bytes, lossless_timeout, allow_uids, max_receivers=256):
    return dict(
        budget=budget,
        max_slots=max_slots,
        max_bytes=max_bytes,
        max_receivers=max_receivers,
        lossless_timeout=lossless_timeout,
        allow_uids=list(allow_uids),
    )


def _extent(shape, dtype):
    """A shape as a tuple, a type as NumPy's, and the size in bytes."""
    import numpy

    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise ValueError("an array of Python objects cannot be in shared memory: use a numeric dtype")
    try:
        shape = (operator.index(shape),)
    except TypeError:
        shape = tuple(operator.index(size) for size in shape)
    if any(size < 0 for size in shape):
        raise ValueError(f"an array has no negative size: {shape}")
    return shape, dtype, math.prod(shape, start=dtype.itemsize)


class Room:
    """Shared memory for arrays that are sent together. `Channel.room` makes it."""

    # The alignment of arrays, so that each has its own cache lines.
    _ALIGN = 64

    def __init__(self, memory, size):
        self._memory = memory
        self._size = size
        self._used = 0
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """The size in bytes of the largest array that still fits."""
        return max(self._size - self._next(), 0)

    def _next(self):
        return -(-self._used // self._ALIGN) * self._ALIGN

    def empty(self, shape: int | Sequence[int], dtype: Any = "float64") -> Any:
        """Returns a NumPy array in this memory."""
        import numpy

        shape, dtype, size = _extent(shape, dtype)
        with self._lock:
            offset = self._next()
            if size > self.left:
                raise ValueError(
                    f"an array of {size} bytes does not fit into the {self.left} bytes that are left of {self._size}: "
                    f"request more, and round the size of each array up to a multiple of {self._ALIGN} bytes"
                )
            array = numpy.ndarray(shape, dtype, buffer=self._memory, offset=offset if size else 0)
            self._used = offset + size
        return array


class Channel(Waiting):
    """One end of a channel that carries objects between processes. The constructor makes a channel. `connect` joins a channel.

    Unpickling runs code. So messages are accepted only from processes of this user, and of `allow_uids`.

    All methods can be called from any thread. After a fork, the child cannot use its parent's end, but can join with `connect`.
    In an event loop, use `async for` and the methods that begin with "a".

    name: the name of the channel, or the path of its socket.
    budget: the number of messages of one sender that can be held at once. Further messages are copied.
    inline: arrays and buffers of less than this many bytes are part of the pickle.
    max_slots, max_bytes: limits of the memory for messages that this end sends. max_bytes=0: no limit.
    max_receivers: the number of processes that can join.
    lossless_timeout: the time in seconds after which a receiver that takes nothing is disconnected. None: never.
    linger: how many seconds `close` waits at most for receivers to take all messages.
    """

    def __init__(
        self,
        name: str | PathLike[str],
        *,
        budget: int = 64,
        inline: int = 4096,
        max_slots: int = 2048,
        max_bytes: int = 0,
        max_receivers: int = 256,
        lossless_timeout: float | None = None,
        allow_uids: Sequence[int] = (),
        linger: float = 10.0,
    ) -> None:
        _check_timeout(linger)
        inline = operator.index(inline)
        options = _options(budget, max_slots, max_bytes, lossless_timeout, allow_uids, max_receivers)
        self._start(_ChannelEnd.make(os.fspath(name), options), options, inline, linger)

    @classmethod
    def connect(
        cls,
        name: str | PathLike[str],
        *,
        timeout: float | None = None,
        budget: int = 64,
        inline: int = 4096,
        max_slots: int = 2048,
        max_bytes: int = 0,
        lossless_timeout: float | None = None,
        allow_uids: Sequence[int] = (),
        linger: float = 10.0,
    ) -> Self:
        """Joins a channel. Waits for its maker, at most `timeout` seconds (None: no limit).

        After 2 seconds a PoolWarning names the path where it waits.
        """
        options = _options(budget, max_slots, max_bytes, lossless_timeout, allow_uids)
        patience = Patience(timeout)
        return patience.find(
            lambda look: cls._join(name, options, look, patience, inline, linger), lambda: _waits_for(name)
        )

    @classmethod
    def _join(cls, name, options, look, patience, inline, linger):
        """Searches for the maker for this many seconds of the remaining time."""
        _check_timeout(linger)
        inline = operator.index(inline)
        end = _ChannelEnd.join(os.fspath(name), options, look, patience.left())
        self = cls.__new__(cls)
        self._start(end, options, inline, linger)
        return self

    @classmethod
    async def aconnect(
        cls,
        name: str | PathLike[str],
        *,
        timeout: float | None = None,
        budget: int = 64,
        inline: int = 4096,
        max_slots: int = 2048,
        max_bytes: int = 0,
        lossless_timeout: float | None = None,
        allow_uids: Sequence[int] = (),
        linger: float = 10.0,
    ) -> Self:
        """`connect` in an event loop."""
        options = _options(budget, max_slots, max_bytes, lossless_timeout, allow_uids)
        patience = Patience(timeout)
        return await patience.afind(
            lambda look: cls._join(name, options, look, patience, inline, linger), lambda: _waits_for(name)
        )

    def _start(self, end, options, inline, linger):
        self._start_waiting()
        self._end = end
        self._options = options
        self._inline = inline
        self._linger = linger
        self._said_stuck = False
        self._own_reducers = {}
        self._finalizer = weakref.finalize(self, _finish, end, linger)
        if "multiprocessing.util" in sys.modules:
            # Children of multiprocessing do not run exit handlers.
            from multiprocessing.util import Finalize

            Finalize(self, _finish, (end, linger), exitpriority=0)

    def send(self, obj: Any, *, to: int | None = None, timeout: float | None = None) -> None:
        """Sends an object. The maker sends to all processes that joined, or only to number `to`. Other ends send to the maker.

        Waits at most `timeout` seconds while there is no receiver, or while one is 8 messages behind. If meanwhile this end has
        messages to receive, a PoolWarning names the slow receivers once, because two sides that only send block each other.
        """
        message = _pickling.dumps(obj, self._inline, self._own_reducers)
        patience = Patience(timeout)
        try:
            # Receivers may use the whole time to answer.
            return self._send(message, to, patience.left(_STUCK_AFTER), patience.left())
        except Timeout:
            if patience.is_over():
                raise
        self._warn_if_stuck(2)
        self._send(message, to, patience.left(), patience.left())

    def _warn_if_stuck(self, stacklevel):
        why = None if self._said_stuck else self._end.stuck()
        if why is not None:
            self._said_stuck = True
            warnings.warn(why, PoolWarning, stacklevel + 1)

    def _send(self, message, to, timeout, answer_time):
        from . import _arrays

        pickle, out = message
        _, shared = self._end.send(
            pickle,
            out.blocks,
            owners=out.owners,
            gather=_arrays.gather,
            refs=tuple(out.refs) if out.refs else None,
            leases=list(out.leases.values()),
            to=to,
            timeout=timeout,
            answer_time=answer_time,
        )
        if shared:
            for owner in out.owners:
                if hasattr(owner, "flags"):
                    _arrays.freeze(owner)

    async def asend(self, obj: Any, *, to: int | None = None, timeout: float | None = None) -> None:
        """`send` in an event loop. The object must not change before `asend` returns.

        If `asend` is cancelled, the object may have been sent.
        """
        import asyncio

        message = _pickling.dumps(obj, self._inline, self._own_reducers)
        patience = Patience(timeout)
        while True:
            try:
                return await asyncio.to_thread(self._send, message, to, patience.left(LOOK_AGAIN), patience.left())
            except Timeout:
                if patience.is_over():
                    raise
                if patience.waited() >= _STUCK_AFTER:
                    self._warn_if_stuck(2)

    def recv(self, *, timeout: float | None = None, sender: int | None = None, copy: bool = False) -> Any:
        """Waits for the next object, at most `timeout` seconds, and returns it.

        The object's large arrays are in shared memory, and read-only. torch has no read-only tensors, so a process that writes
        to such a tensor is killed by SIGSEGV. With `copy`, all data is private and writable.

        sender: the number of a sender. Only objects of this sender are returned.
        Raises EndOfStream once the maker (or that sender) has closed its end. Raises ProducerLost if its process ended without
        closing, so messages may be lost.
        """
        return self.recv_from(timeout=timeout, sender=sender, copy=copy)[0]

    def recv_from(
        self, *, timeout: float | None = None, sender: int | None = None, copy: bool = False
    ) -> tuple[Any, int]:
        """Returns what `recv` returns, and the number of the sender. The maker of the channel has 0."""
        return self._loads(self._end.receive(sender, timeout), copy)

    def _loads(self, incoming, copy):
        if copy:
            incoming = incoming.copied()
        return _pickling.loads(incoming), incoming.sender

    async def arecv(self, *, timeout: float | None = None, sender: int | None = None, copy: bool = False) -> Any:
        """`recv` in an event loop."""
        return (await self.arecv_from(timeout=timeout, sender=sender, copy=copy))[0]

    async def arecv_from(
        self, *, timeout: float | None = None, sender: int | None = None, copy: bool = False
    ) -> tuple[Any, int]:
        """`recv_from` in an event loop. A cancelled call loses no message.

        If several tasks of a loop wait, they receive messages in the order of their calls.
        """
        import asyncio

        patience = Patience(timeout)
        try:
            async with asyncio.timeout(timeout), self._turn(sender):
                while (incoming := self._received(sender)) is None:
                    if sender is None:
                        await self._readable()
                    else:
                        # The descriptor reports messages of all senders.
                        await asyncio.to_thread(self._end.poll, sender, patience.left(LOOK_AGAIN))
        except TimeoutError:
            raise Timeout("no message arrived in time") from None
        return self._loads(incoming, copy)

    def _received(self, sender):
        """The next message, or None."""
        try:
            return self._end.receive(sender, 0.0)
        except Timeout:
            return None

    def call(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        to: int | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls a function in the process at the other end, which runs `serve`. Returns its result, or raises its exception.

        function, args: anything that can be sent. A reference arrives as its object, so `operator.methodcaller("name")` calls a
        method of this object. A result that cannot be pickled stays in the other process, and `call` returns a reference to the
        result.
        to: the number of the process, if several have joined. During a call, no other thread can call or receive.
        """
        return _calls.call(self, function, args, kwargs, to, timeout)

    def serve(self) -> None:
        """Runs the functions that others `call`, until the channel is closed. Callers can run any code here, like all senders.

        If a function raises an exception, `call` raises it (SystemExit as RuntimeError), and `serve` continues. Only
        KeyboardInterrupt also ends `serve`, so that Ctrl+C ends the process.
        """
        _calls.serve(self)

    def poll(self, timeout: float | None = 0.0, *, sender: int | None = None) -> bool:
        """Waits until `recv` would return or raise at once, at most `timeout` seconds. Returns whether it would."""
        return self._end.poll(sender, timeout)

    def fileno(self) -> int:
        """A file descriptor that is readable while `recv` would return at once, for select and the like. -1 if closed."""
        return self._end.fileno()

    def __iter__(self) -> Iterator[Any]:
        """The received objects, until the channel is closed. Raises ProducerLost if the maker ended without closing it."""
        while True:
            try:
                yield self.recv()
            except (EndOfStream, Closed):
                return

    async def __aiter__(self) -> AsyncIterator[Any]:
        """The received objects in an event loop."""
        while True:
            try:
                yield await self.arecv()
            except (EndOfStream, Closed):
                return

    def empty(self, shape: int | Sequence[int], dtype: Any = "float64", *, timeout: float | None = None) -> Any:
        """Returns a NumPy array that is sent without a copy. `send` makes it read-only.

        For torch: `torch.from_numpy(channel.empty(...))`. A message can have about seven such arrays. `send` copies further
        arrays. To send more without a copy, make them in one `room`.
        """
        shape, dtype, size = _extent(shape, dtype)
        import numpy

        return numpy.ndarray(shape, dtype, buffer=self._end.room(size, timeout))

    def room(self, size: int, *, timeout: float | None = None) -> Room:
        """Returns shared memory of `size` bytes. Arrays from its `empty` are sent without a copy."""
        size = operator.index(size)
        return Room(self._end.room(size, timeout), size)

    def register(self, cls: type, reduce: Callable[[Any], str | tuple[Any, ...]]) -> None:
        """Sends objects of exactly this class by `reduce(obj)`, which returns the same kind of value as `__reduce__`."""
        self._own_reducers[cls] = reduce

    @property
    def id(self) -> int:
        """The number of this end in the channel. The maker has 0."""
        return self._end.id

    @property
    def socket(self) -> str:
        """The path of the channel's socket."""
        return os.fspath(self._end.socket)

    @property
    def senders(self) -> list[int]:
        """The numbers of the ends that send to this end."""
        return self._end.senders()

    @property
    def receivers(self) -> int:
        """The number of processes that receive from this end."""
        return self._end.receivers()

    def wait_for_receiver(self, timeout: float | None = None, *, count: int = 1) -> None:
        """Waits until `count` processes have joined. The maker then has as many `receivers` and `senders`."""
        self._end.wait_for_receivers(count, timeout)

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until all receivers have taken all messages, at most `timeout` seconds. Returns whether they have."""
        return self._end.drain(timeout)

    def stats(self) -> dict[str, Any]:
        """Statistics: messages, bytes with and without a copy, memory."""
        return self._end.stats()

    def close(self, *, linger: float | None = None) -> None:
        """Waits until all messages are taken, at most `linger` seconds. Then closes this end. The maker's `close` ends the
        channel."""
        _check_timeout(linger)
        self._finalizer.detach()
        _finish(self._end, self._linger if linger is None else linger)

    async def aclose(self, *, linger: float | None = None) -> None:
        """`close` in an event loop."""
        import asyncio

        await asyncio.to_thread(self.close, linger=linger)

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._end.is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.aclose()

    def __copy__(self) -> Self:
        raise TypeError("an end of a channel cannot be copied: share it among threads, or join again with Channel.connect")

    def __deepcopy__(self, _memo: Any) -> Self:
        return self.__copy__()

    def __reduce__(self):
        """Unpickled in another process, an end joins the same channel there."""
        options = {name: value for name, value in self._options.items() if name != "max_receivers"}
        return _rejoin, (self.socket, dict(options, inline=self._inline, linger=self._linger))

    def __repr__(self) -> str:
        state = "closed" if self.closed else "created here" if self.id == 0 else "joined"
        return f"<xmem.Channel {self.socket!r}, {state}>"


def _rejoin(socket, options):
    return Channel.connect(socket, timeout=60, **options)
