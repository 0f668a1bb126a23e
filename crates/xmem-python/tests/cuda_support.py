# SPDX-License-Identifier: MPL-2.0

"""A machine with stand-in devices, without a GPU (tools/xmem-cuda-standin), and processes that use them."""

import json
import os
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import HANG, eventually

LIBRARY = "libxmem_cuda_standin.so"


def _library() -> Path:
    """The path from `cargo xtask python`, or the library in cargo's target folder."""
    if named := os.environ.get("XMEM_STANDIN_LIBRARY"):
        return Path(named)
    built = Path(__file__).parents[3] / "target/debug" / LIBRARY
    if not built.is_file():
        pytest.skip(f"no {LIBRARY}: `cargo build -p xmem-cuda-standin` builds it")
    return built


class Failed(Exception):
    """A command raised this exception in a child process."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Process:
    """A process that runs commands."""

    def __init__(self, pool: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("cuda_child.py"), pool],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.pid = self.process.pid

    def _order(self, **order: str) -> None:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def _answer(self):
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(*answer["error"])
        return answer["result"]

    def begin(self, code: str) -> None:
        """Starts a command. `end` waits for it."""
        self._order(code=textwrap.dedent(code))

    def end(self) -> None:
        self._answer()

    def do(self, code: str) -> None:
        self.begin(code)
        self.end()

    def ask(self, value: str):
        self._order(value=value)
        return self._answer()

    def fails(self, code: str, kind: str, match: str = "") -> None:
        """Asserts that the command raises this exception."""
        with pytest.raises(Failed, match=match or None) as raised:
            self.do(code)
        assert raised.value.kind == kind, raised.value

    def eventually(self, value: str) -> None:
        eventually(lambda: self.ask(value), f"not at last: {value}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(HANG)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(HANG)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        self.process.stdin.close()
        self.process.stdout.close()


class Machine:
    """A folder with a driver and the state of its devices, as created by `Machine` in the stand-in's machine.rs."""

    def __init__(self, folder: Path, pool: str) -> None:
        self.folder = folder
        self.pool = pool
        for name in ("lib", "memory", "events", "trace"):
            (folder / name).mkdir(parents=True)
        (folder / "lib/libcuda.so.1").symlink_to(_library().resolve())
        self.processes: list[Process] = []

    def start(self, *, gpu: bool = True, **settings: object) -> Process:
        """A process that uses the devices. With `gpu`, it also has a device object and a stream."""
        return self._start(self.environment(**settings), gpu)

    def environment(self, **settings: object) -> dict[str, str]:
        """The environment of a process that uses the devices."""
        others = os.environ.get("LD_LIBRARY_PATH")
        paths = [str(self.folder / "lib"), *([others] if others else [])]
        environment = {"LD_LIBRARY_PATH": ":".join(paths), "XMEM_STANDIN_DIR": str(self.folder)}
        for name, value in settings.items():
            prefix = "" if name.startswith("CUDA_") else "XMEM_STANDIN_"
            environment[prefix + name] = str(value)
        return environment

    def start_without(self) -> Process:
        """A process without a driver."""
        return self._start({}, False)

    def _start(self, environment: dict[str, str], gpu: bool) -> Process:
        process = Process(self.pool, environment)
        self.processes.append(process)
        if gpu:
            process.do("g = Gpu(); s = g.stream()")
        return process

    @contextmanager
    def held(self, process: Process):
        """Stops all streams of a process before their next operation."""
        path = self.folder / f"hold-{process.pid}"
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    def kill_producer(self, process: Process) -> None:
        """Kills a producer and removes its socket. There is no next producer, which would remove it."""
        process.kill()
        Path(self.pool).unlink()

    def calls(self, process: Process, name: str) -> int:
        """The number of calls of a driver function in a process."""
        data = (self.folder / "trace" / str(process.pid)).read_bytes()
        for row in (data[at : at + 64] for at in range(0, len(data), 64)):
            if row[:56].rstrip(b"\0") == name.encode():
                return int.from_bytes(row[56:], "little")
        return 0

    def close(self) -> None:
        try:
            for process in self.processes:
                process.close()
        finally:
            for process in self.processes:
                process.kill()
        violations = self.folder / "violations"
        assert not violations.exists(), violations.read_text()


@pytest.fixture
def machine(directory: Path):
    machine = Machine(directory / "machine", str(directory / "p.sock"))
    yield machine
    machine.close()
