# SPDX-License-Identifier: MPL-2.0

"""Fixtures and helpers that the tests share: pools, frames with known content, and processes."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xmem

# Not a limit on speed: a test that takes longer hangs.
HANG = 60.0

# The words that describe a frame have numbers. These are the first numbers of an entry, of its slot's place and of its layout.
ENTRY, PLACE, LAYOUT = 0, 100, 200
# The number of a half of a layout's word is this value, plus the number of the layout's first word, plus its index.
HALVES = 1000

# The signal may be ignored if the tests were started in the background, and children inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that must be empty at the end of the test."""
    # Not pytest's tmp_path, whose paths are too long for a socket.
    with tempfile.TemporaryDirectory(prefix="xm") as name:
        path = Path(name)
        yield path
        eventually(lambda: not list(path.glob("*.sock")), f"a pool is left in {path}")


@pytest.fixture
def pool(directory: Path) -> str:
    return str(directory / "p.sock")


def eventually(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + HANG
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.001)


def content(seed: int, shape: tuple[int, ...] = (60, 80, 3)) -> np.ndarray:
    """The content of a seed. The contents of different seeds differ in almost all bytes."""
    count = int(np.prod(shape))
    lanes = (np.arange(count, dtype=np.uint64) + np.uint64(seed + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return (lanes >> np.uint64(56)).astype(np.uint8).reshape(shape)


def publish(producer: xmem.Producer, seed: int, shape: tuple[int, ...] = (60, 80, 3)) -> int:
    """Publishes the content of a seed. The frame's PTS is the seed."""
    with producer.acquire(shape, np.uint8) as frame:
        np.asarray(frame)[...] = content(seed, shape)
        return frame.publish(pts=seed)


def assert_whole(array: object, seed: int) -> None:
    array = np.asarray(array)
    assert np.array_equal(array, content(seed, array.shape)), f"frame {seed} is torn"


class Child:
    """A role of `children.py` in a child process."""

    def __init__(self, role: str, pool: str) -> None:
        script = Path(__file__).with_name("children.py")
        self.process = subprocess.Popen(
            [sys.executable, script, role, pool],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def reply(self) -> str:
        """The next line of its output."""
        line = self.process.stdout.readline()
        assert line, f"the child ended with {self.process.wait()}"
        return line.strip()

    def send(self, line: str = "go") -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        return self.process.wait(HANG)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(HANG)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        # Commands that were not read do not matter.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def child() -> Iterator[Callable[[str, str], Child]]:
    with contextlib.ExitStack() as children:
        yield lambda role, pool: children.enter_context(Child(role, pool))


@pytest.fixture(scope="session")
def gst_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a program finds the plugin of this build."""
    built = os.environ.get("XMEM_PLUGIN_DIR", str(Path(__file__).parents[3] / "target" / "debug"))
    plugin = Path(built, "libgstxmem.so")
    if not plugin.exists() or shutil.which("gst-launch-1.0") is None:
        pytest.skip("there is no plugin or no gst-launch-1.0: run `cargo xtask python`")
    # GStreamer loads every library of the folder, so it has only the plugin.
    plugins = tmp_path_factory.mktemp("plugins")
    (plugins / plugin.name).symlink_to(plugin)
    return os.environ | {
        "GST_PLUGIN_PATH": str(plugins),
        "GST_REGISTRY": str(tmp_path_factory.mktemp("gst") / "registry.bin"),
    }


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_gst(gst_environment: dict[str, str]) -> Iterator[Start]:
    with contextlib.ExitStack() as started:

        def start(*command: str, **options: Any) -> subprocess.Popen[str]:
            process = subprocess.Popen(command, env=gst_environment, text=True, **options)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    started.callback(pipe.close)
            started.callback(process.wait)
            # No effect if the process has ended.
            started.callback(process.kill)
            return process

        yield start


@pytest.fixture
def gst_launch(start_gst: Start) -> Start:
    """Starts gst-launch-1.0."""
    return lambda pipeline, **options: start_gst("gst-launch-1.0", "-q", *pipeline.split(), **options)


# The Python with GStreamer's bindings. The package from PyPI would have to be built.
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture
def gst_producer(start_gst: Start) -> Start:
    """Starts a role of `gst_producer.py`."""
    bindings = "import gi.repository.GstApp, gi.repository.GstAllocators, gi.repository.GstVideo"
    if subprocess.run([SYSTEM_PYTHON, "-W", "ignore", "-c", bindings], capture_output=True).returncode != 0:
        pytest.skip(f"{SYSTEM_PYTHON} cannot `{bindings}`")
    script = str(Path(__file__).with_name("gst_producer.py"))
    return lambda role, pool: start_gst(SYSTEM_PYTHON, script, role, pool)
