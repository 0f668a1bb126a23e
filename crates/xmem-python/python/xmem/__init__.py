# SPDX-License-Identifier: MPL-2.0

"""Frames that other processes share, without a copy."""

from __future__ import annotations

from . import _neighbours
from ._consumer import Consumer
from ._errors import (
    Closed,
    CudaError,
    EndOfStream,
    Error,
    Forked,
    NoCuda,
    NoProducer,
    OverBudget,
    PoolFull,
    PoolInUse,
    PoolWarning,
    ProducerLost,
    Refused,
    SystemFailure,
    Timeout,
    ViewsExist,
)
from ._gstreamer import setup_gstreamer
from ._xmem import (
    BufferGuard,
    BufferPool,
    Dmabuf,
    Event,
    Frame,
    Plane,
    PoolEntry,
    Producer,
    Reader,
    ReleaseWord,
    WritableFrame,
    __version__,
    pools,
    query,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import multiprocessing as multiprocessing
    from ._camera import Camera
    from .channel import Channel, Ref, RefLost, ref

__all__ = [
    "BufferGuard",
    "BufferPool",
    "Camera",
    "Channel",
    "Closed",
    "Consumer",
    "CudaError",
    "Dmabuf",
    "EndOfStream",
    "Error",
    "Event",
    "Forked",
    "Frame",
    "NoCuda",
    "NoProducer",
    "OverBudget",
    "Plane",
    "PoolEntry",
    "PoolFull",
    "PoolInUse",
    "PoolWarning",
    "Producer",
    "ProducerLost",
    "Reader",
    "Ref",
    "RefLost",
    "Refused",
    "ReleaseWord",
    "SystemFailure",
    "Timeout",
    "ViewsExist",
    "WritableFrame",
    "__version__",
    "pools",
    "query",
    "ref",
    "setup_gstreamer",
]

_neighbours.check()

# With pickle and subprocess, which they need, they take longer to load than the rest of this package.
_LATER = {"Camera": "_camera", "Channel": "channel", "Ref": "channel", "RefLost": "channel", "ref": "channel"}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "multiprocessing":
        return import_module(".multiprocessing", __name__)
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATER[name]}", __name__), name)
