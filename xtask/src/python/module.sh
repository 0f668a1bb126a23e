#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
# module.sh VENV WHEELS PROFILE TARGET: builds the Python module's wheel with this cargo profile, and installs it.
set -eu
venv=$1
wheels=$2
profile=$3
target=$4
rm -rf "$wheels"
CARGO_TARGET_DIR=$target "$venv/bin/maturin" build --quiet --locked --profile "$profile" \
    --manifest-path crates/xmem-python/Cargo.toml --interpreter "$venv/bin/python" --out "$wheels"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$wheels"/*.whl
