# SPDX-License-Identifier: MPL-2.0

"""Objects that stay in their process."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from typing import Any

from .._errors import Error


class RefLost(Error, ReferenceError):
    """A reference cannot be resolved to its object."""

    __module__ = "xmem"


class _Target:
    """The target of references to an object. Each reference holds it, and each process that holds a reference for others."""

    __slots__ = ("obj", "number", "__weakref__")

    def __init__(self, obj, number):
        self.obj = obj
        self.number = number


def _start_time(pid):
    """The start time of a process in the kernel's ticks. It distinguishes processes with the same ID. None: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


class _Objects:
    """The objects that this process keeps for others."""

    def __init__(self):
        self.key = os.urandom(16)
        self.pid = os.getpid()
        self.started = _start_time(self.pid)
        self.targets = weakref.WeakValueDictionary()
        # The targets by the id of their objects. A target keeps its object, so no other object has that id.
        self.by_id = weakref.WeakValueDictionary()
        # Weakly referenced objects, which other code keeps alive.
        self.objects = weakref.WeakValueDictionary()
        self.numbers = itertools.count(1)
        # Reentrant, because an object that is freed meanwhile may create a reference to another one.
        self.lock = threading.RLock()

    def find_or_make(self, obj):
        """The one target of an object."""
        with self.lock:
            target = self.by_id.get(id(obj))
            if target is None:
                target = _Target(obj, next(self.numbers))
                self.by_id[id(obj)] = target
                self.targets[target.number] = target
                try:
                    self.objects[target.number] = obj
                except TypeError:
                    # A list or a number cannot be weakly referenced: only its target keeps it.
                    pass
            return target

    def find(self, number):
        """A list with the object of a number, or an empty list if it no longer exists."""
        target = self.targets.get(number)
        if target is not None:
            return [target.obj]
        obj = self.objects.get(number)
        return [] if obj is None else [obj]


_objects = _Objects()


def _after_fork():
    # The child has copies of the objects, but no reference refers to them.
    global _objects
    _objects = _Objects()


os.register_at_fork(after_in_child=_after_fork)


class Ref:
    """A reference to an object of some process. Made by `xmem.ref`, or received."""

    __slots__ = ("_token", "_target", "_lease", "__weakref__")

    def __init__(self, token, target, lease):
        self._token = token
        self._target = target
        self._lease = lease

    @property
    def is_here(self) -> bool:
        """Whether the object is in this process."""
        return self._token[0] == _objects.key

    @property
    def type_name(self) -> str:
        """The class of the object."""
        return self._token[4]

    @property
    def home_pid(self) -> int:
        """The object's process, in its own PID namespace."""
        return self._token[2]

    @property
    def is_held(self) -> bool:
        """Whether this reference keeps the object, as far as this process knows.

        It does not if this process already held as much as it may when the reference arrived. If receivers could not reach the
        object's own process, the reference ends with the process that it came from.
        """
        if self._target is not None:
            return True
        return self._lease is not None and self._lease.is_held and self.is_alive is not False

    @property
    def is_alive(self) -> bool | None:
        """Whether the object's process still runs. None: this can't be determined from here."""
        if self.is_here:
            return True
        pid, started = self._token[2], self._token[3]
        now = _start_time(pid)
        if now is None and _start_time("self") is None:
            return None
        return now == started

    def get(self) -> Any:
        """Returns the object. Works only in the object's own process."""
        if self._target is not None and self.is_here:
            return self._target.obj
        raise RefLost(
            f"the object of this reference ({self.type_name}) is only available in process {self.home_pid}"
            + (", which has ended" if self.is_alive is False else ": send the reference back")
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self._token[:2] == other._token[:2]

    def __hash__(self) -> int:
        return hash(self._token[:2])

    def __repr__(self) -> str:
        where = "here" if self.is_here else f"in process {self.home_pid}"
        return f"<xmem.Ref to a {self.type_name} {where}>"

    def __reduce__(self):
        raise TypeError("a reference can only be sent through an xmem.Channel")


def ref(obj: Any) -> Ref:
    """A reference to an object, which stays in this process for as long as a process has the reference."""
    if isinstance(obj, Ref):
        return obj
    target = _objects.find_or_make(obj)
    kind = type(obj)
    token = (_objects.key, target.number, _objects.pid, _objects.started, f"{kind.__module__}.{kind.__qualname__}")
    return Ref(token, target, None)


def resolve(token, lease):
    """A received reference; its object, if the object is in this process."""
    token = tuple(token)
    if token[0] != _objects.key:
        return Ref(token, None, lease)
    found = _objects.find(token[1])
    if not found:
        raise RefLost(
            f"the object of this reference, a {token[4]}, was released because no process held a reference to it. Keep "
            "xmem.ref(obj) or a received reference while you need the object; an unread message keeps it, too. A process does "
            "not keep it if it was killed, which also loses the messages that it sent, or if Ref.is_held is False"
        )
    return found[0]
