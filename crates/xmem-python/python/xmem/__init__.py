# SPDX-License-Identifier: MPL-2.0

"""Frames that other processes share, without a copy."""

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
    ProducerLost,
    Refused,
    Timeout,
    ViewsExist,
)
from ._xmem import (
    BufferGuard,
    BufferPool,
    Event,
    Frame,
    Plane,
    PoolEntry,
    Producer,
    WritableFrame,
    __version__,
    pools,
    query,
)
from .channel import Channel, Ref, RefLost, ref

__all__ = [
    "BufferGuard",
    "BufferPool",
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
    "Producer",
    "ProducerLost",
    "Ref",
    "RefLost",
    "Refused",
    "Timeout",
    "ViewsExist",
    "WritableFrame",
    "__version__",
    "pools",
    "query",
    "ref",
]
