# SPDX-License-Identifier: MPL-2.0
"""Tests the Python module with PyTorch and CuPy: frames and objects are passed to other processes in device memory.

module.py BIN FRAMES: prints results. BIN contains the module's wheel.
"""

import argparse
import importlib
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time
import zipfile

SHAPE = (1080, 1920, 3)
HANG = 30


def report(what, result):
    print(json.dumps({"part": "module", "what": what, "result": str(result)}), flush=True)


def guarded(what, function):
    """Reports the result of a function, or its error. Returns whether it succeeded."""
    try:
        report(what, function())
        return True
    except Exception as error:
        report(what, f"FAILED: {type(error).__name__}: {error}")
        return False


def same(expected, got, what):
    """Asserts that two values are equal, also with `python -O`."""
    if expected != got:
        raise RuntimeError(f"{what}: {got}, not {expected}")


class Role:
    """A child process of this script. It has a role and ends when its standard input ends."""

    # Started in advance and in parallel, because the first import of PyTorch takes many seconds.
    spare = []

    @classmethod
    def begin(cls, count, device):
        command = [sys.executable, __file__, "--role", "--device", device or "cpu", "-", "0"]
        cls.spare += [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]

    @classmethod
    def end_spare(cls):
        for process in cls.spare:
            process.kill()
            process.wait()

    def __init__(self, name, pool, device):
        if not self.spare:
            self.begin(1, device)
        self.process = self.spare.pop(0)
        self.process.stdin.write(f"{name} {pool}\n")
        self.process.stdin.flush()
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the {name} has failed; its message is above")

    def __enter__(self):
        return self.process

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(HANG)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


def is_over():
    """Whether standard input has ended."""
    return select.select([sys.stdin], [], [], 0)[0]


def value(number):
    return number % 255 + 1


def publish(xmem, torch, pool, device):
    """Publishes frames until the consumer ends. All bytes of a frame have one value."""
    producer = xmem.Producer(pool, max_slots=16)
    print("ready", flush=True)
    number = 0
    while not is_over():
        with producer.acquire(SHAPE, "uint8", device=device) as frame:
            torch.from_dlpack(frame).fill_(value(number))
            frame.publish(pts=number)
        number += 1
        time.sleep(0.001)


def echo(xmem, torch, name, device):
    """Sends back what it receives."""
    channel = xmem.Channel.connect(name)
    print("ready", flush=True)
    while not is_over():
        try:
            channel.send(channel.recv(timeout=0.1))
        except xmem.Timeout:
            pass


