# SPDX-License-Identifier: MPL-2.0

"""The reference page is made from the stubs and the sources. `cargo xtask docs --write` writes it."""

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/python.md"
PACKAGE = ROOT / "crates/xmem-python/python/xmem"

HEAD = """\
# Reference of the Python module

This page is made from the sources of the module, by `cargo xtask docs --write`. `help(xmem.Consumer)` prints the same texts.
[The Python module](../../crates/xmem-python/README.md) explains how to use it.
"""


def definitions(file):
    """The classes and functions of a file by name."""
    body = ast.parse(file.read_text()).body
    return {node.name: node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


STUBS = definitions(PACKAGE / "_xmem.pyi")
SOURCES = {}
for source in ["_camera", "_consumer", "_errors", "_gstreamer", "_waiting", "channel/_channel", "channel/_refs", "ort", "torch"]:
    SOURCES |= definitions(PACKAGE / f"{source}.py")
SOURCES["install"] = definitions(PACKAGE / "multiprocessing.py")["install"]

# What methods return, and what submodules export.
MORE = ["ReceiveStats", "channel.Room", "multiprocessing.install", "ort.Runner", "torch.FrameDataset", "torch.from_blob"]


def public():
    """The names that the module exports."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]


def find(base):
    """The definition that a base class names: `_xmem.NAME` is in the stubs."""
    if isinstance(base, ast.Attribute):
        return STUBS.get(base.attr)
    if isinstance(base, ast.Name):
        return SOURCES.get(base.id) or STUBS.get(base.id)
    return None


def members(node):
    """The members with a text, with those of base classes that have no section of their own."""
    found = {}
    for base in filter(None, map(find, node.bases)):
        if base.name not in public() or base.name == node.name:
            found |= members(base)
    for member in node.body:
        if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(member):
            found[member.name] = member
    return {name: it for name, it in found.items() if not name.startswith("_")}


def signature(node, name):
    kinds = [ast.unparse(it) for it in node.decorator_list]
    if "property" in kinds:
        return f"{name}: {ast.unparse(node.returns)}"
    args = ast.unparse(node.args).replace("socket_mode: int=384", "socket_mode: int=0o600")
    for receiver in ("self, /", "cls, /", "self", "cls"):
        if args == receiver or args.startswith(f"{receiver}, "):
            args = args[len(receiver) :].removeprefix(", ")
            break
    word = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and ast.unparse(node.returns) != "None" else ""
    return f"{word}{name}({args}){returns}"


def constructor(node):
    """The constructor of a class that programs can make."""
    found = {it.name: it for it in node.body if isinstance(it, ast.FunctionDef)}
    made = found.get("__new__") or found.get("__init__")
    # Only what programs make has types.
    return made if made and any(it.annotation for it in made.args.args) else None


def arguments(node):
    """The names of the arguments; for a class those of its constructor."""
    if isinstance(node, ast.ClassDef):
        fields = {it.target.id for it in node.body if isinstance(it, ast.AnnAssign)}
        node = constructor(node)
        if node is None:
            return fields
    args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.kwarg]
    return {it.arg for it in args if it}


def text(node):
    """The docstring as Markdown: lines like `argument: meaning` become a list, and `>>>` begins a block of code."""
    known = arguments(node)
    out = []
    for block in (ast.get_docstring(node) or "").split("\n\n"):
        lines = block.splitlines()
        if block.startswith(">>>"):
            code = "\n".join(line[4:] for line in lines)
            out.append("```python\n{}\n```\n".format(code.replace("  # doctest: +SKIP", "")))
            continue
        in_list = False
        for line in lines:
            name, colon, meaning = line.partition(": ")
            if colon and known.issuperset(name.split(", ")):
                if out and not in_list:
                    out.append("")
                out.append("- `{}`: {}".format(name.replace(", ", "`, `"), meaning))
                in_list = True
            elif in_list and line.startswith("Raises "):
                out.append(f"\n{line}")
                in_list = False
            else:
                out.append(f"  {line.strip()}" if in_list else line)
        out.append("")
    return re.sub("\n{3,}", "\n\n", "\n".join(out).strip())


def section(name):
    node = SOURCES.get(name.split(".")[-1]) or STUBS[name]
    if isinstance(node, ast.FunctionDef):
        return f"\n## {name}\n\n```python\nxmem.{signature(node, name)}\n```\n\n{text(node)}\n"
    bases = ", ".join(base.id for base in node.bases if isinstance(base, ast.Name) and base.id in public())
    parts = [f"\n## {name}\n"]
    about = text(node)
    if bases:
        about = f"A kind of `{bases}`. {about}" if bases != "Exception" else about
    made = constructor(node)
    # The stubs of exceptions, and of what only the module makes, have no constructor.
    if made and ast.unparse(made.args) != "self, *args, **kwargs":
        parts.append("```python\nxmem.{}\n```\n".format(signature(made, name).partition(" -> ")[0]))
    parts.append(f"{about}\n")
    for member, it in sorted(members(node).items()):
        parts.append("- `{}`\n\n{}\n".format(signature(it, member), textwrap.indent(text(it), "  ")))
    return "\n".join(parts)


def page():
    return HEAD + "".join(map(section, public() + MORE))


def test_the_page_is_made_from_the_sources():
    assert PAGE.read_text() == page(), "docs/reference/python.md is out of date: run `cargo xtask docs --write`"


def stub_texts():
    """The texts of the stubs' public classes, methods and functions, each with what the module has by this name."""
    # The page can be written without the module.
    from xmem import _xmem

    for name, node in STUBS.items():
        found = getattr(_xmem, name, None)
        if name.startswith("_") or found is None:
            # A private base, or a class that only the stubs have.
            continue
        yield name, ast.get_docstring(node), found
        for it in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(it, ast.FunctionDef) and not any(getattr(by, "attr", "") == "setter" for by in it.decorator_list):
                yield f"{name}.{it.name}", ast.get_docstring(it), getattr(found, it.name, None)


def test_help_is_what_the_stubs_say():
    texts = [(name, text, found.__doc__) for name, text, found in stub_texts() if text]
    assert len(texts) > 100
    assert [name for name, text, found in texts if text.split() != (found or "").split()] == []


if __name__ == "__main__":
    PAGE.write_text(page())
