# SPDX-License-Identifier: MPL-2.0
"""Tests GStreamer elements on CUDA devices: xmemsink and xmemsrc, compared with cudaipcsink/cudaipcsrc and unixfdsink/unixfdsrc.

elements.py FOLDER FRAMES: prints results. FOLDER is the bundle, which contains a GStreamer in gst.

Each side of a transport is a process with a pipeline (xmem-gpu-gst). A received frame is correct if its checksum is one of those
of the producer's videotestsrc, in the same order.
"""

import argparse
import bisect
import collections
import concurrent.futures
import ctypes
import hashlib
import json
import os
import pathlib
import queue
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import driver

CUDA = "video/x-raw(memory:CUDAMemory)"
# The time limit in seconds for each wait.
HANG = 30
# How long the stop of a producer with a stopped client is waited for, in seconds.
STUCK = 6
# The number of frames of a transport's measurement at most. All transports must fit into the limit of record.py.
FRAMES = 90


def report(part, what, result):
    print(json.dumps({"part": part, "what": what, "result": result}), flush=True)


class Failed(Exception):
    pass


def words(failure):
    """The text of an error. The script continues with the next test after any error."""
    return str(failure) if isinstance(failure, Failed) else f"{type(failure).__name__}: {failure}"


def copies(environment, process):
    """The number of copies to and from the device in a process, as counted by the stand-in."""
    table = pathlib.Path(environment["XMEM_STANDIN_DIR"]) / "trace" / str(process)
    if not table.exists():
        return 0
    rows = struct.iter_unpack("<56sQ", table.read_bytes())
    return sum(calls for name, calls in rows if name.startswith(b"cuMemcpy"))


class Runtime:
    """The GStreamer of the bundle. It has its own loader, because its C library differs from this machine's."""

    def __init__(self, programs, folder, environment):
        self.gst = programs / "gst"
        libraries = [str(self.gst / "lib"), *driver.paths(environment)]
        if "XMEM_STANDIN_DIR" not in environment:
            # The bundle's loader has another search path than the machine's.
            libraries += [place for place in (driver.folder()[0],) if place]
            libraries += [str(place) for place in (decoder(programs, folder, environment),) if place]
        if compiler := kernel_compiler(folder):
            libraries.append(str(compiler))
        # The name of the loader depends on the architecture.
        loader = next((self.gst / "lib").glob("ld-linux-*.so.*"))
        self.loader = [str(loader), "--library-path", ":".join(libraries)]
        self.environment = dict(
            environment,
            GST_PLUGIN_SYSTEM_PATH_1_0=str(self.gst / "plugins"),
            GST_REGISTRY=str(pathlib.Path(folder) / "registry.bin"),
            # The scanner is a separate program that the machine's loader would start.
            GST_REGISTRY_FORK="no",
            XMEM_RUNTIME_DIR=str(folder),
            # As in record.py: loading a kernel at its launch may wait for blocked streams.
            CUDA_MODULE_LOADING="EAGER",
        )

    def command(self, program, *arguments):
        return [*self.loader, str(self.gst / "bin" / program), *arguments]

    def has(self, element):
        command = self.command("gst-inspect-1.0", "--exists", element)
        return subprocess.run(command, env=self.environment, timeout=HANG, capture_output=True).returncode == 0


def stand_in(programs, folder):
    """The environment of programs that use the stand-in driver, which counts calls."""
    machine = pathlib.Path(folder) / "machine"
    (machine / "lib").mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvcuvid.so.1"):
        shutil.copy(programs / "bin" / "libxmem_cuda_standin.so", machine / "lib" / name)
    names = {"LD_LIBRARY_PATH": machine / "lib", "XMEM_STANDIN_DIR": machine, "XMEM_STANDIN_MEMORY": 4 << 30}
    return dict(os.environ, **{name: str(value) for name, value in names.items()})


def decoder(programs, folder, environment):
    """Creates a folder with a libnvcuvid.so.1 without function if there is no real one. GStreamer's plugin registers cudaupload only
    if it finds a library for decoders or encoders."""
    libraries = ("libnvcuvid.so.1", "libnvidia-encode.so.1")
    places = [place for place in (*driver.paths(environment), driver.folder()[0]) if place]
    if any(os.path.exists(f"{place}/{library}") for place in places for library in libraries):
        return None
    if any(driver.loads(library, environment) for library in libraries):
        return None
    place = pathlib.Path(folder) / "decoder"
    if not place.exists():
        place.mkdir()
        shutil.copy(programs / "bin" / "libxmem_cuda_standin.so", place / libraries[0])
        report("elements", libraries[0], "is not here: GStreamer has one of the stand-in, which decodes nothing")
    return place


