# SPDX-License-Identifier: MPL-2.0

"""Waits, in threads and in event loops."""

from __future__ import annotations

import time
import warnings
from weakref import WeakKeyDictionary, WeakValueDictionary

from ._errors import NoProducer, PoolWarning
from ._xmem import _check_timeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    # It takes as long to load as the rest of this module. Functions that need it run in an event loop, which has loaded it.
    import asyncio
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from typing import TypeVar

    T = TypeVar("T")

# The interval at which a thread that waits for an event loop checks whether the loop still waits.
LOOK_AGAIN = 0.2
# A warning is emitted after a wait of this many seconds, as in xmemsrc.
SAY_AFTER = 2.0


class Patience:
    """The timeout of a wait in several steps, in seconds. None: no limit."""

    def __init__(self, timeout: float | None) -> None:
        _check_timeout(timeout)
        self._began = time.monotonic()
        self._timeout = timeout

    def waited(self) -> float:
        return time.monotonic() - self._began

    def left(self, most: float | None = None) -> float | None:
        """The remaining time, limited to the argument."""
        if self._timeout is None:
            return most
        left = max(0.0, self._timeout - self.waited())
        return left if most is None else min(left, most)

    def is_over(self) -> bool:
        return self._timeout is not None and self.waited() >= self._timeout

    def find(self, look: Callable[[float | None], T], waiting: Callable[[], str]) -> T:
        """Calls `look` with the time that it may take. After 2 seconds without a result, warns once and calls it again.

        The warning names the line that called the method that calls this.
        """
        try:
            return look(self.left(SAY_AFTER))
        except NoProducer:
            if self.is_over():
                raise
        warnings.warn(waiting(), PoolWarning, stacklevel=3)
        return look(self.left())

    async def afind(self, look: Callable[[float | None], T], waiting: Callable[[], str]) -> T:
        """`find` without blocking the event loop."""
        import asyncio

        said = False
        while True:
            try:
                return await asyncio.to_thread(look, self.left(LOOK_AGAIN))
            except NoProducer:
                if self.is_over():
                    raise
            if not said and self.waited() >= SAY_AFTER:
                said = True
                warnings.warn(waiting(), PoolWarning, stacklevel=3)


class Waiting:
    """Lets tasks of any event loop wait for the descriptor that `fileno` returns."""

    if TYPE_CHECKING:

        def fileno(self) -> int: ...

    def _start_waiting(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[int | None, asyncio.Lock]]
        self._turns = WeakKeyDictionary()

    def _turn(self, sender: int | None = None) -> AbstractAsyncContextManager[None]:
        """Queues the waiting tasks of a loop, so that they get items in the order of their requests."""
        import asyncio

        turns = self._turns.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
        # Its owner and waiting tasks keep it alive.
        lock = turns.get(sender)
        if lock is None:
            turns[sender] = lock = asyncio.Lock()
        return lock

    async def _readable(self) -> None:
        """Waits until something may be received."""
        import asyncio

        loop = asyncio.get_running_loop()
        fd = self.fileno()
        if fd < 0:
            # Another thread closed it. The next call raises the error.
            return
        waiting = self._waiting.setdefault(loop, set())
        if not waiting:
            # An event loop accepts only one callback for a descriptor, and several tasks may wait.
            loop.add_reader(fd, self._wake, waiting)
        future = loop.create_future()
        waiting.add(future)
        try:
            await future
        finally:
            waiting.discard(future)
            if not waiting:
                loop.remove_reader(fd)
                del self._waiting[loop]

    def _wake(self, waiting: set[asyncio.Future[None]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(None)
