# SPDX-License-Identifier: MPL-2.0
"""Runs the programs of `cargo xtask gpu-bundle` in three stages, and writes the results as Markdown.

It uses only the standard library. The scripts for PyTorch and CuPy run as separate processes.
"""

import argparse
import concurrent.futures
import ctypes
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import driver
from results import TITLES, Results

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
ONLY_HERE = "ONLY ON THE STAND-IN: "
# The limit for the output of one program, in bytes.
MOST_OUTPUT = 4 << 20
# The time limit of each stage, in seconds.
LIMITS = {1: 150, 2: 200, 3: 150}
# The time limit in seconds of each part of stage 3, which runs them in this order. The rest of the stage's time is for the description
# of the device.
MEASUREMENTS = {"numbers": 35, "torch_queue": 30, "stuck": 20, "transports": 55}
assert sum(MEASUREMENTS.values()) <= LIMITS[3] - 10, "the parts of stage 3 do not fit its limit"
# The tests of stage 1, whose failure would invalidate most other results.
FIRST = (
    "xmem-cuda-standin-behaviour: ipc::a_handle_covers_the_whole_allocation",
    "xmem-cuda-standin-behaviour: vmm::memory_outlives_its_killed_exporter",
    "xmem-cuda-standin-behaviour: event::a_consumer_waits_for_the_producers_work",
    "xmem-cuda-standin-behaviour: event::a_killed_producers_event_never_completes",
    "xmem-core-cuda: hand_over::streams_of_frames_are_intact",
    "xmem-core-cuda: hand_over::consumers_wait_for_the_producers_write_by_descriptor",
    "xmem-core-cuda: hand_over::consumers_wait_for_the_producers_write_by_legacy_handle",
    "xmem-core-cuda: hand_over::no_slot_is_written_while_a_kernel_reads_it",
    "xmem-core-cuda: hand_over::nothing_is_copied_imported_or_waited_for_after_the_first_round",
    "xmem-core-cuda: deaths::leases_of_a_killed_consumer_are_released",
    "xmem-core-cuda: deaths::frames_of_a_killed_producer_stay_readable",
    "xmem-core-cuda: deaths::a_frame_that_a_killed_producer_did_not_finish_is_refused_and_nothing_hangs",
    "xmem-core-cuda: forged::the_header_of_memory_of_this_process_is_taken_only_as_it_is",
)


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


