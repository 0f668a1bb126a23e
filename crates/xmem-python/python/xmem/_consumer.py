# SPDX-License-Identifier: MPL-2.0

"""The consumer, with what asyncio needs on top of the extension's."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any, Self

from . import _xmem
from ._errors import EndOfStream, NoProducer, Timeout
from ._waiting import Waiting
from ._xmem import Frame

# How long a thread waits for a producer before it looks whether anybody still wants one.
_LOOK_AGAIN = 0.2


class Consumer(Waiting, _xmem.Consumer):
    """Takes the frames of a pool.

    >>> for frame in xmem.Consumer("cam0"):  # doctest: +SKIP
    ...     image = numpy.asarray(frame)

    Making one waits for a producer; iterating ends with the producer's stream. The arguments are those of xmemsrc:

    pool: name of the pool, or with a slash in it the path of its socket.
    timeout: how many seconds to wait for a producer, at the start and when one was lost. None: for ever.
    max_held: how many frames this consumer may hold at once, its budget. The producer may grant fewer.
    name: what the producer's figures show. The program's name, if there is none.
    start_from: "next" frame that is published, the "newest", or the "oldest" that is still kept.
    on_eos: when the stream is over, "end" the iteration or "wait" for whatever follows.
    on_producer_lost: when the producer is gone, "wait" for the next one, "end" the iteration, or "raise" ProducerLost.
    over_budget: when max_held frames are held, "copy" the next one into memory of its own, "drop" it, or "raise" OverBudget.
    busy_poll: seconds to spin for the next frame before sleeping. Takes a core, saves the time of waking up.
    events: take what happened between frames too: each is an xmem.Event in its place among the frames.
    """

    def __new__(cls, pool: str, *, name: str | None = None, **options: Any) -> Self:
        if name is None:
            name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
        self = super().__new__(cls, pool, name=name, **options)
        self._start_waiting()
        return self

    @classmethod
    async def connect(cls, pool: str, *, timeout: float | None = None, **options: Any) -> Self:
        """Makes a consumer without blocking the event loop while there is no producer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK_AGAIN if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                made = await asyncio.to_thread(cls, pool, timeout=min(left, _LOOK_AGAIN), **options)
            except NoProducer:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            else:
                made._set_patience(timeout)
                return made

    def request_key_frame(self) -> None:
        """Asks an encoder that feeds the pool for a key frame, with its headers, as soon as possible."""
        # As xmemsrc asks: with all headers, and at no certain time.
        self.request("force-key-unit", bytes([1]) + bytes(8))

    async def arecv(self, timeout: float | None = None) -> Frame | Any:
        """The next frame; waits for it in the event loop. Raises what recv raises."""
        try:
            async with asyncio.timeout(timeout):
                while (frame := self.try_recv()) is None:
                    await self._readable()
                return frame
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            raise Timeout(f"no frame came in {timeout} s") from None

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
