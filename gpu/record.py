# SPDX-License-Identifier: MPL-2.0
"""Runs the programs of `cargo xtask gpu-bundle`, and writes the results as Markdown.

It uses only the standard library. The scripts for PyTorch and CuPy run as separate processes.
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
# The limit for the output of one program, in bytes.
MOST_OUTPUT = 4 << 20
# For each part: the time limit, and the time that earlier parts reserve for it, in seconds.
LIMITS = {
    "device": (40, 0),
    "cuda tests": (150, 40),
    "numbers": (100, 45),
    # The first script reads PyTorch from the disk.
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
    """The folder with the programs: the one of this script, or the repository's target folder."""
    for folder in (HERE, ROOT / "target" / "gpu-bundle"):
        if (folder / "bin" / "xmem-gpu").is_file():
            return folder
    sys.exit("gpu/run: there is no bundle; `cargo xtask gpu-bundle` makes one where there is Rust")


def run(command, environment, seconds, look=None):
    """Runs a program. Returns its exit status (None: it was killed after `seconds`) and its output. `look` is called repeatedly with
    the output so far."""
    with tempfile.TemporaryFile() as output:
        # A file, not a pipe: reading a pipe to its end waits for all processes that have it open, and some cannot be killed.
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
        # Kills its children as well, also if the program ended by itself.
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
    """The results in a program's output: JSON objects, one per line."""
    for line in output.splitlines():
        if line.startswith('{"'):
            try:
                yield json.loads(line)
            except ValueError:
                pass


class Record:
    """The results by part. The file is written after each result, so that an interrupted run leaves the results so far."""

    def __init__(self, end, write, log):
        self.parts = {}
        self.failed = []
        self.end = end
        self.write = write
        self.log = log
        self.to_come = list(LIMITS)
        self.lock = threading.Lock()

    def begin(self, name):
        """Begins a part. Returns its time limit in seconds, which reserves time for the later parts."""
        self.to_come.remove(name)
        most, _ = LIMITS[name]
        later = sum(LIMITS[other][1] for other in self.to_come)
        left = self.end - time.monotonic()
        # If there is less time, the remaining parts share it equally.
        seconds = min(most, max(left - later, left / (1 + len(self.to_come))))
        print(f"gpu/run: {name}, {seconds:.0f} s at most", file=sys.stderr)
        return seconds

    def add(self, part, what, result):
        self.parts.setdefault(part, []).append((what, result))

    def fail(self, part, what, output):
        """Adds a failure to the log, with the end of its output."""
        self.failed.append(part)
        text = f"==== {part}: {what}\n{output}\n"
        if self.log is None:
            print(text, file=sys.stderr)
        else:
            with self.log.open("a") as log:
                log.write(text)

    def program(self, name, part, command, environment):
        """Runs a program that prints results."""
        seconds = self.begin(name)
        if seconds < 5:
            self.add(part, name, "not run: no time was left")
            return
        taken = 0

        def look(output):
            nonlocal taken
            found = list(lines(output[: output.rfind("\n") + 1]))
            for line in found[taken:]:
                # Some programs print results for several parts.
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
        """Runs all tests of some programs. Each test is a process. Several run at the same time, because no test depends on timing."""
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
            # `child` is the role of a test's child process.
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
        begun = time.monotonic()
        status, output = run([program, "--exact", name, "--nocapture", "--test-threads=1"], environment, seconds)
        took = time.monotonic() - begun
        if status == 0:
            # Shows which tests come near the limit.
            result = "passed" if took < 10 else f"passed in {took:.0f} s"
        elif status is None and seconds < each:
            result = f"not run to its end: {seconds:.0f} s were left"
        else:
            result = f"FAILED: hung for {seconds:.0f} s" if status is None else "FAILED"
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
        """Adds the ratios of torch.multiprocessing's queue to xmem."""
        figures = dict(self.parts.get("numbers", []) + self.parts.get("torch", []))
        for figure in ("CPU of both processes, µs per frame", "hand-over, µs, median"):
            for queue in ("torch.multiprocessing's queue, without clone", "torch.multiprocessing's queue, with clone"):
                theirs, ours = figures.get(f"{queue}: {figure}"), figures.get(f"xmem CUDA by descriptor: {figure}")
                try:
                    self.add("numbers", f"{queue} / xmem CUDA: {figure}", f"{float(theirs) / float(ours):.2f}")
                except (TypeError, ValueError, ZeroDivisionError):
                    # One of them failed; this is already reported.
                    pass

    def summary(self):
        """A short list of the failures, for systems that keep only the end of the output."""
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
            # A result with several figures has one column for each.
            results = [(what, result if isinstance(result, dict) else {"result": result}) for what, result in self.parts[part]]
            columns = list(dict.fromkeys(name for _, result in results for name in result))
            clean = lambda cell: str(cell).replace("|", "\\|").replace("\n", " ")
            row = lambda cells: f"| {' | '.join(map(clean, cells))} |"
            text += [row(["what", *columns]), "|---" * (len(columns) + 1) + "|"]
            text += [row([what, *(result.get(name, "") for name in columns)]) for what, result in results]
        return "\n".join(text) + "\n"


