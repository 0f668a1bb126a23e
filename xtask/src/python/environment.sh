#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
# environment.sh VENV REQUIREMENTS: makes a Python environment with just these packages, unless it is there already.
set -eu
venv=$1
requirements=$2
if cmp -s "$requirements" "$venv/requirements.txt"; then
    exit 0
fi
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile --requirement "$requirements"
# Last, so that an installation that was interrupted is not taken for a whole one.
cp "$requirements" "$venv/requirements.txt"
