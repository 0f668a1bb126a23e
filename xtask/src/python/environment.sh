#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
# environment.sh VENV REQUIREMENTS [TORCH]: creates a Python environment with exactly the packages of REQUIREMENTS, unless it exists.
# Then it installs the packages of TORCH, if there is enough disk space. Tests that lack them are reported as not run.
set -eu
venv=$1
requirements=$2
torch=${3-}
# In GB: the installed packages, and the space that pip needs while it unpacks them.
room_for_torch=12
# Copies the list last, so that an interrupted installation does not count as complete.
install() {
    "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check --no-cache-dir --no-deps --requirement "$1"
    cp "$1" "$venv/$2"
}
if ! cmp -s "$requirements" "$venv/requirements.txt"; then
    rm -rf "$venv"
    mkdir -p "$(dirname "$venv")"
    # Prefer the system's Python if it is new enough. The tests also run as an ordinary user, who has no access to a Python in
    # another user's home directory, such as pyenv's.
    python=/usr/bin/python3
    "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || python=python3
    "$python" -m venv "$venv"
    install "$requirements" requirements.txt
fi
if [ -n "$torch" ] && ! cmp -s "$torch" "$venv/requirements-torch.txt"; then
    room=$(df --output=avail --block-size=1G "$venv" | tail -n 1 | tr -d ' ')
    if [ "$room" -ge "$room_for_torch" ]; then
        install "$torch" requirements-torch.txt
    else
        echo "PyTorch is not installed: it needs $room_for_torch GB, and $room GB are free"
    fi
fi
