# SPDX-License-Identifier: MPL-2.0
"""Where this machine has its driver's libraries: not always where the loader looks, and never where the bundle's looks."""

import ctypes
import functools
import os
import pathlib
import platform
import subprocess
import sys

# Where containers and virtual machines have them mounted, and a Jetson has them.
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
    """Where libcuda.so.1 is, and whether programs find it there by themselves."""
    try:
        ctypes.CDLL(CUDA)
    except OSError:
        return next((place for place in PLACES if os.path.exists(f"{place}/{CUDA}")), None), False
    # By its soname, or by that of the file which it is a link to.
    return mapped("libcuda.so"), True


def loads(library, environment):
    """Whether programs find a library; asked of another process, which it stays in."""
    command = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({library!r})"]
    try:
        return subprocess.run(command, env=environment, capture_output=True, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def paths(environment):
    """Folders for LD_LIBRARY_PATH: those that are in it, and the driver's if it would not be found otherwise. None of the
    toolkit's libraries to link with, in which nothing works."""
    have = [path for path in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path and not path.rstrip("/").endswith("/stubs")]
    place, found = folder()
    return have if found or place is None else [*have, place]
