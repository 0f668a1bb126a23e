# SPDX-License-Identifier: MPL-2.0

"""Frames that other processes share, without a copy."""

from ._errors import (
    Closed,
    EndOfStream,
    Error,
    Forked,
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
    Consumer,
    Frame,
    Plane,
    PoolEntry,
    Producer,
    WritableFrame,
    __version__,
    pools,
    query,
)

__all__ = [
    "Closed",
    "Consumer",
    "EndOfStream",
    "Error",
    "Forked",
    "Frame",
    "NoProducer",
    "OverBudget",
    "Plane",
    "PoolEntry",
    "PoolFull",
    "PoolInUse",
    "Producer",
    "ProducerLost",
    "Refused",
    "Timeout",
    "ViewsExist",
    "WritableFrame",
    "__version__",
    "pools",
    "query",
]
