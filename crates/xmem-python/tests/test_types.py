# SPDX-License-Identifier: MPL-2.0

"""The stubs, as the two common type checkers read them."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("typed.py")


def check(*command: str) -> None:
    command = (sys.executable, "-m", *command, str(PROGRAM))
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_mypy(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("no mypy")
    check("mypy", "--strict", "--cache-dir", str(tmp_path))


def test_pyright() -> None:
    if importlib.util.find_spec("pyright") is None or shutil.which("node") is None:
        pytest.skip("no pyright, or no node that runs it")
    # The first time, it loads itself from the registry of npm.
    check("pyright", "--pythonpath", sys.executable)
