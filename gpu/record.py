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

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
ONLY_HERE = "ONLY ON THE STAND-IN: "


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
    """What happened so far, by part."""

    def __init__(self):
        self.parts = {}
        self.failed = []

    def add(self, part, what, result):
        self.parts.setdefault(part, []).append((what, result))

    def program(self, part, command, environment, seconds):
        """Run a program that prints lines for the record."""
        status, output = run(command, environment, seconds)
        for line in lines(output):
            self.add(part, line["what"], line["result"])
        if status != 0:
            why = f"was ended after {seconds} s" if status is None else f"ended with {status}"
            last = [line for line in output.splitlines() if not line.startswith('{"')][-3:]
            self.add(part, f"{pathlib.Path(command[0]).name} {' '.join(map(str, command[1:2]))}", f"{why}: {' / '.join(last)}")
            self.failed.append(part)

    def tests(self, program, environment, seconds):
        """Each test of a program, one at a time."""
        status, listed = run([program, "--list", "--format", "terse"], environment, 30)
        if status != 0:
            self.add("tests", program.name, f"cannot be started: {listed.strip()}")
            self.failed.append("tests")
            return
        names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
        for name in names:
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
                panic = [line for line in output.splitlines() if line.strip()][-8:]
                print(f"{program.name} {name}:\n{output}", file=sys.stderr)
                result += f": {' / '.join(panic)}"
            differs = [line.removeprefix("DIFFERS: ") for line in output.splitlines() if line.startswith("DIFFERS: ")]
            if differs:
                result += f"; as on the stand-in, except for the error: {', '.join(differs)}"
            self.add("tests", f"{program.name}: {name}", result)

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
        titles = {
            "device": "Device",
            "tests": "Tests",
            "numbers": "Numbers",
            "torch": "PyTorch and CuPy",
            "a": "Legacy handles when the exporter is killed, and what opening costs",
            "b": "Memory by descriptor when the exporter is killed, and read-only access",
            "c": "Host memory that a device writes",
            "d": "Releases, errors and events",
            "e": "Within one process, and two contexts",
            "f": "PID namespaces and MIG",
        }
        for part, title in titles.items():
            text += ["", f"## {title}", ""]
            if part not in self.parts:
                text.append("Not run.")
                continue
            text += ["| what | result |", "|---|---|"]
            clean = lambda cell: str(cell).replace("|", "\\|").replace("\n", " ")
            text += [f"| {clean(what)} | {clean(result)} |" for what, result in self.parts[part]]
        return "\n".join(text) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--stand-in", action="store_true", help="try the scripts without a GPU")
    arguments.add_argument("--frames", type=int, default=500, help="frames of each measurement")
    arguments.add_argument("--seconds", type=int, default=60, help="after which a test is ended")
    arguments = arguments.parse_args()
    programs = bundle()
    environment = dict(os.environ, XMEM_CUDA_REAL="1", PYTHONUNBUFFERED="1")
    record = Record()
    with tempfile.TemporaryDirectory() as folder:
        environment["XMEM_RUNTIME_DIR"] = folder
        if arguments.stand_in:
            machine = pathlib.Path(folder) / "machine"
            (machine / "lib").mkdir(parents=True)
            shutil.copy(programs / "bin" / "libxmem_cuda_standin.so", machine / "lib" / "libcuda.so.1")
            environment["LD_LIBRARY_PATH"] = str(machine / "lib")
            environment["XMEM_STANDIN_DIR"] = str(machine)
            environment["XMEM_STANDIN_MEMORY"] = str(4 << 30)
        tool = programs / "bin" / "xmem-gpu"
        record.program("device", [tool, "device"], environment, 60)
        card = next((result for what, result in record.parts.get("device", []) if what == "card"), None)
        if card is None:
            sys.exit(f"gpu/run: no card here: {record.parts.get('device')}")
        if ("stand-in" in card) != arguments.stand_in:
            sys.exit(f"gpu/run: this is {card}; --stand-in is for that one, and only for it")
        driver = next((result for what, result in record.parts["device"] if what == "kernel module"), "none")
        for program in sorted((programs / "tests").iterdir()):
            print(f"gpu/run: {program.name}", file=sys.stderr)
            record.tests(program, environment, arguments.seconds)
        print("gpu/run: numbers", file=sys.stderr)
        record.program("numbers", [tool, "numbers", "--frames", arguments.frames], environment, 180)
        for script in ("torch_reads.py", "torch_queue.py"):
            print(f"gpu/run: {script}", file=sys.stderr)
            command = [sys.executable, HERE / script, programs / "bin", str(arguments.frames)]
            record.program("torch", command, environment, 180)
        # What may leave processes or contexts behind comes last.
        for question in "abcdef":
            print(f"gpu/run: question {question}", file=sys.stderr)
            record.program(question, [tool, "question", question], environment, 120)
    commit = (programs / "commit").read_text().strip()
    text = record.markdown(f"{card}; {driver}", commit, arguments.stand_in)
    if arguments.stand_in:
        print(text)
    else:
        to = pathlib.Path(os.environ["OUT"]) if os.environ.get("OUT") else ROOT / "docs"
        (to / "gpu-results.md").write_text(text)
        print(f"gpu/run: {to / 'gpu-results.md'}", file=sys.stderr)
    if record.failed:
        sys.exit(f"gpu/run: something failed in: {', '.join(sorted(set(record.failed)))}")


if __name__ == "__main__":
    main()
