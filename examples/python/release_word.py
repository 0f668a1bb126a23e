# SPDX-License-Identifier: MPL-2.0

"""Prints the mean of each frame on a CUDA device. The kernel itself releases the frame when it has read it.

    python examples/python/release_word.py gpu

No stream has to be named, and the frame is free before the kernel ends. Tested without a GPU only: the kernel is compiled, and
run in Numba's simulator.
"""

import argparse

import numpy as np
from numba import cuda

import xmem

THREADS = 256
BLOCKS = 128


@cuda.jit
def total(pixels, result, blocks_done, release_word):
    """Adds all pixels. `blocks_done` is 0 at the start."""
    sum = 0
    for at in range(cuda.grid(1), pixels.size, cuda.gridsize(1)):
        sum += int(pixels[at])
    # The block has read its part of the frame.
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence_system()
        # The last block releases the frame, with one store.
        if cuda.atomic.add(blocks_done, 0, 1) == cuda.gridDim.x - 1:
            cuda.threadfence_system()
            release_word[0] = 0
    # The producer may write the frame again from here on.
    cuda.atomic.add(result, 0, sum)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("pool")
    args = arguments.parse_args()
    for frame in xmem.Consumer(args.pool):
        pixels = cuda.as_cuda_array(frame).ravel()
        result = cuda.to_device(np.zeros(1, np.uint64))
        blocks_done = cuda.to_device(np.zeros(1, np.uint32))
        word = frame.release_word()
        number, count = frame.number, pixels.size
        total[BLOCKS, THREADS](pixels, result, blocks_done, cuda.as_cuda_array(word))
        # The word holds the frame for the kernel.
        del frame, pixels
        print(f"frame {number}: mean {result.copy_to_host()[0] / count:.2f}")


if __name__ == "__main__":
    main()