class Stage:
    """A stage, which ends by itself at its time limit."""

    def __init__(self, number, programs, environment, results, log, arguments):
        self.end = time.monotonic() + LIMITS[number]
        self.programs = programs
        self.tool = programs / "bin" / "xmem-gpu"
        self.environment = environment
        # Without this, loading a kernel at its first launch may wait for blocked streams. PyTorch has too many kernels to load
        # all of them, so its scripts do not use the setting.
        self.eager = dict(environment, CUDA_MODULE_LOADING="EAGER")
        self.results = results
        self.log = log
        self.arguments = arguments

    def left(self, most):
        return min(most, self.end - time.monotonic())

    def fail(self, part, what, output):
        """Adds a failure to the log, with the end of its output."""
        text = f"==== {part}: {what}\n{output}\n"
        if self.log is None:
            print(text, file=sys.stderr)
        else:
            with self.log.open("a") as log:
                log.write(text)

    def program(self, name, part, command, environment, most):
        """Runs a program that prints results, for at most so many seconds."""
        seconds = self.left(most)
        if seconds < 3:
            return self.results.add(part, name, "not run: no time was left")
        begun, taken = time.monotonic(), 0

        def look(output):
            nonlocal taken
            found = list(lines(output[: output.rfind("\n") + 1]))
            for line in found[taken:]:
                # Some programs print results for several parts.
                self.results.add(line["part"] if line["part"] in TITLES else part, line["what"], line["result"])
            taken = len(found)

        try:
            status, output = run(command, environment, seconds, look)
        except OSError as error:
            status, output = error, ""
        look(output + "\n")
        print(f"gpu/run: {name}: {time.monotonic() - begun:.0f} s of {seconds:.0f}", file=sys.stderr)
        if status != 0:
            why = f"was ended after {seconds:.0f} s" if status is None else f"ended with {status}"
            last = [line for line in output.splitlines() if not line.startswith('{"')][-3:]
            self.results.add(part, name, f"{why}: {' / '.join(last)[-600:]}")
            self.fail(part, name, output)

    def script(self, name, part, most, *arguments):
        folder = self.programs if name == "elements.py" else self.programs / "bin"
        command = [sys.executable, HERE / name, folder, str(self.arguments.frames), *arguments]
        self.program(" ".join([name, *arguments]), part, command, self.environment, most)

    def questions(self, letters, most):
        for letter in letters:
            self.program(f"question {letter}", letter, [self.tool, "question", letter], self.eager, most)

    def listed(self):
        """All tests: the program, and the name within it."""
        for program in sorted((self.programs / "tests").iterdir()):
            try:
                status, listed = run([program, "--list", "--format", "terse"], self.eager, 30)
            except OSError as error:
                status, listed = error, str(error)
            names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
            if status != 0 or not names:
                self.results.add("tests", program.name, f"cannot be started: {listed.strip()[-600:]}")
                self.fail("tests", program.name, listed)
            # `child` and `remote` are the roles of a test's child process.
            yield from ((program, test) for test in names if test not in ("child", "remote::the_other_side"))

    def tests(self, chosen, most):
        """Runs the tests in this order. Each is a process. Several run at the same time, because no test depends on timing."""
        begun, end = time.monotonic(), time.monotonic() + self.left(most)
        with concurrent.futures.ThreadPoolExecutor(min(5, os.cpu_count() or 1)) as pool:
            list(pool.map(lambda test: self.test(*test, end), chosen))
        print(f"gpu/run: {len(chosen)} tests: {time.monotonic() - begun:.0f} s", file=sys.stderr)

    def test(self, program, name, end):
        what, each = f"{program.name}: {name}", self.arguments.seconds
        seconds = min(each, end - time.monotonic())
        if seconds < 3:
            return self.results.add("tests", what, "not run: no time was left")
        begun = time.monotonic()
        status, output = run([program, "--exact", name, "--nocapture", "--test-threads=1"], self.eager, seconds)
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
        self.results.add("tests", what, result)
        if failed:
            self.fail("tests", what, output)


