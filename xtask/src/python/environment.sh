#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
# environment.sh VENV REQUIREMENTS TORCH: creates a Python environment with exactly these packages, unless it exists.
# The packages of TORCH are left out if there is not enough disk space. The tests that need them are then reported as not run.
set -eu
venv=$1
requirements=$2
torch=$3
# In GB: the installed packages, and the space that pip needs while it unpacks them.
room_for_torch=12
mkdir -p "$(dirname "$venv")"
cat "$requirements" "$torch" > "$venv.wanted"
if cmp -s "$venv.wanted" "$venv/requirements.txt"; then
    exit 0
fi
rm -rf "$venv"
# Prefer the system's Python if it is new enough. The tests also run as an ordinary user, who has no access to a Python in another
# user's home directory, such as pyenv's.
python=/usr/bin/python3
"$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || python=python3
"$python" -m venv "$venv"
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --requirement "$1"
}
install "$requirements"
room=$(df --output=avail --block-size=1G "$venv" | tail -n 1 | tr -d ' ')
if [ "$room" -ge "$room_for_torch" ]; then
    install "$torch"
    # The last step, so that an interrupted installation does not count as complete.
    mv "$venv.wanted" "$venv/requirements.txt"
else
    echo "PyTorch is not installed: it needs $room_for_torch GB, and $room GB are free"
fi