def kernel_compiler(folder):
    """A folder with libnvrtc.so, which cudaconvert needs to compile kernels: PyTorch's if the system has none."""
    for path in map(pathlib.Path, sys.path):
        for library in sorted(path.glob("nvidia/**/lib/libnvrtc.so.*[0-9]")) if path.is_dir() else []:
            place = pathlib.Path(folder) / "nvrtc"
            if not place.exists():
                place.mkdir()
                for file in library.parent.glob("libnvrtc*"):
                    (place / file.name).symlink_to(file)
                (place / "libnvrtc.so").symlink_to(library)
            return place
    return None


class Side:
    """A process with a pipeline."""

    def __init__(self, runtime, pipeline, **pads):
        """`pads`: the pad for each option of the program."""
        arguments = [pipeline]
        for what, pad in pads.items():
            if pad:
                arguments += [f"--{what.replace('_', '-')}", pad]
        self.pipeline = pipeline
        self.begun = time.monotonic()
        self.times = []
        self.sums = []
        self.sizes = []
        self.texts = []
        self.events = queue.Queue()
        self.process = subprocess.Popen(
            runtime.command("xmem-gpu-gst", *arguments),
            env=runtime.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.errors = collections.deque(maxlen=5)
        self.threads = [threading.Thread(target=job, daemon=True) for job in (self.read_events, self.read_errors)]
        for thread in self.threads:
            thread.start()

    def read_events(self):
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "frame":
                self.times.append(time.monotonic() - self.begun)
                self.sums.append(event["sum"])
                self.sizes.append((event["width"], event["height"]))
                continue
            if event["event"] in ("message", "warning", "error", "eos"):
                self.texts.append(event.get("name") or event.get("text") or event["event"])
            self.events.put(event)
        self.events.put({"event": "end"})

    def read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line.strip())

    def wait(self, wanted, seconds=HANG):
        """Waits for the next event of this kind. Drops other events, except for errors."""
        end = time.monotonic() + seconds
        while True:
            try:
                event = self.events.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                raise Failed(f"no {wanted!r} within {seconds} s from: {self.pipeline}; last lines: {self.texts[-3:]}") from None
            if event["event"] == wanted:
                return event
            if event["event"] in ("error", "end"):
                raise Failed(f"{event.get('text', 'ended')} {' / '.join(self.errors)}: {self.pipeline}")

    def order(self, order, reply, seconds=HANG):
        try:
            self.process.stdin.write(order + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"ended before {order!r}: {' / '.join(self.errors)}: {self.pipeline}") from None
        return self.wait(reply, seconds)

    def frames(self, count, seconds=HANG):
        """Waits for the checksums of `count` more frames."""
        wanted, end = len(self.sums) + count, time.monotonic() + seconds
        while len(self.sums) < wanted:
            if time.monotonic() > end or self.process.poll() is not None:
                when = f", from {self.times[0]:.1f} to {self.times[-1]:.1f} s after the start" if self.times else ""
                raise Failed(f"{len(self.sums) - wanted + count} of {count} frames in {seconds} s{when}; last lines: {self.texts[-3:]} {' / '.join(self.errors)}: {self.pipeline}")
            time.sleep(0.01)

    def message(self, name, seconds=HANG):
        end = time.monotonic() + seconds
        while name not in self.texts:
            if time.monotonic() > end:
                raise Failed(f"no {name} within {seconds} s, only {self.texts}")
            time.sleep(0.01)

    def stop(self, seconds=HANG):
        """Stops the pipeline. Returns the duration in seconds."""
        took = self.order("stop", "stopped", seconds)["ns"] / 1e9
        self.process.wait(seconds)
        for thread in self.threads:
            thread.join(seconds)
        return took

    def end(self, how=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait()


class Sides:
    """Ends the processes that were started."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.sides = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for side in self.sides:
            side.end()

    def begin(self, *arguments, **named):
        self.sides.append(Side(self.runtime, *arguments, **named))
        return self.sides[-1]


def wrong(consumer, producer):
    """The number of a consumer's frames that are not the producer's, or are repeated or out of order."""
    count, following = 0, 0
    for checksum in consumer:
        try:
            following = producer.index(checksum, following) + 1
        except ValueError:
            count += 1
    return count


def report_wrong(what, pairs, more=""):
    """Reports the number of wrong frames of each consumer, compared with its producer."""
    counts = [(wrong(consumer, producer), len(consumer)) for consumer, producer in pairs]
    report("elements", f"{what}: frames that are wrong", ", ".join(f"{bad} of {all}" for bad, all in counts) + more)
    if any(bad for bad, _ in counts):
        raise Failed("frames that are wrong, see above")


def pictures(width=640, height=480, form="NV12", rate=30):
    return f"video/x-raw,format={form},width={width},height={height},framerate={rate}/1"


class Elements:
    """The tests of xmemsink and xmemsrc."""

    def __init__(self, runtime, folder, host_memory):
        self.runtime = runtime
        self.folder = folder
        self.number = 0
        self.up = "" if host_memory else f"! cudaupload ! {CUDA}"
        convert = "! cudaconvert" if runtime.has("cudaconvert") else ""
        self.down = "! identity name=down" if host_memory else f"{convert} ! cudadownload name=down ! video/x-raw"

    def pool(self):
        self.number += 1
        return f"{self.folder}/pool{self.number}"

    def producer(self, sides, pool, mode, caps=None, more=""):
        """A live stream of noise: all pictures differ, so a torn frame equals none of them."""
        return sides.begin(
            f"videotestsrc name=source is-live=true pattern=snow ! capsfilter name=caps caps={caps or pictures()} {self.up} "
            f"! xmemsink name=share pool={pool} cuda-ipc-mode={mode} {more}",
            checksums="caps.src",
        )

    def consumer(self, sides, pool, more=""):
        return sides.begin(f"xmemsrc name=take pool={pool} {more} {self.down} ! fakesink sync=false", checksums="down.src")

    def two_consumers(self, mode):
        with Sides(self.runtime) as sides:
            pool = self.pool()
            producer = self.producer(sides, pool, mode)
            consumers = [self.consumer(sides, pool) for _ in range(2)]
            for consumer in consumers:
                consumer.frames(100)
            stats = producer.order("stats share", "stats")["stats"]
            modes = [client["device"] for client in stats["clients"]]
            for consumer in consumers:
                consumer.stop()
            producer.stop()
            report("elements", f"{mode}: how two consumers came by the memory", ", ".join(modes))
            report("elements", f"{mode}: published, of these not copied, copied, dropped", ", ".join(str(stats[name]) for name in ("published", "zero-copy", "copied", "dropped")))
            report_wrong(f"{mode}: two consumers", [(consumer.sums, producer.sums) for consumer in consumers])

    def killed_consumer(self, mode):
        with Sides(self.runtime) as sides:
            pool = self.pool()
            producer = self.producer(sides, pool, mode)
            victim, other = self.consumer(sides, pool), self.consumer(sides, pool)
            victim.frames(20)
            other.frames(20)
            victim.end()
            producer.message("GstXmemClientDropped")
            other.frames(50)
            stats = producer.order("stats share", "stats")["stats"]
            other.stop()
            took = producer.stop()
            more = f"; {len(stats['clients'])} client left; the producer's stop took {took:.2f} s"
            report_wrong(f"{mode}: a consumer beside one that got SIGKILL", [(other.sums, producer.sums)], more)

    def killed_producer(self, mode):
        with Sides(self.runtime) as sides:
            pool = self.pool()
            first = self.producer(sides, pool, mode)
            consumer = self.consumer(sides, pool)
            consumer.frames(20)
            first.end()
            consumer.message("GstXmemProducerLost")
            first.threads[0].join(HANG)
            before = len(consumer.sums)
            second = self.producer(sides, pool, mode)
            consumer.frames(50)
            consumer.stop()
            second.stop()
            more = f"; {len(consumer.sums) - before} of them of the new one"
            report_wrong(f"{mode}: over SIGKILL of the producer, to the next one", [(consumer.sums, first.sums + second.sums)], more)

    def changes(self, mode):
        sizes = [(640, 480), (320, 240), (1280, 720), (640, 480)]
        with Sides(self.runtime) as sides:
            pool = self.pool()
            producer = self.producer(sides, pool, mode)
            consumer = self.consumer(sides, pool)
            consumer.frames(10)
            for size in sizes[1:]:
                producer.order(f"set caps caps {pictures(*size)}", "set")
                end = time.monotonic() + HANG
                while consumer.sizes[-1] != size:
                    if time.monotonic() > end:
                        raise Failed(f"no frame of {size}, but {consumer.sizes[-1]}")
                    time.sleep(0.01)
                consumer.frames(10)
            consumer.stop()
            producer.stop()
            seen = [size for at, size in enumerate(consumer.sizes) if at == 0 or consumer.sizes[at - 1] != size]
            more = f"; sizes: {', '.join(f'{width}x{height}' for width, height in seen)}"
            report_wrong(f"{mode}: over three changes of the caps", [(consumer.sums, producer.sums)], more)

    def stuck_consumer(self, mode):
        """Stops a consumer that holds frames with SIGSTOP, and then stops its producer."""
        with Sides(self.runtime) as sides:
            pool = self.pool()
            producer = self.producer(sides, pool, mode, more="release-timeout=1000000000")
            consumer = self.consumer(sides, pool)
            consumer.frames(20)
            consumer.process.send_signal(signal.SIGSTOP)
            try:
                took = f"{producer.stop():.2f} s"
            finally:
                consumer.process.send_signal(signal.SIGCONT)
            report("elements", f"{mode}: stop of a producer whose consumer is stuck, release-timeout of 1 s", took)

    def slow_kernels(self, mode):
        """Slow kernels write and read each frame at full speed. No slot may be written while a kernel reads it."""
        wanted = 50_000 if "XMEM_STANDIN_DIR" not in os.environ else 1000
        with Sides(self.runtime) as sides:
            pool = self.pool()
            # A frame's number is its time in milliseconds.
            caps = pictures(128, 2, "RGBA", 1000)
            producer = sides.begin(
                f"videotestsrc pattern=black ! {caps} ! cudaupload ! {CUDA} ! xmemsink name=share pool={pool} cuda-ipc-mode={mode} pace=never",
                write="share.sink",
            )
            take = f"xmemsrc name=take pool={pool} timestamp-mode=passthrough over-budget=drop ! fakesink sync=false"
            consumers = [sides.begin(take, **{how: "take.src"}) for how in ("read", "read_elsewhere")]
            figures, end = [], time.monotonic() + 10
            while not figures or (min(one["frames"] for one in figures) < wanted and time.monotonic() < end):
                time.sleep(0.5)
                figures = [consumer.order("kernels", "kernels") for consumer in consumers]
            stats = producer.order("stats share", "stats")["stats"]
            for side in (*consumers, producer):
                side.stop()
        counts = ", ".join(f"{one['wrong']} in {one['frames']}" for one in figures)
        more = f"; of {stats['published']} published, {stats['copied']} copied"
        report("elements", f"{mode}: bytes that slow kernels read wrong, on the memory's stream and on another", counts + more)
        if any(one["wrong"] for one in figures):
            raise Failed("frames were torn, see above")

    def decoder(self, mode):
        """A film that the device decodes, in lossless delivery, compared with the same pipeline without a pool."""
        missing = [element for element in ("h264parse", "nvh264dec") if not self.runtime.has(element)]
        if missing or "XMEM_STANDIN_DIR" in self.runtime.environment:
            why = f"{', '.join(missing)} is not there with this driver" if missing else "the stand-in decodes nothing"
            return report("elements", f"{mode}: a decoder's frames", f"not run: {why}")
        film = f"filesrc location={self.runtime.gst / 'film.h264'} ! h264parse ! nvh264dec ! {CUDA}"
        with Sides(self.runtime) as sides:
            alone = sides.begin(f"{film} {self.down} ! fakesink sync=false", checksums="down.src")
            alone.wait("eos")
            pool = self.pool()
            producer = sides.begin(f"{film} ! xmemsink name=share pool={pool} cuda-ipc-mode={mode} delivery=lossless wait-for-connection=true")
            consumer = self.consumer(sides, pool)
            consumer.wait("eos")
            stats = producer.order("stats share", "stats")["stats"]
            for side in (alone, consumer, producer):
                side.stop()
        if not alone.sums or consumer.sums != alone.sums:
            raise Failed(f"{len(consumer.sums)} frames that are not the {len(alone.sums)} of the decoder")
        report("elements", f"{mode}: nvh264dec ! xmemsink, frames like those without a pool", f"{len(consumer.sums)} of {len(alone.sums)}; {stats['copied']} copied on the device")
        if self.runtime.has("nvh264enc"):
            self.encoder(mode)
        else:
            report("elements", f"{mode}: xmemsrc ! nvh264enc", "not run: nvh264enc is not there with this driver and card")

    def encoder(self, mode):
        with Sides(self.runtime) as sides:
            pool = self.pool()
            producer = self.producer(sides, pool, mode)
            encoder = sides.begin(f"xmemsrc pool={pool} num-buffers=50 ! nvh264enc ! h264parse ! fakesink name=coded sync=false", times="coded.sink")
            encoder.wait("eos")
            encoder.stop()
            producer.stop()
        report("elements", f"{mode}: xmemsrc ! nvh264enc", "50 frames encoded")

    def python(self, mode):
        """A Python program reads the same frames, with PyTorch if it supports the device."""
        from torch_reads import Frame, Library

        torch = None
        try:
            import torch

            torch = torch if torch.cuda.is_available() else None
        except ImportError:
            pass
        count = 50
        with Sides(self.runtime) as sides:
            pool = self.pool()
            # This format has no padding of rows.
            producer = self.producer(sides, pool, mode, caps=pictures(form="RGBA"))
            other = self.consumer(sides, pool)
            other.frames(1)
            library = Library(pathlib.Path(self.runtime.gst.parent) / "bin")
            consumer = library.c.xmem_gpu_connect(pool.encode())
            if not consumer:
                raise Failed("cannot connect; the reason is above")
            sums, stream = [], 0
            driver = Driver() if torch is None else None
            if torch is not None:
                stream = torch.cuda.Stream().cuda_stream
            for _ in range(count):
                frame, address, size, _ = library.take(consumer, stream)
                if torch is not None:
                    with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                        tensor = torch.as_tensor(Frame(address, size, False), device="cuda")
                        assert tensor.data_ptr() == address, "PyTorch copied it"
                        pixels = tensor[: 640 * 480 * 4].cpu().numpy().tobytes()
                        del tensor
                else:
                    pixels = driver.read(address, 640 * 480 * 4)
                sums.append(hashlib.sha1(pixels).hexdigest())
                if not library.c.xmem_gpu_release(frame, stream):
                    raise Failed("cannot release a frame; the reason is above")
            other.stop()
            producer.stop()
            by = "PyTorch" if torch is not None else "cuMemcpyDtoH, as PyTorch sees no device"
            report_wrong(f"{mode}: a Python program beside xmemsrc, by {by}", [(sums, producer.sums)])


class Driver:
    """Reads device memory without PyTorch."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self.check(self.cuda.cuCtxSetCurrent(context))

    def check(self, result):
        if result != 0:
            raise Failed(f"the driver returns {result}")

    def read(self, address, size):
        self.check(self.cuda.cuStreamSynchronize(None))
        place = ctypes.create_string_buffer(size)
        self.check(self.cuda.cuMemcpyDtoH_v2(place, ctypes.c_uint64(address), ctypes.c_size_t(size)))
        return place.raw


def transports(folder):
    """For each transport: name, the producer's elements after cudaupload, their pad, the consumer's elements, their pad."""
    cuda = [("xmemsink, vmm", "xmemsink name=share pool={} cuda-ipc-mode=vmm", "xmemsrc name=take pool={}")]
    cuda += [("xmemsink, legacy", "xmemsink name=share pool={} cuda-ipc-mode=legacy", "xmemsrc name=take pool={}")]
    for mode, io in (("legacy", "copy"), ("legacy", "import"), ("mmap", "copy")):
        name = f"cudaipcsink, {mode}" + (f", io-mode={io}" if mode == "legacy" else "")
        cuda.append((name, f"cudaipcsink name=share address={{}} ipc-mode={mode} sync=false", f"cudaipcsrc name=take address={{}} io-mode={io}"))
    rows = [(name, sink, "share.sink", source, "take.src") for name, sink, source in cuda]
    down, up = "cudadownload name=share ! video/x-raw", f"cudaupload name=take ! {CUDA}"
    rows.append(("cudadownload, unixfdsink, cudaupload", f"{down} ! unixfdsink socket-path={{}} sync=false", "share.sink", f"unixfdsrc socket-path={{}} ! {up}", "take.src"))
    return [(name, sink.format(f"{folder}/t{at}"), out, source.format(f"{folder}/t{at}"), into) for at, (name, sink, out, source, into) in enumerate(rows)]


def make(rate):
    caps = pictures(3840, 2160, rate=rate)
    return f"videotestsrc is-live=true pattern=black ! {caps} ! cudaupload ! {CUDA}"


def measure(runtime, ends, frames, rate, counts):
    """Measures one transport. If `ends` is None: only the producer's pipeline. `counts`: count copies, which needs the stand-in."""
    sink, out, source, into = ends or (None, None, None, None)
    with Sides(runtime) as sides:
        producer = sides.begin(f"{make(rate)} ! {sink or 'fakesink name=share sync=false'}", times=out or "share.sink")
        producer.wait("first")
        both = [producer]
        if source:
            consumer = sides.begin(f"{source} ! fakesink sync=false", times=into)
            consumer.wait("first")
            both.append(consumer)
        time.sleep(1)
        for side in both:
            side.order("measure", "measuring")
        count = lambda: [copies(runtime.environment, side.process.pid) for side in both] if counts else [0, 0]
        before = count()
        time.sleep(frames / rate)
        after = count()
        results = [side.order("figures", "figures") for side in reversed(both)][::-1]
        for side in reversed(both):
            side.end()
    passed = [max(1, len(result["times"])) for result in results]
    figures = {
        "cpu": [result["cpu_ns"] / many / 1e3 for result, many in zip(results, passed)],
        "copies": [(end - begin) / many for begin, end, many in zip(before, after, passed)],
        "frames": passed,
    }
    if source:
        # Frames are matched by their due time. Frames before and after the measurement are on one side only.
        left = sorted((due, at) for due, at in results[0]["times"] if due)
        dues = [due for due, _ in left]
        latencies = []
        for due, at in results[1]["times"]:
            place = bisect.bisect_left(dues, due - 500_000_000 // rate)
            if due and place < len(left) and abs(left[place][0] - due) < 500_000_000 // rate:
                latencies.append((at - left[place][1]) / 1e3)
        figures["latencies"] = sorted(latencies)
    return figures


def count_copies(counting, folder, rate):
    """Begins to count copies on the stand-in. Returns the future counters by transport. None: of the producer's pipeline alone."""
    one_by_one = concurrent.futures.ThreadPoolExecutor(1)
    count = lambda ends: measure(counting, ends or None, rate * 2, rate, True)["copies"]
    return {name: one_by_one.submit(count, ends) for name, *ends in [(None,), *transports(folder)]}


def compare(runtime, counted, folder, frames, rate):
    """Measures all transports in turn. `counted`: from `count_copies`. None: this run is on the stand-in."""
    same = counted is None
    alone = measure(runtime, None, frames, rate, same)
    own_counts = {None: alone["copies"]}

    def copies_of(name):
        """The number of copies by each side, or why there is none. Waits only for this transport, so that each row is printed soon."""
        if same:
            return own_counts[name]
        try:
            return counted[name].result()
        except Exception as failure:
            return failure

    report("transports", "the pipeline alone, into fakesink", {"hand-over, µs, median": "", "99 %": "", "CPU of the producer, µs per frame": f"{alone['cpu'][0]:.0f}"})
    ours = None
    for name, *ends in transports(folder):
        try:
            figures = measure(runtime, ends, frames, rate, same)
        except Exception as failure:
            report("transports", name, {"failed": words(failure)})
            continue
        own_counts[name] = figures["copies"]

        def copied(side):
            """The number of copies without those of the producer's pipeline alone."""
            own, all = copies_of(None), copies_of(name)
            if isinstance(own, list) and isinstance(all, list):
                return f"{all[side] - (own[0] if side == 0 else 0):.1f}"
            return words(all if isinstance(all, Exception) else own)

        times = figures["latencies"]
        cpu = figures["cpu"][0] - alone["cpu"][0] + figures["cpu"][1]
        if name == "xmemsink, vmm" and times:
            ours = (times, cpu)
        if name.startswith("cudaipcsink") and times and ours and cpu > 0:
            median = lambda times: times[len(times) // 2]
            figure = f"hand-over {median(ours[0]) / median(times):.2f}, CPU of both sides above the pipeline alone {ours[1] / cpu:.2f}"
            report("elements", f"xmemsink, vmm / {name}", figure)
        result = {
            "hand-over, µs, median": f"{times[len(times) // 2]:.0f}" if times else "no frames",
            "99 %": f"{times[(len(times) - 1) * 99 // 100]:.0f}" if times else "",
            "CPU of the producer, µs per frame": f"{figures['cpu'][0]:.0f}",
            "of this, above the pipeline alone": f"{figures['cpu'][0] - alone['cpu'][0]:.0f}",
            "CPU of the consumer": f"{figures['cpu'][1]:.0f}",
            "cuMemcpy per frame by the producer, above the pipeline alone": copied(0),
            "by the consumer": copied(1),
            "frames": str(figures["frames"][1]),
        }
        report("transports", name, result)


def stuck(runtime, folder, mode):
    """For comparison: stops cudaipcsink while one of its clients is stopped."""
    with Sides(runtime) as sides:
        address = f"{folder}/stuck-{mode}"
        producer = sides.begin(f"{make(30)} ! cudaipcsink name=share address={address} ipc-mode={mode} sync=false")
        # cudaipcsink does not report when it is ready, and refuses clients before.
        time.sleep(1)
        consumer = sides.begin(f"cudaipcsrc name=take address={address} io-mode=import ! fakesink sync=false", times="take.src")
        consumer.wait("first")
        consumer.process.send_signal(signal.SIGSTOP)
        try:
            took = f"{producer.stop(STUCK):.2f} s"
        except Failed:
            took = f"it did not end within {STUCK} s"
        finally:
            consumer.process.send_signal(signal.SIGCONT)
        report("elements", f"cudaipcsink, {mode}: stop of a producer whose consumer is stuck", took)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("programs", type=pathlib.Path)
    arguments.add_argument("frames", type=int)
    arguments.add_argument("--only", help="comma-separated parts: first, behaviour, kernels, python, decoder, stuck, transports")
    arguments.add_argument("--host-memory", action="store_true", help="test this script without devices")
    arguments = arguments.parse_args()
    # As in record.py.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    programs = arguments.programs.resolve()
    if not (programs / "gst").is_dir():
        return report("elements", "GStreamer's elements", "not run: the bundle has no GStreamer; `cargo xtask gpu-bundle` as root packs it")
    parts = (arguments.only or "behaviour,kernels,python,decoder,stuck,transports").split(",")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        runtime = counting = Runtime(programs, folder, os.environ)
        if "XMEM_STANDIN_DIR" not in os.environ:
            place = pathlib.Path(folder) / "counted"
            counting = Runtime(programs, place, stand_in(programs, place))
        version = subprocess.run(runtime.command("gst-launch-1.0", "--version"), env=runtime.environment, capture_output=True, text=True, timeout=HANG)
        report("elements", "version", next((line for line in version.stdout.splitlines() if line.startswith("GStreamer")), version.stderr))
        for element in ("xmemsink", "xmemsrc", "cudaupload", "cudadownload", "cudaconvert", "cudaipcsink", "cudaipcsrc", "unixfdsink"):
            if not runtime.has(element):
                report("elements", f"the element {element}", "is not there with this driver")
        elements = Elements(runtime, folder, arguments.host_memory)
        counted = None
        if "transports" in parts and counting is not runtime:
            # Runs in parallel: it needs no device, and is not timed.
            counted = count_copies(counting, place, 30)
        tried = []
        modes = ("vmm", "legacy")
        if "first" in parts:
            tried += [(elements.two_consumers, mode) for mode in modes]
        if "behaviour" in parts:
            behaviour = (elements.two_consumers, elements.killed_consumer, elements.killed_producer, elements.changes, elements.stuck_consumer)
            tried += [(what, mode) for mode in modes for what in behaviour]
        if "python" in parts:
            tried += [(elements.python, mode) for mode in modes]
        if "kernels" in parts and not arguments.host_memory:
            tried += [(elements.slow_kernels, mode) for mode in modes]
        if "decoder" in parts and not arguments.host_memory:
            tried += [(elements.decoder, mode) for mode in modes]
        for what, mode in tried:
            try:
                what(mode)
            except Exception as failure:
                report("elements", f"{mode}: {what.__name__.replace('_', ' ')}", f"FAILED: {words(failure)}")
                failures += 1
        if "transports" in parts:
            try:
                compare(runtime, counted, folder, min(arguments.frames, FRAMES), 30)
            except Exception as failure:
                report("transports", "the pipeline alone", {"failed": words(failure)})
                failures += 1
        if "stuck" in parts:
            for mode in ("legacy", "mmap"):
                try:
                    stuck(runtime, folder, mode)
                except Exception as failure:
                    report("elements", f"cudaipcsink, {mode}, with a consumer that is stuck", f"failed: {words(failure)}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
