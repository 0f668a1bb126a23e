# SPDX-License-Identifier: MPL-2.0

"""Frames for PyTorch's data loaders.

>>> frames = xmem.torch.FrameDataset("cam0", lambda frame: torch.from_dlpack(frame).float() / 255)  # doctest: +SKIP
>>> for batch in torch.utils.data.DataLoader(frames, batch_size=4):  # doctest: +SKIP
...     ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data

from ._consumer import Consumer
from ._xmem import Frame

__all__ = ["FrameDataset"]


class FrameDataset(torch.utils.data.IterableDataset):
    """The frames of a pool, each as what `transform` makes of it: a tensor of its own by default.

    Each worker of a DataLoader is a consumer of its own, made where it works. With several workers each takes its share of
    the frames, by sequence. A transform that returns a view (`torch.from_dlpack`) holds the frame as long as the tensor
    lives; between worker processes such a tensor is copied by PyTorch.

    pool, options: as for xmem.Consumer.
    limit: how many frames to take; None is until the stream ends.
    """

    def __init__(
        self,
        pool: str,
        transform: Callable[[Frame], Any] | None = None,
        *,
        limit: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if options.get("events"):
            raise ValueError("a data set consists of frames: take events with an xmem.Consumer of your own")
        self.pool = pool
        self.transform = transform if transform is not None else _to_tensor
        self.limit = limit
        self.options = options

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        taken = 0
        with Consumer(self.pool, **self.options) as consumer:
            while self.limit is None or taken < self.limit:
                frame = next(consumer, None)
                if frame is None:
                    return
                if frame.number % count == number:
                    taken += 1
                    yield self.transform(frame)


def _to_tensor(frame: Frame) -> torch.Tensor:
    return torch.from_dlpack(frame.copy())
