# SPDX-License-Identifier: MPL-2.0

"""Frames and buffers in Python's queues, pipes and data loaders, without a copy.

::

    import multiprocessing
    import xmem.multiprocessing

    xmem.multiprocessing.install()          # in each process that sends
    queue = multiprocessing.Queue()
    queue.put({"frame": frame})             # in another process: queue.get()["frame"], the same memory

After `install` the pickles of `multiprocessing` (queues, pipes, pools, arguments of processes, and data loaders of PyTorch)
contain references to memory of xmem in place of its bytes:

- received frames and planes;
- NumPy arrays and torch tensors over these and over objects of a channel, and NumPy arrays over buffers from `get`;
- buffers of a `BufferPool`. A buffer that is being written is published for one read, as by `forget`. A buffer from `get` is
  read by the receiver too, which counts as one more read.

Everything else is sent as before. Received arrays are read-only and hold their memory. They can be sent over an
`xmem.Channel`. Arrays in shared memory of another process are passed on in place if they have at least 64 KiB, up to 8 at a time.

A sender keeps sent objects until the receiver requests them, at most `timeout` seconds. When a receiver is killed, everything that
it had received is released. When the sender has ended, objects that were not received raise `xmem.RefLost`. So at its end a
sender waits for its receivers, at most `linger` seconds. Each pickle can be read once, by a process of the same user that sees the same
temporary directory.

A process that received something by reference can send it on, without `install`; a manager does. In a `Pool` or a
`ProcessPoolExecutor`, an object that could not be received is an object of which each use raises the error: an error while
unpickling would end the worker, and the call would wait forever.

Do not write to a received torch tensor: the process would be killed by SIGSEGV. Other tensors are sent by PyTorch, in its own
shared memory; these can be written.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import pickle
import secrets
import socket
import sys
import threading
import time
import warnings
from multiprocessing import util
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ._errors import Error, PoolWarning, Timeout
from ._xmem import BufferGuard, BufferPool, Frame, Plane, _View, _check_timeout, _is_shared, _remove_left
from .channel import Channel, RefLost, _arrays, ref

__all__ = ["install"]

# The interval in seconds at which a receiver checks whether the sender still runs, and a sender drops what is too old.
_LOOK_AGAIN = 1.0
# Bytes of a request: a token, and the path of the receiver's channel.
_TOKEN, _REQUEST = 16, 4096
# Smaller data are sent in the pickle.
_SMALL = 4096

_timeout: float | None = 600.0
_linger = 10.0


def _is_worker():
    """Whether this is a worker of a data loader. The loader ends it when it needs no more data."""
    torch = sys.modules.get("torch.utils.data")
    return torch is not None and torch.get_worker_info() is not None


def _warn(text):
    """Warns on a thread that must go on for the other receivers, even if warnings are errors."""
    try:
        warnings.warn(text, PoolWarning, stacklevel=1)
    except PoolWarning as error:
        threading.excepthook(threading.ExceptHookArgs((PoolWarning, error, error.__traceback__, threading.current_thread())))


class _Sender:
    """The objects that this process sent and no process has requested yet. A thread answers requests."""

    def __init__(self):
        # In the directory of `multiprocessing`, which only this user can open. Others could send descriptors that take long to close.
        self.address = os.path.join(util.get_temp_dir(), "xmem-" + secrets.token_hex(4))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.socket.bind(self.address)
        self.socket.settimeout(_LOOK_AGAIN)
        self.kept: collections.OrderedDict[bytes, tuple[float, Any]] = collections.OrderedDict()
        self.changed = threading.Condition()
        # Read now, because a worker cannot determine it when it ends.
        self.is_worker = _is_worker()
        # Channels to the processes that sent requests, by path.
        self.channels: dict[str, Channel] = {}
        threading.Thread(target=self._serve, name="xmem-sender", daemon=True).start()

    def _linger(self):
        """How long this process waits before it ends."""
        return 0.0 if self.is_worker else _linger

    def keep(self, obj):
        token = secrets.token_bytes(_TOKEN)
        with self.changed:
            self.kept[token] = (time.monotonic(), obj)
        return self.address, token

    def take(self, token):
        """A list with the object, or an empty list."""
        with self.changed:
            taken = self.kept.pop(token, None)
            self.changed.notify_all()
        return [] if taken is None else [taken[1]]

    def _serve(self):
        while True:
            try:
                request = self.socket.recv(_REQUEST)
                self._answer(request[:_TOKEN], os.fsdecode(request[_TOKEN:]))
            except TimeoutError:
                # No request came in time, or a slow receiver sends its request again.
                pass
            except Exception as error:
                _warn(f"an object could not be sent to another process: {error}")
            self._forget_old()
            self._forget_gone()

    def _answer(self, token, path):
        channel = self.channels.get(path)
        if channel is None or channel.closed:
            channel = self.channels[path] = Channel.connect(path, timeout=_LOOK_AGAIN, linger=self._linger())
            channel.wait_for_receiver(_LOOK_AGAIN)
        with self.changed:
            found = [self.kept[token][1]] if token in self.kept else []
        try:
            channel.send((_Token(token), found), timeout=_LOOK_AGAIN)
        except Error:
            # An error of the channel, for example because this process ends. The receiver asks again.
            raise
        except Exception:
            # It cannot be sent at all.
            self.take(token)
            raise
        # Not earlier, because this process could end meanwhile.
        self.take(token)

    def _forget_gone(self):
        """Closes the channels to processes that have ended. A killed process leaves files."""
        for path, channel in list(self.channels.items()):
            if channel.closed or channel.receivers == 0:
                del self.channels[path]
                channel.close(linger=0)
                _remove_left(path)

    def _forget_old(self):
        old = 0
        while _timeout is not None:
            with self.changed:
                token, (since, _) = next(iter(self.kept.items()), (None, (0.0, None)))
                if token is None or time.monotonic() - since < _timeout:
                    break
            old += len(self.take(token))
        if old:
            _warn(
                f"{old} object(s) sent {_timeout} s ago were not received and have been released: "
                "to keep objects longer, raise the timeout of xmem.multiprocessing.install()"
            )

    def drain(self):
        """Waits for the receivers before the process ends."""
        with self.changed:
            self.changed.wait_for(lambda: not self.kept, self._linger())
        for channel in list(self.channels.values()):
            channel.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address)


class _Token(bytes):
    """The token of an answer. It is unpickled before the object, so it is known if the object cannot be unpickled."""

    def __reduce__(self):
        return _note, (bytes(self),)


class _Answer(threading.local):
    """The answer that a thread unpickles."""

    token: bytes | None = None


_answer = _Answer()


def _note(token):
    _answer.token = token
    return token


class _Receiver:
    """The channel on which this process receives requested objects. One thread at a time reads it, for all threads."""

    def __init__(self):
        self.channel = Channel(f"mp.{os.getpid()}.{secrets.token_hex(4)}")
        self.lock = threading.Condition()
        # Lists as from `_Sender.take`, or why the object could not be unpickled.
        self.arrived: dict[bytes, list[Any] | Exception] = {}
        self.wanted: set[bytes] = set()
        self.is_read = False

    def fetch(self, address, token):
        request = token + os.fsencode(self.channel.socket)
        with self.lock:
            self.wanted.add(token)
        try:
            while True:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
                    asking.settimeout(_LOOK_AGAIN)
                    try:
                        asking.sendto(request, address)
                    except (ConnectionRefusedError, FileNotFoundError):
                        raise RefLost("the process that sent this object has ended") from None
                    except TimeoutError:
                        # The sender is stopped or busy.
                        continue
                found = self._wait(token)
                if found is not None:
                    break
        finally:
            with self.lock:
                self.wanted.discard(token)
                self.arrived.pop(token, None)
        return _the_one(found)

    def _wait(self, token):
        """The answer. None: the request must be repeated, because the sender may have ended."""
        end = time.monotonic() + _LOOK_AGAIN
        while (left := end - time.monotonic()) > 0:
            with self.lock:
                if token in self.arrived:
                    return self.arrived.pop(token)
                if self.is_read:
                    self.lock.wait(left)
                    continue
                self.is_read = True
            try:
                self._read(left)
            finally:
                with self.lock:
                    self.is_read = False
                    self.lock.notify_all()
        with self.lock:
            return self.arrived.pop(token, None)

    def _read(self, timeout):
        _answer.token = None
        try:
            token, found = self.channel.recv(timeout=timeout)
        except Exception as error:
            if _answer.token is not None:
                # For the thread that requested the object.
                token, found = _answer.token, error
            elif isinstance(error, Timeout):
                return
            else:
                raise
        with self.lock:
            # A repeated request gets two answers. The second is dropped.
            if token in self.wanted:
                self.arrived.setdefault(token, found)


_lock = threading.Lock()
_sender: _Sender | None = None
_receiver: _Receiver | None = None
_pools: dict[str, BufferPool] = {}
_is_installed = False


def _drain():
    if _sender is not None:
        _sender.drain()


def _drain_at_the_end(_=None):
    # After the queues have written all of their objects, which is at priority -5. At its end a process only runs finalizers that
    # were registered before, and a queue may pickle its first object even later. Before the temporary directory is removed, at -100.
    util.Finalize(None, _drain, exitpriority=-99)


def _after_fork():
    # A child has neither the threads nor the connections. With the socket, receivers would wait for a sender that has ended.
    global _lock, _sender, _receiver, _pools
    if _sender is not None:
        _sender.socket.close()
    _lock, _sender, _receiver, _pools = threading.Lock(), None, None, {}
    if _is_installed:
        _drain_at_the_end()


os.register_at_fork(after_in_child=_after_fork)


def _the_one(found):
    if isinstance(found, Exception):
        raise found
    if not found:
        raise RefLost(
            "this object was already received, or its sender no longer keeps it: "
            "raise the timeout of xmem.multiprocessing.install()"
        )
    return found[0]


class _Lost:
    """What the function of a pool gets in place of an object that could not be received. Each use of it raises the error.

    An error while unpickling would end the worker, or a thread of the caller, and `map` would wait forever.
    """

    def __init__(self, error):
        self.__dict__["error"] = error


def _raise_lost(self, *_args, **_options):
    raise self.__dict__["error"]


for _name in (
    "getattr setattr array array_interface buffer dlpack dlpack_device len iter getitem setitem contains bool call int float index "
    "enter reduce_ex"
).split():
    setattr(_Lost, f"__{_name}__", _raise_lost)


def _is_in_pool():
    """Whether a pool of processes itself unpickles, and not a function that runs in it."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name in ("multiprocessing.pool", "concurrent.futures.process"):
            return True
        if name not in (__name__, "multiprocessing.connection", "multiprocessing.queues", "multiprocessing.reduction"):
            return False
        frame = frame.f_back
    return False


