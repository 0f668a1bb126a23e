# SPDX-License-Identifier: MPL-2.0

"""Reads the buffers of a pool whose numbers it gets, one in a line, where they lie.

    python examples/python/buffer_producer.py my_pool | python examples/python/buffer_consumer.py my_pool
"""

import sys

import numpy as np

from xmem import BufferPool

pool = BufferPool(sys.argv[1])
for line in sys.stdin:
    with pool.get(int(line)) as buf:
        where = "host" if buf.device is None else f"device {buf.device}"
        # PyTorch reads a buffer on a device in place: torch.from_dlpack(buf).
        image = np.asarray(buf if buf.device is None else buf.copy_to_cpu())
        print(f"buffer {buf.meta_index} on {where}: {image.shape} {image.dtype}, mean {image.mean():.0f}", flush=True)
        # The array holds the buffer, so it must be deleted too.
        del image
