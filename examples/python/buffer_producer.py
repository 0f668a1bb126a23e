# SPDX-License-Identifier: MPL-2.0

"""Writes arrays into the buffers of a pool, and prints the number of each buffer.

    python examples/python/buffer_producer.py my_pool | python examples/python/buffer_consumer.py my_pool

With --device 0 the buffers lie on a CUDA device.
"""

import argparse

import numpy as np

from xmem import BufferPool

SHAPE = (1080, 1920, 3)
SIZE = 1080 * 1920 * 3

arguments = argparse.ArgumentParser()
arguments.add_argument("pool")
arguments.add_argument("--buffers", type=int, default=20)
arguments.add_argument("--device", type=int)
args = arguments.parse_args()

with BufferPool(args.pool) as pool:
    # Memory that is set aside before it is needed.
    if args.device is not None:
        pool.preallocate_cuda(size=SIZE, count=8, device_id=args.device)
    pool.preallocate_cpu(size=SIZE, count=8)
    for number in range(args.buffers):
        buf = pool.acquire_cpu(SIZE)
        buf.set_meta(shape=SHAPE, dtype="uint8", content_type="image/raw")
        np.asarray(buf)[:] = number
        if args.device is not None:
            # A decoder on the device would write to `pool.acquire_cuda(SIZE, args.device).cuda_ptr_mut`.
            buf = buf.copy_to_cuda(args.device)
        # One `get` in any process is expected. A buffer that no process reads is empty again after 10 seconds.
        pool.set_ref_count(buf.meta_index, 1)
        print(buf.forget(timeout=10), flush=True)
    # The buffers end with this process.
    pool.wait_until_read()