def _receiving(function):
    """For a function that is called while an object is received: it can be sent on, and an error does not end a pool."""

    @functools.wraps(function)
    def receive(*args):
        _register()
        try:
            return function(*args)
        except Error as error:
            if not _is_in_pool():
                raise
            return _Lost(error)

    return receive


def _keep(obj):
    global _sender
    with _lock:
        if _sender is None:
            _sender = _Sender()
        return _fetch, _sender.keep(obj)


@_receiving
def _fetch(address, token):
    """The object, from the process that sent it."""
    global _receiver
    with _lock:
        if _sender is not None and address == _sender.address:
            return _the_one(_sender.take(token))
        if _receiver is None:
            _receiver = _Receiver()
        receiver = _receiver
    return receiver.fetch(address, token)


def _pool(name):
    with _lock:
        if name not in _pools:
            _pools[name] = BufferPool(name)
        return _pools[name]


@_receiving
def _get(name, index):
    """A buffer that was published to be sent."""
    return _pool(name).get(index)


def _get_held(name, index, address, token):
    """A buffer that its sender holds until this process holds it too or is killed."""
    held = _fetch(address, token)
    if isinstance(held, _Lost):
        return held
    guard = _get(name, index)
    del held
    return guard


def _reduce_guard(guard):
    name = guard.pool
    if guard.readonly:
        _, place = _keep(ref(guard))
        return _get_held, (name, guard.meta_index, *place)
    return _get, (name, guard.forget(timeout=_timeout))


