# SPDX-License-Identifier: MPL-2.0

"""``Channel``. The package's documentation describes how it works."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Self

from .._errors import Closed, EndOfStream, Error, PoolWarning, Timeout
from .._waiting import LOOK_AGAIN, Patience, Waiting
from .._xmem import _check_timeout, _ChannelEnd, _whereabouts
from . import _calls, _pickling


# After how many seconds `send` looks whether it waits for a process that may wait for this one.
_STUCK_AFTER = 5.0


def _waits_for(name):
    return f"waiting for the maker of channel {_whereabouts(os.fspath(name))}"


def _finish(end, linger):
    """Ends an end that was not closed."""
    try:
        if not end.is_closed:
            if linger:
                end.drain(linger)
            end.close()
    except (Error, KeyboardInterrupt):
        end.close()


# Receivers of a process that joined are the maker, and the holders of what is passed on.
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
        raise ValueError("an array of Python objects does not lie in shared memory: use a type of numbers")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return shape, dtype, math.prod(shape, start=dtype.itemsize)


class Room:
    """Room for arrays that are sent together, in one piece of shared memory. Made by ``Channel.room``."""

    # Where arrays begin: each has its own cache lines.
    _ALIGN = 64

    def __init__(self, memory, size):
        self._memory = memory
        self._size = size
        self._used = 0
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """How many bytes one more array may have."""
        return max(self._size - self._next(), 0)

    def _next(self):
        return -(-self._used // self._ALIGN) * self._ALIGN

    def empty(self, shape: int | Sequence[int], dtype: Any = "float64") -> Any:
        """A NumPy array in it."""
        import numpy

        shape, dtype, size = _extent(shape, dtype)
        with self._lock:
            offset = self._next()
            if size > self.left:
                raise ValueError(
                    f"an array of {size} bytes does not fit into the {self.left} bytes that are left of {self._size}: "
                    f"ask for more, counting each array in multiples of {self._ALIGN} bytes"
                )
            self._used = offset + size
        return numpy.ndarray(shape, dtype, buffer=self._memory, offset=offset if size else 0)


class Channel(Waiting):
    """One end of a channel that objects travel through. Making one makes the channel; ``connect`` joins it.

    Unpickling runs code: messages are taken of this user's processes only, and of ``allow_uids``.

    All methods may be called from any thread. After a fork, the child joins by itself. In an event loop: `async for`, and
    the methods whose names begin with an a.

    name: the channel's name, or the path of its socket. budget: how many messages of one sender are held at once; what
    comes then is copied. inline: what is smaller, in bytes, travels in the pickle. max_slots, max_bytes: limits of the
    memory of what this end sends (0: none). max_receivers: how many processes may join. lossless_timeout: after how many
    seconds a receiver that takes nothing is not waited for any more (None: never; not 0). linger: how many seconds `close` waits
    until all was taken.
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
        """Joins a channel; waits for its maker, at most `timeout` seconds (None: for ever).

        After 2 seconds without one it warns once where it waits (PoolWarning).
        """
        options = _options(budget, max_slots, max_bytes, lossless_timeout, allow_uids)
        patience = Patience(timeout)
        return patience.find(
            lambda look: cls._join(name, options, look, patience, inline, linger), lambda: _waits_for(name)
        )

    @classmethod
    def _join(cls, name, options, look, patience, inline, linger):
        """Looks for the maker for so many seconds of the time that there is."""
        _check_timeout(linger)
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
            # Its children end without what runs at exit otherwise.
            from multiprocessing.util import Finalize

            Finalize(self, _finish, (end, linger), exitpriority=0)

    def send(self, obj: Any, *, to: int | None = None, timeout: float | None = None) -> None:
        """Sends an object: the maker to all that joined or to one of them (`to`, a sender's number), others to the maker.

        Waits for a receiver if there is none, and while one is 8 frames behind; at most `timeout` seconds. If messages
        wait here unreceived meanwhile, it names once the processes that do not take its messages (PoolWarning): two sides
        that only send wait for each other.
        """
        message = _pickling.dumps(obj, self._inline, self._own_reducers)
        patience = Patience(timeout)
        try:
            # The time that receivers have to answer is the whole.
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
        """`send` in an event loop. The object must not change before it returns; called off, it may be sent or not."""
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
        """The next object. Waits for it, at most `timeout` seconds.

        Its large arrays lie in shared memory and are read-only; torch does not know that, and a process that writes into
        such a tensor is ended by the system. With `copy` all of it is private and writable.

        sender: of whom; raises EndOfStream when that one is gone.
        """
        return self.recv_from(timeout=timeout, sender=sender, copy=copy)[0]

    def recv_from(
        self, *, timeout: float | None = None, sender: int | None = None, copy: bool = False
    ) -> tuple[Any, int]:
        """The same, and the number of its sender: 0 is the channel's maker."""
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
        """`recv_from` in an event loop. No message is lost when it is called off.

        Several tasks of a loop that ask for the same get messages in the order in which they asked.
        """
        patience = Patience(timeout)
        try:
            async with asyncio.timeout(timeout), self._turn(sender):
                while (incoming := self._received(sender)) is None:
                    if sender is None:
                        await self._readable()
                    else:
                        # The descriptor is for messages of all senders.
                        await asyncio.to_thread(self._end.poll, sender, patience.left(LOOK_AGAIN))
        except TimeoutError:
            raise Timeout("no message came in time") from None
        return self._loads(incoming, copy)

    def _received(self, sender):
        """The message, if one came."""
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

        function, args: what can be sent. A reference is the object itself there, so that `operator.methodcaller("name")` calls a
        method of it. A result that does not pickle stays there, and a reference to it is returned.
        to: the number of the process, for the maker of a channel that several joined. One thread at a time calls, and nothing else
        is received meanwhile.
        """
        return _calls.call(self, function, args, kwargs, to, timeout)

    def serve(self) -> None:
        """Runs what others `call`, until the channel is closed. A caller can have anything run, as any sender can."""
        _calls.serve(self)

    def poll(self, timeout: float | None = 0.0, *, sender: int | None = None) -> bool:
        """Whether `recv` would return at once, or raise. Waits for that, at most `timeout` seconds."""
        return self._end.poll(sender, timeout)

    def fileno(self) -> int:
        """A descriptor that is readable while `recv` would return at once, for select and the like. -1 when it is closed."""
        return self._end.fileno()

    def __iter__(self) -> Iterator[Any]:
        """Objects, until no more come."""
        while True:
            try:
                yield self.recv()
            except (EndOfStream, Closed):
                return

    async def __aiter__(self) -> AsyncIterator[Any]:
        """The same in an event loop."""
        while True:
            try:
                yield await self.arecv()
            except (EndOfStream, Closed):
                return

    def empty(self, shape: int | Sequence[int], dtype: Any = "float64", *, timeout: float | None = None) -> Any:
        """A NumPy array that will be sent without a copy. Once it was sent it is read-only, and must not be written.

        For torch: ``torch.from_numpy(channel.empty(...))``. Some seven such arrays of a message are not copied, and the
        others are; for more, make them in one `room`.
        """
        shape, dtype, size = _extent(shape, dtype)
        import numpy

        return numpy.ndarray(shape, dtype, buffer=self._end.room(size, timeout))

    def room(self, size: int, *, timeout: float | None = None) -> Room:
        """Room of so many bytes for arrays that will be sent without a copy: make them with its `empty`."""
        return Room(self._end.room(size, timeout), size)

    def register(self, cls: type, reduce: Callable[[Any], str | tuple[Any, ...]]) -> None:
        """Has objects of exactly this class sent by `reduce(obj)`, which returns what ``__reduce__`` would."""
        self._own_reducers[cls] = reduce

    @property
    def id(self) -> int:
        """This end's number in the channel; 0 is the maker's."""
        return self._end.id

    @property
    def socket(self) -> str:
        """The path of the channel's socket."""
        return os.fspath(self._end.socket)

    @property
    def senders(self) -> list[int]:
        """The numbers of those whose messages are taken here."""
        return self._end.senders()

    @property
    def receivers(self) -> int:
        """How many processes take what is sent here."""
        return self._end.receivers()

    def wait_for_receiver(self, timeout: float | None = None, *, count: int = 1) -> None:
        """Waits until so many joined: `receivers` are as many then, and where the channel was made, `senders` are."""
        self._end.wait_for_receivers(count, timeout)

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until all receivers took all messages. Returns whether they did."""
        return self._end.drain(timeout)

    def stats(self) -> dict[str, Any]:
        """Figures: messages, bytes that were copied and that were not, memory."""
        return self._end.stats()

    def close(self, *, linger: float | None = None) -> None:
        """Waits until all was taken, at most `linger` seconds, and ends the channel, or this process's part in it."""
        _check_timeout(linger)
        self._finalizer.detach()
        _finish(self._end, self._linger if linger is None else linger)

    async def aclose(self, *, linger: float | None = None) -> None:
        """`close` in an event loop."""
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

    def __reduce__(self):
        """In another process: one more end of the same channel, which joins it."""
        options = {name: value for name, value in self._options.items() if name != "max_receivers"}
        return _rejoin, (self.socket, dict(options, inline=self._inline, linger=self._linger))

    def __repr__(self) -> str:
        state = "closed" if self.closed else "made here" if self.id == 0 else "joined"
        return f"<xmem.Channel {self.socket!r}, {state}>"


def _rejoin(socket, options):
    return Channel.connect(socket, timeout=60, **options)