def in_parallel(*jobs):
    """Runs parts that are not timed at the same time. An error in one is raised after the others have ended."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result()


def first(stage):
    """Stage 1: the device, the questions, and the tests that say most, with those of a decoder."""
    tests = {f"{program.name}: {name}": (program, name) for program, name in stage.listed()}
    for missing in (name for name in FIRST if name not in tests):
        stage.results.add("tests", missing, "FAILED: there is no such test")
    chosen = [tests[name] for name in FIRST if name in tests]
    # The durations of these two are results.
    stage.questions("ac", 15)
    in_parallel(
        lambda: stage.tests(chosen, 60),
        lambda: stage.script("torch_reads.py", "torch", 80),
        lambda: stage.script("elements.py", "elements", 80, "--only", "first"),
        lambda: stage.script("elements.py", "elements", 80, "--only", "decoder"),
        lambda: stage.questions("bdefg", 25),
    )


def second(stage):
    """Stage 2: all tests. The failures of earlier stages come first, and then the tests that need a device."""
    again, only = stage.arguments.failed, stage.arguments.only
    rank = lambda test: (f"{test[0].name}: {test[1]}" not in again, "cuda" not in test[0].name, test[0].name)
    tests = sorted(stage.listed(), key=rank)
    if only:
        return stage.tests([test for test in tests if any(name in f"{test[0].name}: {test[1]}" for name in only)], 200)
    in_parallel(
        lambda: stage.tests(tests, 190),
        lambda: stage.script("module.py", "module", 80),
        lambda: stage.script("elements.py", "elements", 190, "--only", "behaviour,kernels,python"),
    )


def third(stage):
    """Stage 3: measurements, one after the other. Each is a script with its own limit, so that none loses the results of another."""
    frames = str(stage.arguments.frames)
    numbers = [stage.tool, "numbers", "--frames", frames]
    stage.program("numbers", "numbers", numbers, stage.eager, MEASUREMENTS["numbers"])
    stage.script("torch_queue.py", "torch", MEASUREMENTS["torch_queue"])
    for part in ("stuck", "transports"):
        stage.script("elements.py", "elements", MEASUREMENTS[part], "--only", part)


STAGES = {1: first, 2: second, 3: third}


def prepare(programs, folder, stand_in):
    """The environment variables of all programs."""
    environment = dict(os.environ, XMEM_CUDA_REAL="1", PYTHONUNBUFFERED="1", RUST_BACKTRACE="0", XMEM_RUNTIME_DIR=str(folder))
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
        hold_device()
    for program in (*(programs / "bin").iterdir(), *(programs / "tests").iterdir(), *programs.glob("gst/bin/*"), *programs.glob("gst/lib/ld-*")):
        # The mode may have been lost when the bundle was copied to this machine.
        if not os.access(program, os.X_OK):
            program.chmod(0o755)
    return environment


def hold_device():
    """Keeps the device awake. Otherwise the driver may take seconds to wake it up for each process."""
    place, found = driver.folder()
    try:
        ctypes.CDLL(driver.CUDA if found or place is None else f"{place}/{driver.CUDA}").cuInit(0)
    except OSError:
        # The first part reports that there is no driver.
        pass


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--stand-in", action="store_true", help="test the scripts on the stand-in driver, without a GPU")
    arguments.add_argument("--stage", type=int, action="append", choices=STAGES, help="run only this stage (can be repeated)")
    arguments.add_argument("--only", action="append", help="in stage 2, run only the tests whose names contain this (can be repeated)")
    arguments.add_argument("--after", type=pathlib.Path, action="append", default=[], help="the results of an earlier stage, for the page")
    arguments.add_argument("--frames", type=int, default=300, help="number of frames of each measurement")
    arguments.add_argument("--seconds", type=int, default=60, help="time limit of each test")
    arguments = arguments.parse_args()
    # gVisor sends SIGHUP to all processes of a part when one of them ends while another is stopped. Children inherit the setting.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    programs = bundle()
    commit = (programs / "commit").read_text().strip()
    out = pathlib.Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    stages = arguments.stage or list(STAGES)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        folder = pathlib.Path(folder)
        environment = prepare(programs, folder, arguments.stand_in)
        results = Results((out or folder) / f"stage-{'-'.join(map(str, stages))}.jsonl")
        earlier = Results.read(arguments.after)
        for number in stages:
            print(f"gpu/run: stage {number}, {LIMITS[number]} s at most", file=sys.stderr)
            arguments.failed = set(earlier.failed_tests() + results.failed_tests())
            stage = Stage(number, programs, environment, results, out and out / "gpu-run.log", arguments)
            if number == stages[0]:
                describe(stage, commit, arguments.stand_in)
            STAGES[number](stage)
        page = Results.read([*arguments.after, results.file]).page()
    if arguments.stand_in:
        print(page)
    else:
        to = out / "gpu-results.md" if out else ROOT / "docs/measurements/gpu.md"
        to.write_text(page)
        print(f"gpu/run: {to}", file=sys.stderr)
    print(results.summary(), file=sys.stderr)
    if "FAILED" in results.summary():
        sys.exit("gpu/run: there are failures")


def describe(stage, commit, stand_in):
    """Describes the device. Ends the run if it is not the expected one."""
    stage.program("device", "device", [stage.tool, "device"], stage.eager, 30)
    card = stage.results.first("device", "card")
    if card is None:
        sys.exit(f"gpu/run: no device found: {stage.results.of('device')}; libcuda.so.1: {driver.folder()}")
    if ("stand-in" in card) != stand_in:
        sys.exit(f"gpu/run: the device is {card}: use --stand-in with the stand-in driver only")
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    where = card if stand_in else f"{card}; {version()}"
    stage.results.add("run", now, f"{now}: {where}; commit {commit}; Linux {platform.release()}, {os.cpu_count()} processors.")


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
