# SPDX-License-Identifier: MPL-2.0
"""Measures the transfer of a 4K NV12 frame by torch.multiprocessing's queue, with and without a clone.

torch_queue.py BIN FRAMES: prints results that can be compared with those of `xmem-gpu numbers`. Frame, rate and measured times are
the same.
"""

import json
import resource
import sys
import time

SIZE = 3840 * 2160 * 3 // 2
INTERVAL = 0.01
WARM_UP = 50


def report(what, result):
    print(json.dumps({"part": "torch", "what": what, "result": str(result)}), flush=True)


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def consume(queue, results, frames, clone):
    import torch

    torch.zeros(1, device="cuda")
    results.put("ready")
    times, begun = [], None
    for number in range(frames + WARM_UP):
        sent, tensor = queue.get()
        if clone:
            tensor = tensor.clone()
        if number >= WARM_UP:
            times.append(time.monotonic_ns() - sent)
        del tensor
        if number == WARM_UP - 1:
            begun = cpu()
    used = cpu() - begun
    torch.cuda.synchronize()
    results.put((sorted(times), used))


def measure(torch, frames, clone):
    context = torch.multiprocessing.get_context("spawn")
    queue, results = context.Queue(4), context.Queue()
    process = context.Process(target=consume, args=(queue, results, frames, clone))
    process.start()
    try:
        results.get(timeout=120)
        start, begun = time.monotonic(), None
        for number in range(frames + WARM_UP):
            time.sleep(max(0, start + number * INTERVAL - time.monotonic()))
            if number == WARM_UP:
                begun = cpu()
            # A new tensor for each frame, as from a decoder.
            tensor = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
            queue.put((time.monotonic_ns(), tensor))
            del tensor
        used = cpu() - begun
        times, theirs = results.get(timeout=120)
        name = "torch.multiprocessing's queue, " + ("with clone" if clone else "without clone")
        report(f"{name}: CPU of both processes, µs per frame", f"{(used + theirs) * 1e6 / frames:.3f}")
        report(f"{name}: hand-over, µs, median", f"{times[len(times) // 2] / 1e3:.3f}")
        report(f"{name}: hand-over, µs, 99 %", f"{times[(len(times) - 1) * 99 // 100] / 1e3:.3f}")
    finally:
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def main():
    frames = int(sys.argv[2])
    try:
        import torch
        import torch.multiprocessing
    except ImportError as error:
        return report("PyTorch's queue", f"not run: {error}")
    if not torch.cuda.is_available():
        return report("PyTorch's queue", "not run: PyTorch sees no device")
    for clone in (False, True):
        measure(torch, frames, clone)


if __name__ == "__main__":
    main()
