#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
# module.sh VENV TARGET PROFILE: builds the Python module's wheel with this cargo profile, and installs it.
set -eu
venv=$1
target=$2
profile=$3
rm -rf "$target/wheels"
# A separate target directory, so that GStreamer does not find a Python library where it looks for plugins.
CARGO_TARGET_DIR=$target "$venv/bin/maturin" build --quiet --locked --profile "$profile" \
    --manifest-path crates/xmem-python/Cargo.toml --interpreter "$venv/bin/python" --out "$target/wheels"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$target"/wheels/*.whl
