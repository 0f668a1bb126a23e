# SPDX-License-Identifier: MPL-2.0

"""Fixtures that the tests share: pools, and processes."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from channel_support import Place
from support import Child, eventually


@pytest.fixture(scope="session", autouse=True)
def runtime_dir() -> Iterator[None]:
    """The directory of pools with names, such as those of `xmem.multiprocessing`, instead of the user's."""
    with tempfile.TemporaryDirectory(prefix="xm") as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XMEM_RUNTIME_DIR", name)
        yield


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


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory for channels that must be empty at the end of the test."""
    place = Place(tmp_path)
    yield place
    place.assert_clean()


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
    # With the suffix, because GStreamer ignores the other variables where a user has set these.
    return os.environ | {
        "GST_PLUGIN_PATH_1_0": str(plugins),
        "GST_REGISTRY_1_0": str(tmp_path_factory.mktemp("gst") / "registry.bin"),
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
