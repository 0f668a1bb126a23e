#!/usr/bin/env python3
# SPDX-License-Identifier: MPL-2.0
"""What meson.build needs of cargo: the version, and the plugin built by cargo-c."""

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

    # cargo-c always builds for a named target, and calls the dev profile's directory `debug`.
    profile = "debug" if args.profile == "dev" else args.profile
    names = ["gstxmem.pc"]
    names += ["libgstxmem.so"] * (args.library_type != "static")
    names += ["libgstxmem.a"] * (args.library_type != "shared")
    for name in names:
        built = sorted(args.target_dir.glob(f"*/{profile}/{name}"), key=lambda path: path.stat().st_mtime)
        if not built:
            sys.exit(f"cargo cbuild made no {name} in {args.target_dir}")
        shutil.copy2(built[-1], args.output_dir / name)


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
    args = parser.parse_args()
    if args.command == "version":
        print(version())
        return
    try:
        build(args)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
