# SPDX-License-Identifier: MPL-2.0

"""The wheel needs only Python. The stubs match the module."""

import ast
import inspect
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from support import HANG

import xmem
from xmem import _gstreamer, _xmem

ALONE = """
import sys, xmem
producer = xmem.Producer(sys.argv[1])
consumer = xmem.Consumer(sys.argv[1])
with producer.acquire((2, 3)) as frame:
    with memoryview(frame) as view:
        view[1, 2] = 7
    frame.publish()
frame = consumer.recv(10)
assert memoryview(frame).tolist()[1][2] == 7, memoryview(frame).tolist()
assert "numpy" not in sys.modules
print(xmem.__version__)
"""


@pytest.fixture
def place(directory):
    """An environment with nothing in it."""
    place = directory / "venv"
    venv.create(place, with_pip=False)
    return place


def install(place, *what):
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--quiet", "--no-deps", *what]
    return subprocess.run(pip, timeout=HANG, capture_output=True, text=True)


def install_wheel(place):
    if (wheels := os.environ.get("XMEM_WHEELS")) is None:
        pytest.skip("XMEM_WHEELS is not set: run `cargo xtask python`")
    (wheel,) = Path(wheels).glob("*.whl")
    installed = install(place, "--no-index", wheel)
    assert installed.returncode == 0, installed.stderr


def run(place, code, *args):
    program = [place / "bin" / "python", "-c", code, *args]
    return subprocess.run(program, check=True, timeout=HANG, capture_output=True, text=True)


def test_in_an_environment_with_nothing_else(place, pool):
    install_wheel(place)
    assert run(place, ALONE, pool).stdout.strip() == xmem.__version__


def test_another_package_with_the_name_is_reported(place):
    if (other := install(place, "xmem==0.1.1")).returncode:
        pytest.skip(f"the package xmem of PyPI cannot be installed: {other.stderr}")
    install_wheel(place)
    imported = run(place, "import xmem; print(xmem.Consumer)")
    assert "pip uninstall xmem" in imported.stderr
    assert imported.stdout.startswith("<class")


def test_an_installation_without_a_plugin_says_so():
    files = metadata.files("gst-xmem") or []
    if any(file.name == "libgstxmem.so" for file in files):
        pytest.skip("this installation has the plugin")
    with pytest.raises(xmem.Error, match="gstreamer1.0-xmem"):
        _gstreamer._plugin()


def test_stubs_match_the_module():
    stub = Path(_xmem.__file__).with_name("_xmem.pyi")
    tree = ast.parse(stub.read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

    def names(node):
        own = {it.name for it in node.body if isinstance(it, ast.FunctionDef)}
        own |= {it.target.id for it in node.body if isinstance(it, ast.AnnAssign)}
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in classes:
                own |= names(classes[base.id])
        return own

    there = {name for name in dir(_xmem) if not name.startswith("__")}
    assert there == {name for name in classes if hasattr(_xmem, name)} | functions
    for name in there & classes.keys():
        bases = getattr(_xmem, name).__mro__[:-1]
        real = {it for base in bases for it in vars(base) if it not in object.__dict__ or it == "__new__"}
        # Since Python 3.12 the buffer protocol has methods with these names.
        real -= {"__doc__", "__module__", "__buffer__", "__release_buffer__"}
        listed = names(classes[name]) - {"__buffer__"}
        assert real == listed, name


@pytest.mark.parametrize("name", xmem.__all__)
def test_everything_public_is_there(name):
    assert hasattr(xmem, name)


def test_the_package_is_typed():
    assert Path(xmem.__file__).with_name("py.typed").exists()


DOCUMENTED = ["Consumer", "Event", "Frame", "Plane", "Producer", "WritableFrame"]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_help_has_the_text_of_the_stubs(name):
    tree = ast.parse(Path(_xmem.__file__).with_name("_xmem.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def members(node):
        for base in node.bases:
            yield from members(classes[base.id]) if getattr(base, "id", None) in classes else ()
        yield from (it for it in node.body if isinstance(it, ast.FunctionDef) and not it.name.startswith("_"))

    real = getattr(_xmem, name)
    for member in members(classes[name]):
        text = ast.get_docstring(member)
        assert text, member.name
        assert inspect.getdoc(getattr(real, member.name)) == text, member.name
