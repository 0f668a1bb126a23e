# SPDX-License-Identifier: MPL-2.0

"""Frames for PyTorch's data loaders, and buffers of a BufferPool as tensors.

>>> frames = xmem.torch.FrameDataset("cam0", lambda frame: torch.from_dlpack(frame).float() / 255)  # doctest: +SKIP
>>> for batch in torch.utils.data.DataLoader(frames, batch_size=4):  # doctest: +SKIP
...     ...
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.data

from ._consumer import Consumer
from ._errors import PoolWarning
from ._waiting import SAY_AFTER, Patience
from ._xmem import BufferGuard, Frame

__all__ = ["FrameDataset", "from_blob"]

# In seconds. All workers of a loader join within this time, unless only some of them use the data set.
_PATIENCE = 30


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

    Each worker of a DataLoader makes its own consumer. Several workers divide the frames among themselves, by number, and begin
    when all have joined the pool, or after 30 s with a PoolWarning. If `transform` returns a view (`torch.from_dlpack`), the
    tensor holds the frame. PyTorch copies such tensors between processes, unless you call `xmem.multiprocessing.install()`.

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
        if limit is not None and limit < 0:
            raise ValueError(f"limit is {limit}, and must not be negative")
        self.limit = limit
        self.options = options
        # The epoch that each worker has joined. Loaders that run at the same time rarely use the same row.
        self._joined = torch.zeros((61, 256), dtype=torch.int64).share_memory_()
        self._epoch = 0

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        # The share of this worker.
        share = None if self.limit is None else len(range(number, self.limit, count))
        with Consumer(self.pool, **self.options) as consumer:
            if worker is not None:
                self._epoch += 1
                self._wait_for_workers(number, count, (worker.seed - number + self._epoch) % 2**62)
            frames = filter(lambda frame: frame.number % count == number, consumer)
            # Between two items it holds no frame.
            yield from itertools.islice(map(self.transform, frames), share)

    def _wait_for_workers(self, number: int, count: int, epoch: int) -> None:
        """Waits until all workers have joined the pool.

        Otherwise a loader can hang in a lossless pool: it waits for an item of a worker that has just joined, and the producer
        waits for another worker, which the loader asks for nothing.
        """
        joined = self._joined[epoch % len(self._joined), :count]
        if len(joined) < count:
            return
        joined[number] = epoch
        patience, said = Patience(_PATIENCE), False
        while (missing := int((joined != epoch).sum())) and not patience.is_over():
            if patience.waited() > SAY_AFTER and not said:
                said = True
                warnings.warn(
                    f"a worker waits up to {_PATIENCE} s for the {missing} of {count} workers that have not joined pool {self.pool!r}",
                    PoolWarning,
                    stacklevel=2,
                )
            time.sleep(0.001)


def _to_tensor(frame: Frame) -> torch.Tensor:
    return torch.from_dlpack(frame.copy())
