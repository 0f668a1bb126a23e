# SPDX-License-Identifier: MPL-2.0

"""The consumer of the extension module, with methods for asyncio."""

from __future__ import annotations

import os
import sys
import warnings

from . import _xmem
from ._errors import EndOfStream, PoolWarning, Timeout
from ._waiting import Patience, Waiting
from ._xmem import Frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any, Literal, Self


class Consumer(Waiting, _xmem.Consumer):
    """Receives the frames of a pool.

    >>> for frame in xmem.Consumer("cam0"):  # doctest: +SKIP
    ...     image = numpy.asarray(frame)

    The constructor waits for a producer. After 2 seconds it warns once (PoolWarning). Iteration ends when the producer's
    stream ends. The arguments are the properties of xmemsrc:

    pool: the name of the pool, or the path of its socket, which contains a slash.
    timeout: the longest wait in seconds for a producer, at the start and after a producer was lost. None: no limit.
    max_held: the budget, that is, how many frames this consumer can hold at once. None: 8. The producer may allow fewer. Then a
        PoolWarning names the cause: at once if you set max_held, otherwise when the budget is used up. stats["budget"] is the
        present budget, stats["budget_limit"] the producer's property that limits it.
    name: the name of this consumer in the producer's statistics. Default: the name of the program.
    start_from: the first frame: the "next" one that is published, the "newest", or the "oldest" that is still kept. A consumer
    that has waited for its producer begins with the first frame that is kept, in place of the next.
    on_eos: whether to "end" the iteration at the end of the stream, or to "wait" for the next stream.
    on_producer_lost: when the producer has ended, "wait" for the next producer, "end" the iteration, or "raise"
    ProducerLost. After a disconnect by lossless_timeout, "wait" joins again, with a PoolWarning. "end" and "raise" raise
    ProducerLost, because the stream has not ended.
    over_budget: when max_held frames are held, "copy" the next frame into private memory, "drop" it, or "raise" OverBudget.
    busy_poll: the time in seconds to spin for the next frame before sleeping, which uses a core but saves the wake-up.
    newest_only: skip a frame if a newer one exists, for programs that are slower than the camera. Skipped frames count as missed.
    max_rate: the most frames per second to receive, on average. None: all. Frames in between do not wake this process, and count
        as skipped. Not for encoded streams, whose frames depend on one another.
    dmabuf: receive frames as DMA buffers, for Frame.dmabuf. A frame without one raises an Error with the reason.
    events: also receive events between frames, as xmem.Event.
    """

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
    ) -> Self:
        options = dict(
            timeout=timeout,
            max_held=max_held,
            name=name,
            start_from=start_from,
            on_eos=on_eos,
            on_producer_lost=on_producer_lost,
            over_budget=over_budget,
            busy_poll=busy_poll,
            newest_only=newest_only,
            max_rate=max_rate,
            dmabuf=dmabuf,
            events=events,
        )
        self = Patience(timeout).find(lambda look: cls._make(pool, options, look), lambda: _waits_for(pool))
        self._warn_of_budget(max_held)
        return self

    @classmethod
    def _make(cls, pool: str | PathLike[str], options: dict[str, Any], look: float | None) -> Self:
        """One attempt to find a producer, for this many seconds of the timeout."""
        if options["name"] is None:
            program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
            options = dict(options, name=program)
        self = super().__new__(cls, pool, _look=look, **options)
        self._start_waiting()
        return self

    def _warn_of_budget(self, max_held: int | None) -> None:
        # Only for the first producer, because the next one is usually the same program.
        if max_held is None:
            return
        stats = self.stats
        budget, limit = stats["budget"], stats["budget_limit"]
        if limit:
            warnings.warn(
                f"consumer of pool {self.pool!r}: you requested max_held={max_held}, but the producer allows {budget}: "
                f"raise {limit} of the Producer, or {limit.replace('_', '-')} on xmemsink",
                PoolWarning,
                stacklevel=3,
            )

    @classmethod
    async def connect(
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
    ) -> Self:
        """Creates a consumer without blocking the event loop while there is no producer."""
        options = dict(
            timeout=timeout,
            max_held=max_held,
            name=name,
            start_from=start_from,
            on_eos=on_eos,
            on_producer_lost=on_producer_lost,
            over_budget=over_budget,
            busy_poll=busy_poll,
            newest_only=newest_only,
            max_rate=max_rate,
            dmabuf=dmabuf,
            events=events,
        )
        self = await Patience(timeout).afind(lambda look: cls._make(pool, options, look), lambda: _waits_for(pool))
        self._warn_of_budget(max_held)
        return self

    def request_key_frame(self) -> None:
        """Requests a key frame with its headers from the encoder of the pool's stream, as soon as possible."""
        # The form of xmemsrc's request: with all headers, and without a time.
        self.request("force-key-unit", bytes([1]) + bytes(8))

    async def arecv(self, timeout: float | None = None) -> Frame | Any:
        """`recv` in an event loop. Raises the same exceptions.

        A timeout of 0 is like try_recv: no frame may be ready, because data that the first frame needs, such as its caps, has
        not arrived yet.

        Several tasks of a loop get frames in the order of their calls.
        """
        import asyncio

        _xmem._check_timeout(timeout)
        dropped = self._dropped()
        try:
            async with asyncio.timeout(timeout), self._turn():
                while (frame := self.try_recv()) is None:
                    await self._readable()
                return frame
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            raise Timeout(self._no_frame(timeout or 0, dropped)) from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame | Any:
        try:
            return await self.arecv()
        except EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _waits_for(pool: str | PathLike[str]) -> str:
    return f"waiting for a producer of pool {_xmem._whereabouts(pool)}"
