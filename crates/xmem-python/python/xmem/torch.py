# SPDX-License-Identifier: MPL-2.0

"""Frames for PyTorch's data loaders, and buffers of a BufferPool as tensors.

>>> frames = xmem.torch.FrameDataset("cam0", lambda frame: torch.from_dlpack(frame).float() / 255)  # doctest: +SKIP
>>> for batch in torch.utils.data.DataLoader(frames, batch_size=4):  # doctest: +SKIP
...     ...
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.data

from ._consumer import Consumer
from ._xmem import BufferGuard, Frame

__all__ = ["FrameDataset", "from_blob"]


def from_blob(
    buffer: BufferGuard,
    shape: Sequence[int],
    dtype: torch.dtype = torch.uint8,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Returns a tensor over the first bytes of a buffer of a BufferPool. The tensor holds the buffer.

    device: the expected device. ValueError if the buffer is on another one.
    """
    flat = torch.from_dlpack(buffer).reshape(-1).view(torch.uint8)
    wanted = flat.device if device is None else torch.device(device)
    if wanted.type != flat.device.type or wanted.index not in (None, flat.device.index):
        raise ValueError(f"the buffer is on {flat.device}, not on {device}: copy it with copy_to_cuda or copy_to_cpu")
    size = math.prod(shape) * dtype.itemsize
    if not 0 <= size <= flat.numel():
        raise ValueError(f"a tensor of shape {tuple(shape)} and type {dtype} has {size} bytes, but the buffer has {flat.numel()}")
    return flat[:size].view(dtype).reshape(tuple(shape))


class FrameDataset(torch.utils.data.IterableDataset):
    """The frames of a pool, converted by `transform`. Default: each frame is copied into a tensor.

    Each worker of a DataLoader makes its own consumer. Several workers divide the frames among themselves, by number. If
    `transform` returns a view (`torch.from_dlpack`), the tensor holds the frame. PyTorch copies such tensors between
    processes, unless you call `xmem.multiprocessing.install()`.

    pool, options: as for xmem.Consumer.
    limit: the number of frames, of all workers together. None: until the stream ends.
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
            raise ValueError("a data set has only frames: use a separate xmem.Consumer to receive events")
        self.pool = pool
        self.transform = transform if transform is not None else _to_tensor
        self.limit = limit
        self.options = options

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        # The share of this worker.
        left = itertools.repeat(None) if self.limit is None else range(number, self.limit, count)
        with Consumer(self.pool, **self.options) as consumer:
            for _ in left:
                frame = next((it for it in consumer if it.number % count == number), None)
                if frame is None:
                    return
                yield self.transform(frame)


def _to_tensor(frame: Frame) -> torch.Tensor:
    return torch.from_dlpack(frame.copy())