def prepare(programs, folder, stand_in):
    """The environment variables of all programs."""
    environment = dict(os.environ, XMEM_CUDA_REAL="1", PYTHONUNBUFFERED="1", RUST_BACKTRACE="0", XMEM_RUNTIME_DIR=str(folder))
    # A blocked stream must not delay others. The default is eight hardware queues.
    environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    # A cache for compiled kernels, also without a home directory.
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
        # The mode may have been lost when the bundle was copied to this machine.
        if not os.access(program, os.X_OK):
            program.chmod(0o755)
    return environment


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--stand-in", action="store_true", help="test the scripts on the stand-in driver, without a GPU")
    arguments.add_argument("--frames", type=int, default=500, help="number of frames of each measurement")
    arguments.add_argument("--seconds", type=int, default=45, help="time limit of each test")
    arguments.add_argument("--minutes", type=float, default=9, help="time limit of the run; its results so far are written")
    arguments = arguments.parse_args()
    # gVisor sends SIGHUP to all processes of a part when one of them ends while another is stopped. Children inherit the setting.
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
            # Replaces the file atomically, because the run may be interrupted.
            place = to / "gpu-results.md.new"
            try:
                place.write_text(text)
                place.replace(to / "gpu-results.md")
            except OSError as error:
                print(f"gpu/run: {error}", file=sys.stderr)

    record = Record(time.monotonic() + arguments.minutes * 60, write, out and out / "gpu-run.log")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = prepare(programs, pathlib.Path(folder), arguments.stand_in)
        # Without this, loading a kernel at its first launch may wait for blocked streams. PyTorch has too many kernels to load
        # all of them, so its scripts do not use the setting.
        eager = dict(environment, CUDA_MODULE_LOADING="EAGER")
        record.program("device", "device", [tool, "device"], eager)
        card = next((result for what, result in record.parts.get("device", []) if what == "card"), None)
        if card is None:
            sys.exit(f"gpu/run: no device found: {record.parts.get('device')}; libcuda.so.1: {driver.folder()}")
        if ("stand-in" in card) != arguments.stand_in:
            sys.exit(f"gpu/run: the device is {card}: use --stand-in with the stand-in driver only")
        # Parts that need a device come first.
        tests = sorted((programs / "tests").iterdir())
        on_devices = [program for program in tests if "cuda" in program.name]
        record.tests("cuda tests", on_devices, eager, arguments.seconds)
        record.program("numbers", "numbers", [tool, "numbers", "--frames", arguments.frames], eager)
        for script, part in (("torch_reads.py", "torch"), ("torch_queue.py", "torch"), ("module.py", "module")):
            command = [sys.executable, HERE / script, programs / "bin", str(arguments.frames)]
            record.program(script, part, command, environment)
        record.ratios()
        record.program("elements.py", "elements", [sys.executable, HERE / "elements.py", programs, str(arguments.frames)], environment)
        # Parts that may leave hanging processes come last.
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
        sys.exit(f"gpu/run: failures in: {', '.join(sorted(set(record.failed)))}")


@functools.cache
def version():
    """The version of the driver, from the kernel module or from nvidia-smi."""
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