def _array_of(guard, offset, shape, strides, dtype):
    if isinstance(guard, _Lost):
        return guard
    import numpy

    return numpy.ndarray(shape, dtype, buffer=memoryview(guard), offset=offset, strides=strides)


def _guard_of(a):
    """The held buffer that contains an array. None: there is none."""
    while hasattr(a, "base"):
        a = a.base
    while isinstance(a, memoryview | _View):
        a = a.obj
    return a if isinstance(a, BufferGuard) and a.readonly else None


def _reduce_array(a):
    extent = None if a.dtype.hasobject or a.ndim == 0 or a.nbytes < _SMALL else _arrays.extent_of(a)
    if extent is not None:
        address = a.__array_interface__["data"][0]
        if _is_shared(address, extent):
            return _keep(a)
        guard = _guard_of(a)
        if guard is not None:
            return _array_of, (guard, address - guard.cpu_ptr, a.shape, a.strides, a.dtype)
    return a.__reduce_ex__(pickle.DEFAULT_PROTOCOL)


def _reduce_tensor(t):
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    from .channel import _tensors

    is_dense = t.layout is torch.strided and t.device.type in ("cpu", "cuda")
    if is_dense and t.nbytes >= _SMALL and not t.requires_grad:
        first, last = _tensors.extent_of(t)
        device = t.device.index if t.device.type == "cuda" else None
        if _is_shared(t.untyped_storage().data_ptr() + first, last - first, device):
            return _keep(t)
    return reduce_tensor(t)


def install(*, timeout: float | None = 600.0, linger: float = 10.0) -> None:
    """Makes this process send objects in memory of xmem by reference. Call it after `import torch`, if you use torch.

    timeout: the time in seconds after which an object that no process received is released. None: never.
    linger: the longest time in seconds that this process waits for the receivers before it ends.
    """
    global _timeout, _linger
    _check_timeout(timeout)
    _check_timeout(linger)
    _timeout, _linger = timeout, linger
    _register()


def _register():
    """Registers what sends objects by reference. A process that received one, such as a manager, can so send it on."""
    global _is_installed
    with _lock:
        is_first, _is_installed = not _is_installed, True
    if is_first:
        _drain_at_the_end()
        # A process of `multiprocessing` clears the registrations after the fork.
        util.register_after_fork(_Sender, _drain_at_the_end)
        ForkingPickler.register(Frame, _keep)
        ForkingPickler.register(Plane, _keep)
        ForkingPickler.register(BufferGuard, _reduce_guard)
        with contextlib.suppress(ImportError):
            import numpy

            ForkingPickler.register(numpy.ndarray, _reduce_array)
    if "torch" in sys.modules:
        # torch registers its own reductions.
        import torch.multiprocessing

        ForkingPickler.register(torch.Tensor, _reduce_tensor)
