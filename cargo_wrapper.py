#!/usr/bin/env python3
# SPDX-License-Identifier: MPL-2.0
"""The parts of meson.build that use cargo: the version, the plugin (built by cargo-c), the command, libxmem, and the tests."""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent
PACKAGE = "gst-plugin-xmem"
LIBRARY_TYPES = {
    "shared": ["cdylib"],
    "static": ["staticlib"],
    "both": ["cdylib", "staticlib"],
}


def version() -> str:
    with open(ROOT / "Cargo.toml", "rb") as file:
        return tomllib.load(file)["workspace"]["package"]["version"]


def build(args: argparse.Namespace) -> None:
    command = [args.cargo, "cbuild", "--locked", "--package", PACKAGE]
    command += ["--manifest-path", str(ROOT / "Cargo.toml")]
    command += ["--profile", args.profile, "--target-dir", str(args.target_dir)]
    command += ["--prefix", args.prefix, "--libdir", args.libdir]
    for kind in LIBRARY_TYPES[args.library_type]:
        command += ["--library-type", kind]
    subprocess.run(command, check=True)

    # cargo-c always builds for an explicit target, and uses the directory `debug` for the dev profile.
    profile = "debug" if args.profile == "dev" else args.profile
    names = ["gstxmem.pc"]
    names += ["libgstxmem.so"] * (args.library_type != "static")
    names += ["libgstxmem.a"] * (args.library_type != "shared")
    for name in names:
        built = sorted(args.target_dir.glob(f"*/{profile}/{name}"), key=lambda path: path.stat().st_mtime)
        if not built:
            sys.exit(f"cargo cbuild made no {name} in {args.target_dir}")
        shutil.copy2(built[-1], args.output_dir / name)


def build_command(args: argparse.Namespace) -> None:
    """Builds the command, its completions and its manual pages."""
    command = [args.cargo, "build", "--locked", "--package", "xmem-cli", "--profile", args.profile]
    command += ["--manifest-path", str(ROOT / "Cargo.toml"), "--target-dir", str(args.target_dir)]
    subprocess.run(command, check=True)
    profile = "debug" if args.profile == "dev" else args.profile
    program = args.output_dir.resolve() / "xmem"
    shutil.copy2(args.target_dir / profile / "xmem", program)
    for shell, name in [("bash", "xmem.bash"), ("zsh", "_xmem"), ("fish", "xmem.fish")]:
        with open(args.output_dir / name, "wb") as file:
            subprocess.run([program, "completions", shell], check=True, stdout=file)
    subprocess.run([program, "man", args.output_dir], check=True)


def build_library(args: argparse.Namespace) -> None:
    """Builds libxmem, unless cargo has built it already."""
    folder = args.built
    if not folder:
        command = [args.cargo, "build", "--locked", "--package", "xmem-capi", "--profile", args.profile]
        command += ["--manifest-path", str(ROOT / "Cargo.toml"), "--target-dir", str(args.target_dir)]
        subprocess.run(command, check=True)
        folder = args.target_dir / ("debug" if args.profile == "dev" else args.profile)
    for output in args.outputs:
        # The library has its version behind its name.
        name = output.name.removesuffix("." + version())
        shutil.copy2(folder / name, output)


def test(args: argparse.Namespace) -> None:
    """Runs the tests. `cargo test` does not build the plugin's library, which is a package without tests, so it is built first."""
    options = ["--workspace", "--locked", "--target-dir", str(args.target_dir)]
    subprocess.run([args.cargo, "build", *options, "--all-targets"], check=True)
    subprocess.run([args.cargo, "test", *options], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("version")
    builder = commands.add_parser("build")
    builder.add_argument("--cargo", required=True)
    builder.add_argument("--prefix", required=True)
    builder.add_argument("--libdir", required=True)
    builder.add_argument("--library-type", choices=LIBRARY_TYPES, required=True)
    builder.add_argument("--profile", choices=["dev", "release"], required=True)
    builder.add_argument("--target-dir", type=pathlib.Path, required=True)
    builder.add_argument("--output-dir", type=pathlib.Path, required=True)
    program = commands.add_parser("command")
    program.add_argument("--cargo", required=True)
    program.add_argument("--profile", choices=["dev", "release"], required=True)
    program.add_argument("--target-dir", type=pathlib.Path, required=True)
    program.add_argument("--output-dir", type=pathlib.Path, required=True)
    library = commands.add_parser("library")
    library.add_argument("--cargo", required=True)
    library.add_argument("--built", type=pathlib.Path)
    library.add_argument("--profile", choices=["dev", "release"], required=True)
    library.add_argument("--target-dir", type=pathlib.Path, required=True)
    library.add_argument("outputs", nargs="+", type=pathlib.Path)
    tests = commands.add_parser("test")
    tests.add_argument("--cargo", required=True)
    tests.add_argument("--target-dir", type=pathlib.Path, required=True)
    args = parser.parse_args()
    if args.command == "version":
        print(version())
        return
    try:
        {"build": build, "command": build_command, "library": build_library, "test": test}[args.command](args)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
