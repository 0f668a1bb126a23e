# SPDX-License-Identifier: MPL-2.0
"""Runs what `cargo xtask gpu-bundle` packed, and writes down what happened, as Markdown.

Only the standard library is needed here; the scripts for PyTorch and CuPy are processes of their own.
"""

import argparse
import concurrent.futures
import datetime
import functools
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import driver

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
ONLY_HERE = "ONLY ON THE STAND-IN: "
# Bytes of what one program prints.
MOST_OUTPUT = 4 << 20
# Seconds that each part may take, and that those before leave to it.
LIMITS = {
    "device": (40, 0),
    "cuda tests": (150, 40),
    "numbers": (100, 45),
    # The first one reads PyTorch off the disk.
    "torch_reads.py": (90, 25),
    "torch_queue.py": (60, 20),
    "module.py": (90, 30),
    "elements.py": (220, 100),
    **{f"question {letter}": (60, 8) for letter in "abcdefg"},
    "other tests": (60, 15),
}
TITLES = {
    "device": "Device",
    "tests": "Tests",
    "numbers": "Numbers",
    "torch": "PyTorch and CuPy",
    "module": "The Python module",
    "elements": "GStreamer's elements",
    "transports": "GStreamer's elements side by side",
    "a": "Legacy handles when the exporter is killed, and what opening costs",
    "b": "Memory by descriptor when the exporter is killed, and read-only access",
    "c": "Host memory that a device writes",
    "d": "Releases, errors and events",
    "e": "Within one process, and two contexts",
    "f": "PID namespaces and MIG",
    "g": "What the driver needs of the system, and its limits",
}
NOTES = {
    "transports": "4K NV12, 30 frames a second, of `videotestsrc pattern=black ! cudaupload`; each side is a process. The hand-over is from the "
    "moment that the frame comes to the transport until the consumer's pipeline has it on the device. Copies are calls of cuMemcpy, "
    "of which a picture of two planes takes one or two; they are counted on the stand-in driver in any case.",
}


def bundle():
    """The folder with the programs: this one, or where the repository has it."""
    for folder in (HERE, ROOT / "target" / "gpu-bundle"):
        if (folder / "bin" / "xmem-gpu").is_file():
            return folder
    sys.exit("gpu/run: there is no bundle; `cargo xtask gpu-bundle` makes one where there is Rust")


