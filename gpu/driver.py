# SPDX-License-Identifier: MPL-2.0
"""Finds the libraries of the driver. They may not be on the loader's search path, and never are on that of the bundle's loader."""

import ctypes
import functools
import os
import pathlib
import platform
import subprocess
import sys

# The folders in which containers, virtual machines and Jetson boards have them.
DEBIAN = f"/usr/lib/{platform.machine()}-linux-gnu"
PLACES = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", DEBIAN, f"{DEBIAN}/nvidia", f"{DEBIAN}/tegra", "/usr/lib64", "/usr/lib/wsl/lib")
CUDA = "libcuda.so.1"


def mapped(name):
    """The folder of a library that this process has loaded."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if pathlib.Path(path).name.startswith(name):
                return f"/{path}".rpartition("/")[0]
    return None


@functools.cache
def folder():
    """The folder of libcuda.so.1, and whether it is on the loader's search path."""
    try:
        ctypes.CDLL(CUDA)
    except OSError:
        return next((place for place in PLACES if os.path.exists(f"{place}/{CUDA}")), None), False
    # The file may be loaded by its own name or by the name of the link's target.
    return mapped("libcuda.so"), True


def loads(library, environment):
    """Whether programs find a library. Tested in a child process, because a library cannot be unloaded."""
    command = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({library!r})"]
    try:
        return subprocess.run(command, env=environment, capture_output=True, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def paths(environment):
    """Folders for LD_LIBRARY_PATH: its present folders, and the driver's if it is not found otherwise. Folders of the toolkit's
    stub libraries are removed."""
    have = [path for path in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path and not path.rstrip("/").endswith("/stubs")]
    place, found = folder()
    return have if found or place is None else [*have, place]
