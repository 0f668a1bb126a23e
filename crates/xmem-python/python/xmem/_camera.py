# SPDX-License-Identifier: MPL-2.0

"""A consumer that starts the producer of its pool, the command `xmem share`."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
import warnings
from os import PathLike
from typing import Any, Literal, Self

from . import _xmem
from ._consumer import Consumer
from ._errors import EndOfStream, Error, NoProducer, PoolWarning, Timeout
from ._gstreamer import installed
from ._waiting import Patience
from ._warnings import warn_each_time
from ._xmem import Frame

# How long the command goes on without a consumer, in seconds.
_IDLE = 5
# The interval between checks of a consumer without frames, and the shortest one, also for a program that polls.
_LOOK, _LEAST = 1.0, 0.2
# A warning is emitted if the pool takes longer.
_SAY_AFTER = 10.0

# The commands that this process has started. Those that have ended must be waited for.
_started: list[subprocess.Popen[bytes]] = []


@atexit.register
def _leave() -> None:
    for command in _started:
        if command.poll() is None:
            # It outlives this process on purpose. Python warns about commands without a return code.
            command.returncode = 0


class Camera(Consumer):
    """Receives the frames of a camera, an address or a file, which all processes of this user share.

    >>> for frame in xmem.Camera("/dev/video0"):  # doctest: +SKIP
    ...     image = numpy.asarray(frame)  # RGB: (height, width, 3)

    The first process starts the command `xmem share`, which opens the source and decodes it for all processes. The command ends 5
    seconds after the last process has left or was killed. If the command is killed or the source fails, recv, arecv and loops
    start the command again, with a PoolWarning. But they raise Error if no frame has come yet.

    source: a camera such as "/dev/video0", an address such as "rtsp://host/path", a file (played once), "test", or GStreamer
        elements joined by " ! ". Other users can see the password of an address in the list of processes.
    timeout: the longest wait in seconds for the pool, at the start and after the pool was lost. None: no limit.

    The other arguments are those of Consumer. `pool` is the name of the pool, such as "camera-video0", for other programs.
    """

    _share: _Share
    # The last warning, which is not repeated.
    _said: str

    def __new__(
        cls,
        source: str | PathLike[str],
        *,
        timeout: float | None = None,
        max_held: int | None = None,
        name: str | None = None,
        start_from: Literal["next", "newest", "oldest"] = "next",
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
            over_budget=over_budget,
            busy_poll=busy_poll,
            newest_only=newest_only,
            max_rate=max_rate,
            dmabuf=dmabuf,
            events=events,
        )
        share = _Share(source)
        patience = Patience(timeout)
        said = False
        while True:
            share.ensure()
            try:
                self = cls._make(share.pool, options, patience.left(_LEAST))
                break
            except NoProducer:
                if patience.is_over():
                    raise NoProducer(f"{share.waiting()}, for {timeout} s") from None
            if not said and patience.waited() > _SAY_AFTER:
                said = True
                warnings.warn(share.waiting(), PoolWarning, stacklevel=2)
        self._share = share
        self._said = ""
        self._warn_of_budget(max_held)
        return self

    @classmethod
    async def connect(cls, source: str | PathLike[str], **options: Any) -> Self:
        """Creates a camera without blocking the event loop. The arguments are those of the constructor."""
        import asyncio

        return await asyncio.to_thread(cls, source, **options)

    def recv(self, timeout: float | None = None) -> Frame | Any:
        """Waits for the next frame, at most `timeout` seconds, and returns it."""
        patience, dropped = Patience(timeout), self._dropped()
        while True:
            try:
                return super().recv(patience.left(_LOOK))
            except NoProducer:
                raise
            except Timeout:
                self._ensure()
            if patience.is_over():
                raise Timeout(self._no_frame(timeout or 0, dropped))

    def __next__(self) -> Frame | Any:
        try:
            return self.recv()
        except EndOfStream:
            raise StopIteration from None

    async def arecv(self, timeout: float | None = None) -> Frame | Any:
        """`recv` in an event loop. Raises the same exceptions."""
        import asyncio

        patience, dropped = Patience(timeout), self._dropped()
        while True:
            try:
                return await super().arecv(patience.left(_LOOK))
            except NoProducer:
                raise
            except Timeout:
                await asyncio.to_thread(self._ensure)
            if patience.is_over():
                raise Timeout(self._no_frame(timeout or 0, dropped))

    def _ensure(self) -> None:
        try:
            self._share.ensure()
        except Error as error:
            if not self.stats["received"]:
                raise
            if str(error) != self._said:
                self._said = str(error)
                warn_each_time(f"{error}. Trying again")


class _Share:
    """The command for a source."""

    # A descriptor, because a file object that is not closed makes Python warn.
    _printed: int | None = None

    def __init__(self, source: str | PathLike[str]) -> None:
        self.source = os.fsdecode(source)
        is_path = self.source != "test" and " ! " not in self.source and "://" not in self.source
        if is_path:
            # Not the target of a link, which may change.
            self.source = os.path.abspath(self.source)
        self.pool = _pool_of(self.source)
        self._running: subprocess.Popen[bytes] | None = None
        self._next_look = 0.0
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if self._printed is not None:
            os.close(self._printed)

    def waiting(self) -> str:
        return f"waiting for `xmem share` to make the pool {_xmem._whereabouts(self.pool)}"

    def ensure(self) -> None:
        """Starts the command, unless it runs or the pool has another producer. Raises Error once if it has failed."""
        with self._lock:
            self._ensure()

    def _ensure(self) -> None:
        failure = ""
        if self._running is not None:
            if self._running.poll() is None:
                return
            self._running = None
            failure = self._failure()
        if not failure and time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LEAST
        try:
            _xmem.query(self.pool)
            return
        except NoProducer:
            pass
        if failure:
            raise Error(failure)
        # While another process's command runs, this one ends at once and without a message.
        command = [_command(), "share", f"--pool={self.pool}", "--format=RGB", f"--idle={_IDLE}"]
        if os.path.isfile(self.source):
            # A film begins with its first consumer.
            command.append("--set=wait-for-connection=true")
        _started[:] = [it for it in _started if it.poll() is None]
        try:
            self._start([*command, "--", self.source])
        except OSError as error:
            raise Error(
                f"cannot start the command `xmem share`: {error}. Install it again if it is gone, or end other programs if this "
                "machine or its limits (ulimit) are short of processes, descriptors or memory"
            ) from error

    def _start(self, command: list[str]) -> None:
        printed = os.memfd_create("xmem-share")
        try:
            self._running = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=printed,
                # Ctrl+C in the terminal of this process is not for other processes that read the pool.
                start_new_session=True,
            )
        except BaseException:
            os.close(printed)
            raise
        self._printed = printed
        _started.append(self._running)

    def _failure(self) -> str:
        """What the command printed, which it does only if it fails."""
        if self._printed is None:
            return ""
        with os.fdopen(self._printed, "rb") as printed:
            self._printed = None
            printed.seek(0)
            return printed.read().decode(errors="replace").strip().removeprefix("xmem: ")


def _command() -> str:
    """The command of this installation, or of the system."""
    own = installed("xmem")
    if (command := str(own) if own else shutil.which("xmem")) is None:
        raise Error("xmem.Camera needs the command `xmem`, which is not on PATH: install the wheel of gst-xmem, or the package xmem")
    return command


def _pool_of(source: str) -> str:
    """The name of a source's pool: readable, the same for all processes, and without passwords."""
    if source == "test":
        return "camera-test"
    if " ! " in source:
        place, name = source, "pipeline"
    elif "://" in source:
        scheme, _, rest = source.partition("://")
        user, _, place = rest.rpartition("@")
        if "/" in user and ":" not in user:
            # This @ is in the path.
            place = rest
        place, name = f"{scheme}://{place}", place.partition("?")[0]
    else:
        place = os.path.realpath(source)
        if device := re.fullmatch("/dev/(video[0-9]+)", place):
            return f"camera-{device[1]}"
        name = os.path.basename(place)
    name = re.sub("[^A-Za-z0-9.]+", "-", name)[:40].strip("-.")
    return f"camera-{name}-{hashlib.sha256(os.fsencode(place)).hexdigest()[:8]}"
