# SPDX-License-Identifier: MPL-2.0
"""Runs what `cargo xtask gpu-bundle` packed, and writes down what happened, as Markdown.

Only the standard library is needed here; the scripts for PyTorch and CuPy are processes of their own.
"""

import argparse
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

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
ONLY_HERE = "ONLY ON THE STAND-IN: "
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


def run(command, environment, seconds):
    """A program's exit status (None: it was ended after so many seconds) and all that it printed."""
    process = subprocess.Popen(
        [str(word) for word in command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        # Its children too.
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output


def lines(output):
    """What a program printed for the record: JSON objects, one a line."""
    for line in output.splitlines():
        if line.startswith('{"'):
            try:
                yield json.loads(line)
            except ValueError:
                pass


class Record:
    """What happened so far, by part. It is written after each, so that a run that is cut off leaves what it had."""

    def __init__(self, end, write):
        self.parts = {}
        self.failed = []
        self.end = end
        self.write = write

    def left(self, seconds):
        """Seconds that are left for something that may take so many; none at the end of the run."""
        return min(seconds, self.end - time.monotonic())

    def add(self, part, what, result):
        self.parts.setdefault(part, []).append((what, result))

    def program(self, part, command, environment, seconds):
        """Run a program that prints lines for the record."""
        print(f"gpu/run: {' '.join(map(str, command))}", file=sys.stderr)
        seconds = int(self.left(seconds))
        if seconds < 5:
            self.add(part, pathlib.Path(command[-1]).name, "not run: no time was left")
            return
        status, output = run(command, environment, seconds)
        for line in lines(output):
            # Some programs have results for more than one part.
            self.add(line["part"] if line["part"] in TITLES else part, line["what"], line["result"])
        if status != 0:
            why = f"was ended after {seconds} s" if status is None else f"ended with {status}"
            last = [line for line in output.splitlines() if not line.startswith('{"')][-3:]
            self.add(part, f"{pathlib.Path(command[0]).name} {' '.join(map(str, command[1:2]))}", f"{why}: {' / '.join(last)}")
            self.failed.append(part)
        self.write(self)

    def tests(self, program, environment, seconds):
        """Each test of a program, one at a time."""
        print(f"gpu/run: {program.name}", file=sys.stderr)
        status, listed = run([program, "--list", "--format", "terse"], environment, 30)
        if status != 0:
            self.add("tests", program.name, f"cannot be started: {listed.strip()}")
            self.failed.append("tests")
            return
        names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
        for name in names:
            if self.left(seconds) < 5:
                self.add("tests", f"{program.name}: {name}", "not run: no time was left")
                continue
            command = [program, "--exact", name, "--nocapture", "--test-threads=1"]
            status, output = run(command, environment, seconds)
            result = "passed" if status == 0 else f"hung for {seconds} s" if status is None else "FAILED"
            for line in output.splitlines():
                if ONLY_HERE in line:
                    result = f"does not apply: {line.split(ONLY_HERE, 1)[1]}"
                    break
                if line.startswith("NOT RUN: "):
                    result = f"not run: {line.removeprefix('NOT RUN: ')}"
            applies = not result.startswith(("does not apply", "not run"))
            if applies and status != 0:
                self.failed.append("tests")
                printed = [line for line in output.splitlines() if line.strip()]
                first = next((at for at, line in enumerate(printed) if "panicked at" in line), -6)
                panic = printed[first:][:6]
                print(f"{program.name} {name}:\n{output}", file=sys.stderr)
                result += f": {' / '.join(panic)}"
            differs = [line.removeprefix("DIFFERS: ") for line in output.splitlines() if line.startswith("DIFFERS: ")]
            if differs:
                result += f"; as on the stand-in, except for the error: {', '.join(differs)}"
            self.add("tests", f"{program.name}: {name}", result)
        self.write(self)

    def ratios(self):
        """The queue of torch.multiprocessing, compared with ours."""
        figures = dict(self.parts.get("numbers", []) + self.parts.get("torch", []))
        for figure in ("CPU of both processes, µs per frame", "hand-over, µs, median"):
            for queue in ("torch.multiprocessing's queue, without clone", "torch.multiprocessing's queue, with clone"):
                theirs, ours = figures.get(f"{queue}: {figure}"), figures.get(f"xmem CUDA by descriptor: {figure}")
                if theirs and ours:
                    self.add("numbers", f"{queue} / xmem CUDA: {figure}", f"{float(theirs) / float(ours):.2f}")

    def markdown(self, card, commit, stand_in):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        if stand_in:
            text = ["# Results WITHOUT a GPU", "", "**On the stand-in driver, to try the scripts. Nothing here says anything about a GPU.**"]
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
            # What has several figures has a column for each.
            results = [(what, result if isinstance(result, dict) else {"result": result}) for what, result in self.parts[part]]
            columns = list(dict.fromkeys(name for _, result in results for name in result))
            clean = lambda cell: str(cell).replace("|", "\\|").replace("\n", " ")
            row = lambda cells: f"| {' | '.join(map(clean, cells))} |"
            text += [row(["what", *columns]), "|---" * (len(columns) + 1) + "|"]
            text += [row([what, *(result.get(name, "") for name in columns)]) for what, result in results]
        return "\n".join(text) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--stand-in", action="store_true", help="try the scripts without a GPU")
    arguments.add_argument("--frames", type=int, default=500, help="frames of each measurement")
    arguments.add_argument("--seconds", type=int, default=60, help="after which a test is ended")
    arguments.add_argument("--minutes", type=float, default=9, help="after which the run ends with what it has")
    arguments = arguments.parse_args()
    programs = bundle()
    commit = (programs / "commit").read_text().strip()
    tool = programs / "bin" / "xmem-gpu"
    environment = dict(os.environ, XMEM_CUDA_REAL="1", PYTHONUNBUFFERED="1", RUST_BACKTRACE="0")
    to = pathlib.Path(os.environ["OUT"]) if os.environ.get("OUT") else ROOT / "docs"

    def write(record):
        card = next((result for what, result in record.parts.get("device", []) if what == "card"), None)
        if card is None:
            sys.exit(f"gpu/run: no card here: {record.parts.get('device')}")
        if ("stand-in" in card) != arguments.stand_in:
            sys.exit(f"gpu/run: this is {card}; --stand-in is for that one, and only for it")
        if not arguments.stand_in:
            text = record.markdown(f"{card}; {driver(record)}", commit, False)
            (to / "gpu-results.md").write_text(text)

    record = Record(time.monotonic() + arguments.minutes * 60, write)
    with tempfile.TemporaryDirectory() as folder:
        environment["XMEM_RUNTIME_DIR"] = folder
        if arguments.stand_in:
            machine = pathlib.Path(folder) / "machine"
            (machine / "lib").mkdir(parents=True)
            for name in ("libcuda.so.1", "libnvcuvid.so.1"):
                shutil.copy(programs / "bin" / "libxmem_cuda_standin.so", machine / "lib" / name)
            environment["LD_LIBRARY_PATH"] = str(machine / "lib")
            environment["XMEM_STANDIN_DIR"] = str(machine)
            environment["XMEM_STANDIN_MEMORY"] = str(4 << 30)
        record.program("device", [tool, "device"], environment, 60)
        # First what needs a device.
        tests = sorted((programs / "tests").iterdir(), key=lambda program: "cuda" not in program.name)
        for program in filter(lambda program: "cuda" in program.name, tests):
            record.tests(program, environment, arguments.seconds)
        record.program("numbers", [tool, "numbers", "--frames", arguments.frames], environment, 120)
        for script in ("torch_reads.py", "torch_queue.py"):
            command = [sys.executable, HERE / script, programs / "bin", str(arguments.frames)]
            record.program("torch", command, environment, 120)
        record.ratios()
        record.program("module", [sys.executable, HERE / "module.py", programs / "bin", str(arguments.frames)], environment, 120)
        command = [sys.executable, HERE / "elements.py", programs, str(arguments.frames)]
        record.program("elements", command, environment, 300)
        # What may leave processes that hang comes last.
        for question in "abcdef":
            record.program(question, [tool, "question", question], environment, 90)
        for program in filter(lambda program: "cuda" not in program.name, tests):
            record.tests(program, environment, arguments.seconds)
    if arguments.stand_in:
        print(record.markdown("xmem stand-in (no GPU)", commit, True))
    else:
        print(f"gpu/run: {to / 'gpu-results.md'}", file=sys.stderr)
    if record.failed:
        sys.exit(f"gpu/run: something failed in: {', '.join(sorted(set(record.failed)))}")


def driver(record):
    """The driver's version, from the kernel module or its tool."""
    module = next((result for what, result in record.parts["device"] if what == "kernel module"), "none")
    if module != "none":
        return module
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return "driver " + subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return "driver unknown"


if __name__ == "__main__":
    main()
