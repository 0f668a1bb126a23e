#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
# module.sh VENV TARGET PROFILE: builds the Python module's wheel with a profile of cargo's, and installs it.
set -eu
venv=$1
target=$2
profile=$3
rm -rf "$target/wheels"
# A target directory of its own, so that no library of Python's lies where GStreamer looks for plugins. Both features are there
# without their names, which have to be accepted.
CARGO_TARGET_DIR=$target "$venv/bin/maturin" build --quiet --locked --profile "$profile" --features cpu,cuda \
    --manifest-path crates/xmem-python/Cargo.toml --interpreter "$venv/bin/python" --out "$target/wheels"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$target"/wheels/*.whl