def run(command, environment, seconds, look=None):
    """A program's exit status (None: it was ended after so many seconds) and all that it printed. `look` is called with what
    it has printed so far, now and then."""
    with tempfile.TemporaryFile() as output:
        # A file, since a wait for the end of a pipe is for all processes that have it, also those that cannot be killed.
        process = subprocess.Popen(
            [str(word) for word in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        def printed():
            size = os.fstat(output.fileno()).st_size
            return os.pread(output.fileno(), min(size, MOST_OUTPUT), 0).decode(errors="replace")

        end, status = time.monotonic() + seconds, None
        while status is None and time.monotonic() < end:
            try:
                status = process.wait(min(2, max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                if look:
                    look(printed())
        # Its children too, also where it ended by itself.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            print(f"gpu/run: process {process.pid} does not end", file=sys.stderr)
        return status, printed()


def lines(output):
    """A program's output for the record: JSON objects, one a line."""
    for line in output.splitlines():
        if line.startswith('{"'):
            try:
                yield json.loads(line)
            except ValueError:
                pass


class Record:
    """The results so far, by part. It is written as it comes, so that an interrupted run leaves what it had."""

    def __init__(self, end, write, log):
        self.parts = {}
        self.failed = []
        self.end = end
        self.write = write
        self.log = log
        self.to_come = list(LIMITS)
        self.lock = threading.Lock()

    def begin(self, name):
        """Seconds that a part may take, so that something is left to each that comes after it."""
        self.to_come.remove(name)
        most, _ = LIMITS[name]
        later = sum(LIMITS[other][1] for other in self.to_come)
        left = self.end - time.monotonic()
        # Where there is less than that, each has an equal part of it.
        seconds = min(most, max(left - later, left / (1 + len(self.to_come))))
        print(f"gpu/run: {name}, {seconds:.0f} s at most", file=sys.stderr)
        return seconds

    def add(self, part, what, result):
        self.parts.setdefault(part, []).append((what, result))

    def fail(self, part, what, output):
        """The part of a failure that is kept besides its line."""
        self.failed.append(part)
        text = f"==== {part}: {what}\n{output}\n"
        if self.log is None:
            print(text, file=sys.stderr)
        else:
            with self.log.open("a") as log:
                log.write(text)

    def program(self, name, part, command, environment):
        """Run a program that prints lines for the record."""
        seconds = self.begin(name)
        if seconds < 5:
            self.add(part, name, "not run: no time was left")
            return
        taken = 0

        def look(output):
            nonlocal taken
            found = list(lines(output[: output.rfind("\n") + 1]))
            for line in found[taken:]:
                # Some programs have results for more than one part.
                self.add(line["part"] if line["part"] in TITLES else part, line["what"], line["result"])
            if len(found) > taken:
                taken = len(found)
                self.write(self)

        try:
            status, output = run(command, environment, seconds, look)
        except OSError as error:
            status, output = error, ""
        look(output + "\n")
        if status != 0:
            why = f"was ended after {seconds:.0f} s" if status is None else f"ended with {status}"
            last = [line for line in output.splitlines() if not line.startswith('{"')][-3:]
            self.add(part, name, f"{why}: {' / '.join(last)[-600:]}")
            self.fail(part, name, output)
        self.write(self)

    def tests(self, name, programs, environment, each):
        """All tests of some programs: each is a process, some at a time, as none depends on how fast it is."""
        end = time.monotonic() + self.begin(name)
        tests = []
        for program in programs:
            try:
                status, listed = run([program, "--list", "--format", "terse"], environment, 30)
            except OSError as error:
                status, listed = error, str(error)
            names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
            if status != 0 or not names:
                self.add("tests", program.name, f"cannot be started: {listed.strip()[-600:]}")
                self.fail("tests", program.name, listed)
            # The role of a test's child is not a test.
            tests += [(program, test) for test in names if test != "child"]
        with concurrent.futures.ThreadPoolExecutor(min(6, os.cpu_count() or 1)) as pool:
            for _ in pool.map(lambda test: self.test(*test, environment, each, end), tests):
                with self.lock:
                    self.write(self)

    def test(self, program, name, environment, each, end):
        what = f"{program.name}: {name}"
        seconds = min(each, end - time.monotonic())
        if seconds < 5:
            with self.lock:
                self.add("tests", what, "not run: no time was left")
            return
        status, output = run([program, "--exact", name, "--nocapture", "--test-threads=1"], environment, seconds)
        result = "passed" if status == 0 else f"FAILED: hung for {seconds:.0f} s" if status is None else "FAILED"
        for line in output.splitlines():
            if ONLY_HERE in line:
                result = f"does not apply: {line.split(ONLY_HERE, 1)[1]}"
                break
            if line.startswith("NOT RUN: "):
                result = f"not run: {line.removeprefix('NOT RUN: ')}"
        failed = status != 0 and result.startswith("FAILED")
        if failed:
            printed = [line for line in output.splitlines() if line.strip()]
            first = next((at for at, line in enumerate(printed) if "panicked at" in line), -6)
            result += f": {' / '.join(printed[first:][:6])[:800]}"
        differs = [line.removeprefix("DIFFERS: ") for line in output.splitlines() if line.startswith("DIFFERS: ")]
        if differs:
            result += f"; as on the stand-in, except for this: {', '.join(differs)}"
        with self.lock:
            self.add("tests", what, result)
            if failed:
                self.fail("tests", what, output)

    def ratios(self):
        """The queue of torch.multiprocessing, compared with ours."""
        figures = dict(self.parts.get("numbers", []) + self.parts.get("torch", []))
        for figure in ("CPU of both processes, µs per frame", "hand-over, µs, median"):
            for queue in ("torch.multiprocessing's queue, without clone", "torch.multiprocessing's queue, with clone"):
                theirs, ours = figures.get(f"{queue}: {figure}"), figures.get(f"xmem CUDA by descriptor: {figure}")
                try:
                    self.add("numbers", f"{queue} / xmem CUDA: {figure}", f"{float(theirs) / float(ours):.2f}")
                except (TypeError, ValueError, ZeroDivisionError):
                    # One of them failed, and reported it.
                    pass

    def summary(self):
        """The failures, in so few words that they can be read where only the end of the output is kept."""
        text = []
        for part, results in self.parts.items():
            texts = [(what, str(result)) for what, result in results]
            signs = ("FAILED", "failed", "not run", "was ended after", "ended with", "cannot be started")
            wrong = [(what, result) for what, result in texts if any(sign in result for sign in signs)]
            text.append(f"{part}: {len(texts)} results, {len(wrong)} to look at")
            text += [f"  {what}: {result[:200]}" for what, result in wrong]
        return "\n".join(text)[:9000]

    def markdown(self, card, commit, stand_in):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        if stand_in:
            text = ["# Results WITHOUT a GPU", "", "**On the stand-in driver, to try the scripts. Nothing here is a result of a GPU.**"]
        else:
            text = ["# Results on a GPU"]
        text += ["", f"{now}; {card}; commit {commit}.", "", f"Linux {platform.release()}, {os.cpu_count()} processors."]
        tests = [result for _, result in self.parts.get("tests", [])]
        passed = sum(result.startswith("passed") for result in tests)
        aside = sum(result.startswith(("does not apply", "not run")) for result in tests)
        text += ["", f"Tests: {passed} passed, {len(tests) - passed - aside} failed, {aside} do not apply or were not run."]
        for part, title in TITLES.items():
            text += ["", f"## {title}{', on the stand-in driver' if stand_in else ''}", ""]
            if part not in self.parts:
                text.append("Not run.")
                continue
            if part in NOTES:
                text += [NOTES[part], ""]
            # A result with several figures has a column for each.
            results = [(what, result if isinstance(result, dict) else {"result": result}) for what, result in self.parts[part]]
            columns = list(dict.fromkeys(name for _, result in results for name in result))
            clean = lambda cell: str(cell).replace("|", "\\|").replace("\n", " ")
            row = lambda cells: f"| {' | '.join(map(clean, cells))} |"
            text += [row(["what", *columns]), "|---" * (len(columns) + 1) + "|"]
            text += [row([what, *(result.get(name, "") for name in columns)]) for what, result in results]
        return "\n".join(text) + "\n"


def prepare(programs, folder, stand_in):
    """The environment of all programs."""
    environment = dict(os.environ, XMEM_CUDA_REAL="1", PYTHONUNBUFFERED="1", RUST_BACKTRACE="0", XMEM_RUNTIME_DIR=str(folder))
    # A blocked stream must delay no other one: by default the device knows eight at a time.
    environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    # Kernels are compiled once, also where there is no home.
    environment["CUDA_CACHE_PATH"] = str(folder / "kernels")
    environment["CUPY_CACHE_DIR"] = str(folder / "cupy")
    if not os.access(os.environ.get("HOME") or "/nowhere", os.W_OK):
        environment["HOME"] = str(folder)
    if stand_in:
        machine = folder / "machine"
        (machine / "lib").mkdir(parents=True)
        for name in (driver.CUDA, "libnvcuvid.so.1"):
            shutil.copy(programs / "bin" / "libxmem_cuda_standin.so", machine / "lib" / name)
        environment["LD_LIBRARY_PATH"] = str(machine / "lib")
        environment["XMEM_STANDIN_DIR"] = str(machine)
        environment["XMEM_STANDIN_MEMORY"] = str(4 << 30)
    else:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(driver.paths(os.environ))
    for program in (*(programs / "bin").iterdir(), *(programs / "tests").iterdir(), *programs.glob("gst/bin/*"), *programs.glob("gst/lib/ld-*")):
        # The copy of the bundle to this machine may have lost that.
        if not os.access(program, os.X_OK):
            program.chmod(0o755)
    return environment


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--stand-in", action="store_true", help="try the scripts without a GPU")
    arguments.add_argument("--frames", type=int, default=500, help="frames of each measurement")
    arguments.add_argument("--seconds", type=int, default=45, help="after which a test is ended")
    arguments.add_argument("--minutes", type=float, default=9, help="after which the run ends with what it has")
    arguments = arguments.parse_args()
    # gVisor sends it to all processes of a part when one of them ends while another is stopped. Children inherit this.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    programs = bundle()
    commit = (programs / "commit").read_text().strip()
    tool = programs / "bin" / "xmem-gpu"
    out = pathlib.Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    to = out or ROOT / "docs"

    def write(record):
        card = next((result for what, result in record.parts.get("device", []) if what == "card"), None)
        if card is None or arguments.stand_in != ("stand-in" in card):
            return
        if not arguments.stand_in:
            text = record.markdown(f"{card}; {version()}", commit, False)
            # As a whole or not at all: it may be the last thing that happens.
            place = to / "gpu-results.md.new"
            try:
                place.write_text(text)
                place.replace(to / "gpu-results.md")
            except OSError as error:
                print(f"gpu/run: {error}", file=sys.stderr)

    record = Record(time.monotonic() + arguments.minutes * 60, write, out and out / "gpu-run.log")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = prepare(programs, pathlib.Path(folder), arguments.stand_in)
        # Loading a kernel at its first launch may wait for blocked streams until a later one has run. PyTorch has
        # too many to load them all.
        eager = dict(environment, CUDA_MODULE_LOADING="EAGER")
        record.program("device", "device", [tool, "device"], eager)
        card = next((result for what, result in record.parts.get("device", []) if what == "card"), None)
        if card is None:
            sys.exit(f"gpu/run: no card here: {record.parts.get('device')}; libcuda.so.1: {driver.folder()}")
        if ("stand-in" in card) != arguments.stand_in:
            sys.exit(f"gpu/run: this is {card}; --stand-in is for that one, and only for it")
        # First what needs a device.
        tests = sorted((programs / "tests").iterdir())
        on_devices = [program for program in tests if "cuda" in program.name]
        record.tests("cuda tests", on_devices, eager, arguments.seconds)
        record.program("numbers", "numbers", [tool, "numbers", "--frames", arguments.frames], eager)
        for script, part in (("torch_reads.py", "torch"), ("torch_queue.py", "torch"), ("module.py", "module")):
            command = [sys.executable, HERE / script, programs / "bin", str(arguments.frames)]
            record.program(script, part, command, environment)
        record.ratios()
        record.program("elements.py", "elements", [sys.executable, HERE / "elements.py", programs, str(arguments.frames)], environment)
        # Parts that may leave processes that hang come last.
        for question in "abcdefg":
            record.program(f"question {question}", question, [tool, "question", question], eager)
        others = [program for program in tests if program not in on_devices]
        record.tests("other tests", others, eager, arguments.seconds)
    if arguments.stand_in:
        print(record.markdown("xmem stand-in (no GPU)", commit, True))
    print(record.summary(), file=sys.stderr)
    if not arguments.stand_in:
        print(f"gpu/run: {to / 'gpu-results.md'}", file=sys.stderr)
    if record.failed:
        sys.exit(f"gpu/run: something failed in: {', '.join(sorted(set(record.failed)))}")


@functools.cache
def version():
    """The driver's version, from the kernel module or its tool."""
    module = pathlib.Path("/proc/driver/nvidia/version")
    try:
        return module.read_text().splitlines()[0]
    except (OSError, IndexError):
        pass
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return "driver " + subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return "driver unknown"


if __name__ == "__main__":
    main()
