# SPDX-License-Identifier: MPL-2.0
"""Tests that PyTorch and CuPy can read frames of another process by pointer, also after that process was killed.

torch_reads.py BIN FRAMES: prints results. BIN contains xmem-gpu and libxmem_gpu.so.
"""

import ctypes
import json
import pathlib
import signal
import subprocess
import sys
import tempfile

SIZE = 3840 * 2160 * 3 // 2


def report(what, result):
    print(json.dumps({"part": "torch", "what": what, "result": str(result)}), flush=True)


def guarded(what, function):
    """Reports the result of a function, or its error."""
    try:
        report(what, function())
    except Exception as error:
        report(what, f"{type(error).__name__}: {error}")


class Frame:
    """Bytes on the device, in the form that CUDA libraries accept."""

    def __init__(self, address, size, read_only):
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, read_only),
            "version": 3,
        }


class Library:
    def __init__(self, folder):
        self.c = ctypes.CDLL(str(folder / "libxmem_gpu.so"))
        self.c.xmem_gpu_connect.argtypes = [ctypes.c_char_p]
        self.c.xmem_gpu_connect.restype = ctypes.c_void_p
        place = ctypes.POINTER(ctypes.c_uint64)
        self.c.xmem_gpu_take.argtypes = [ctypes.c_void_p, ctypes.c_uint64, place, place, place]
        self.c.xmem_gpu_take.restype = ctypes.c_void_p
        self.c.xmem_gpu_release.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self.c.xmem_gpu_release.restype = ctypes.c_bool

    def take(self, consumer, stream):
        places = [ctypes.c_uint64() for _ in range(3)]
        frame = self.c.xmem_gpu_take(consumer, stream, *map(ctypes.byref, places))
        if not frame:
            raise RuntimeError("no frame; the reason is above")
        return frame, *(place.value for place in places)


def read(folder, torch, cupy, mode, frames):
    library = Library(folder)
    with tempfile.TemporaryDirectory() as place:
        pool = f"{place}/pool"
        producer = subprocess.Popen(
            [folder / "xmem-gpu", "produce", pool, mode, str(SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            if producer.stdout.readline().strip() != "ready":
                raise RuntimeError("the producer has failed; its message is above")
            consumer = library.c.xmem_gpu_connect(pool.encode())
            if not consumer:
                raise RuntimeError("cannot connect; the reason is above")
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                # On this stream, which does not wait for the default stream.
                wrong = torch.zeros((), dtype=torch.int64, device="cuda")
                for _ in range(frames):
                    frame, address, size, number = library.take(consumer, stream.cuda_stream)
                    tensor = torch.as_tensor(Frame(address, size, False), device="cuda")
                    assert tensor.data_ptr() == address, "PyTorch copied it"
                    wrong += (tensor != number % 255 + 1).sum()
                    del tensor
                    assert library.c.xmem_gpu_release(frame, stream.cuda_stream)
            stream.synchronize()
            report(f"{mode}: bytes that PyTorch read wrong in {frames} frames, each by its pointer", wrong.item())

            frame, address, size, number = library.take(consumer, stream.cuda_stream)
            stream.synchronize()
            expected = number % 255 + 1
            guarded(f"{mode}: a read-only pointer in PyTorch", lambda: torch.as_tensor(Frame(address, size, True), device="cuda").sum().item() == expected * size)
            if cupy is not None:

                def in_cupy():
                    memory = cupy.cuda.UnownedMemory(address, size, None)
                    array = cupy.ndarray((size,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
                    tensor = torch.from_dlpack(array)
                    return f"CuPy right: {bool((array == expected).all())}, DLPack to PyTorch right: {bool((tensor == expected).all())}, same address: {tensor.data_ptr() == address}"

                guarded(f"{mode}: CuPy, and DLPack to PyTorch", in_cupy)
            producer.send_signal(signal.SIGKILL)
            producer.wait()

            def after():
                tensor = torch.as_tensor(Frame(address, size, False), device="cuda")
                return f"right: {bool((tensor == expected).all())}"

            guarded(f"{mode}: PyTorch reads a held frame after SIGKILL of its producer", after)
            report(f"{mode}: release it after that", library.c.xmem_gpu_release(frame, stream.cuda_stream))
            torch.cuda.synchronize()
        finally:
            producer.kill()
            producer.wait()


def main():
    folder, frames = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    try:
        import torch
    except ImportError as error:
        return report("PyTorch", f"not run: {error}")
    if not torch.cuda.is_available():
        return report("PyTorch", "not run: it sees no device")
    try:
        import cupy
    except ImportError as error:
        cupy = None
        report("CuPy", f"not run: {error}")
    report("versions", f"PyTorch {torch.__version__}, CuPy {getattr(cupy, '__version__', 'none')}")
    torch.zeros(1, device="cuda")
    failed = False
    for mode in ("vmm", "legacy"):
        try:
            read(folder, torch, cupy, mode, frames)
        except Exception as error:
            report(f"{mode}: failed", f"{type(error).__name__}: {error}")
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
