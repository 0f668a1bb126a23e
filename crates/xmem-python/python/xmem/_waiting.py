# SPDX-License-Identifier: MPL-2.0

"""Waiting in event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waiting:
    """Has tasks of any event loop wait for a descriptor, that of `fileno`."""

    fileno: Callable[[], int]

    def _start_waiting(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}

    async def _readable(self) -> None:
        """Waits until there may be something to receive."""
        loop = asyncio.get_running_loop()
        fd = self.fileno()
        waiting = self._waiting.setdefault(loop, set())
        if not waiting:
            # An event loop takes one callback for a descriptor, and several tasks may wait.
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