class Bytes:
    """Device memory at an address, in the form that torch.as_tensor accepts."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


class Reader:
    def __init__(self, xmem, torch, folder, device, frames):
        self.xmem = xmem
        self.torch = torch
        self.folder = folder
        self.device = device
        self.frames = frames
        self.number = 0

    def pool(self):
        self.number += 1
        return f"{self.folder}/m{self.number}"

    def producer(self, pool):
        return Role("publish", pool, self.device or "cpu")

    def taken(self, pool, **settings):
        return self.xmem.Consumer(pool, timeout=HANG, **settings)

    def read(self):
        """Reads each frame with torch.from_dlpack on a separate stream, and releases it at once."""
        torch, pool = self.torch, self.pool()
        stream = torch.cuda.stream(torch.cuda.Stream() if self.device else None)
        with self.producer(pool), self.taken(pool) as consumer, stream:
            # On this stream, which does not wait for the default stream.
            wrong = torch.zeros((), dtype=torch.int64, device=self.device)
            for _ in range(self.frames):
                frame = consumer.recv(HANG)
                tensor = torch.from_dlpack(frame)
                same(self.device or "cpu", str(tensor.device), "the tensor's device")
                wrong += (tensor != value(frame.pts)).sum()
                del tensor, frame
            wrong = wrong.item()
            copied = consumer.stats["copied"]
        same(0, wrong, "bytes that are wrong")
        return f"{wrong} bytes wrong in {self.frames} frames, of which {copied} were copied"

    def lifetime(self):
        """A tensor stays valid after its frame and its consumer are deleted, and after its producer was killed."""
        pool = self.pool()
        with self.producer(pool) as producer:
            consumer = self.taken(pool)
            frame = consumer.recv(HANG)
            tensor, expected = self.torch.from_dlpack(frame), value(frame.pts)
            del frame
            time.sleep(0.2)
            consumer.close()
            first = bool((tensor == expected).all())
            producer.kill()
            producer.wait()
            after = bool((tensor == expected).all())
        same((True, True), (first, after), "right before and after the kill")
        return "right while slots are used again, after close(), and after SIGKILL of the producer"

    def cupy(self, cupy):
        pool = self.pool()
        with self.producer(pool), self.taken(pool) as consumer:
            frame = consumer.recv(HANG)
            by_dlpack, by_interface = cupy.from_dlpack(frame), cupy.asarray(frame)
            same(by_dlpack.data.ptr, by_interface.data.ptr, "its address by the array interface")
            tensor = self.torch.from_dlpack(by_dlpack)
            same(tensor.data_ptr(), by_dlpack.data.ptr, "its address in PyTorch")
            for array in (by_dlpack, by_interface, tensor):
                same(True, bool((array == value(frame.pts)).all()), "right")
        return "from_dlpack, asarray and PyTorch have it where it lies"

    def read_only(self):
        """The effect of a write to a frame."""
        pool = self.pool()
        with self.producer(pool), self.taken(pool) as consumer:
            frame = consumer.recv(HANG)
            copy = self.torch.from_dlpack(frame.copy())
            copy += 1
            same(True, bool((copy == (value(frame.pts) + 1) % 256).all()), "a copy is writable")
            host = self.torch.from_dlpack(frame.cpu() if self.device else frame.copy())
            same(("cpu", True), (host.device.type, bool((host == value(frame.pts)).all())), "the copy in host memory")
        return "frame.copy() is writable, frame.cpu() is right"

    def objects(self):
        """Sends all kinds of tensors to a process that returns them."""
        torch, name = self.torch, self.pool()
        make = lambda count, dtype: torch.arange(count, device=self.device).to(dtype)
        base = make(1_000_000, torch.float32).reshape(1000, 1000)
        sent = {
            "tensors": [make(100_000, dtype) for dtype in (torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.complex64)],
            "transposed": base.t(),
            "window": base[10:20, 5:50],
            "sparse": (base[:50, :50] * torch.eye(50, device=self.device)).to_sparse(),
            "empty": make(0, torch.float32),
            "scalar": make(1, torch.int32)[0],
            "parameter": torch.nn.Parameter(base.clone()),
            "on the host": torch.arange(10_000),
        }
        with self.xmem.Channel(name) as channel, Role("echo", name, self.device or "cpu"):
            channel.send(sent)
            got = channel.recv(timeout=HANG)
            pairs = [*zip(sent.pop("tensors"), got.pop("tensors")), *((tensor, got[key]) for key, tensor in sent.items())]
            for expected, tensor in pairs:
                same((expected.device, expected.dtype, expected.shape), (tensor.device, tensor.dtype, tensor.shape), "device, dtype and shape")
                dense = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in (expected, tensor)]
                same(True, bool(torch.equal(*dense)), f"equal, {expected.dtype} {tuple(expected.shape)}")
        return f"{len(pairs)} tensors came back as they were"

    def round_trip(self):
        """Measures a round trip of 100 MB."""
        torch, name = self.torch, self.pool()
        tensors = [torch.full((10_000_000,), number, dtype=torch.uint8, device=self.device) for number in range(10)]
        times = []
        with self.xmem.Channel(name) as channel, Role("echo", name, self.device or "cpu"):
            for _ in range(10):
                if self.device:
                    torch.cuda.synchronize()
                start = time.monotonic()
                channel.send(tensors)
                got = channel.recv(timeout=HANG)
                if self.device:
                    torch.cuda.synchronize()
                times.append(time.monotonic() - start)
                same(True, all(bool((tensor == number).all()) for number, tensor in enumerate(got)), "right")
                del got
        return f"{sorted(times)[len(times) // 2] * 1e3:.2f}"

    def buffers(self):
        """Tests BufferPool: buffers by number."""
        torch, size = self.torch, 1 << 20
        pool = self.xmem.BufferPool(self.pool())
        if self.device:
            pool.preallocate_cuda(size=size, count=4)
            buffer = pool.acquire_cuda(size)
            torch.as_tensor(Bytes(buffer.cuda_ptr_mut, size), device=self.device).fill_(7)
            torch.cuda.synchronize()
        else:
            pool.preallocate_cpu(size=size, count=4)
            buffer = pool.acquire_cpu(size)
            torch.frombuffer(buffer, dtype=torch.uint8).fill_(7)
        pool.set_ref_count(buffer.meta_index, 1)
        taken = pool.get(buffer.forget())
        if self.device:
            tensor = torch.as_tensor(Bytes(taken.cuda_ptr, size), device=self.device)
        else:
            tensor = torch.frombuffer(bytearray(taken), dtype=torch.uint8)
        same(7 * size, int(tensor.sum(dtype=torch.int64)), "its sum")
        return "right"


def module(folder, wheels):
    """Unpacks the wheel in that folder and imports the module."""
    found = sorted(pathlib.Path(wheels).glob("*.whl"))
    if found:
        with zipfile.ZipFile(found[0]) as wheel:
            wheel.extractall(folder)
        # For child processes.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        sys.path.insert(0, str(folder))
    return importlib.import_module("xmem")


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("programs")
    arguments.add_argument("frames", type=int)
    arguments.add_argument("--device", default="cuda:0", help="cpu: test this script with frames in host memory")
    arguments.add_argument("--role", action="store_true", help=argparse.SUPPRESS)
    arguments = arguments.parse_args()
    device = None if arguments.device == "cpu" else arguments.device
    try:
        import torch
    except ImportError as error:
        return report("the Python module", f"not run: {error}")
    if device and not torch.cuda.is_available():
        return report("the Python module", "not run: PyTorch sees no device")
    if arguments.role:
        import xmem

        if not (told := sys.stdin.readline().split()):
            return
        name, pool = told
        return {"publish": publish, "echo": echo}[name](xmem, torch, pool, device)
    with tempfile.TemporaryDirectory() as folder:
        try:
            xmem = module(pathlib.Path(folder) / "wheel", arguments.programs)
        except ImportError as error:
            return report("the Python module", f"not run: {error} (Python {sys.version.split()[0]})")
        reader = Reader(xmem, torch, folder, device, arguments.frames)
        Role.begin(6, device)
        results = [
            guarded("frames by torch.from_dlpack, of another process", reader.read),
            guarded("a tensor's lifetime", reader.lifetime),
            guarded("copies of a frame", reader.read_only),
            guarded("objects by Channel, there and back", reader.objects),
            guarded("100 MB in 10 tensors by Channel, there and back, ms", reader.round_trip),
            guarded("BufferPool", reader.buffers),
        ]
        try:
            import cupy
        except ImportError as error:
            report("CuPy", f"not run: {error}")
        else:
            results.append(guarded("CuPy", lambda: reader.cupy(cupy)))
        Role.end_spare()
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
