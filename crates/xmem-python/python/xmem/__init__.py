# SPDX-License-Identifier: MPL-2.0

"""Frames that other processes share, without a copy."""

from . import _neighbours
from ._camera import Camera
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
from .channel import Channel, Ref, RefLost, ref

__all__ = [
    "BufferGuard",
    "BufferPool",
    "Camera",
    "Channel",
    "Closed",
    "Consumer",
    "CudaError",
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
