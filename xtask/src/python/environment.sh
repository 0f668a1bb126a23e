#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
# environment.sh VENV REQUIREMENTS TORCH: makes a Python environment with just these packages, unless it is there already.
# The second list is left out where there is no room for it; the tests print which of them do not run then.
set -eu
venv=$1
requirements=$2
torch=$3
# In GB: what is kept, and what pip unpacks on the way.
room_for_torch=12
mkdir -p "$(dirname "$venv")"
cat "$requirements" "$torch" > "$venv.wanted"
if cmp -s "$venv.wanted" "$venv/requirements.txt"; then
    exit 0
fi
rm -rf "$venv"
# The system's Python if it fits. Reason: one in a home directory, such as pyenv's, is closed to other users, and the tests run as
# an ordinary user too.
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
    # Last, so that an installation that was interrupted is not taken for a whole one.
    mv "$venv.wanted" "$venv/requirements.txt"
else
    echo "PyTorch is left out: it takes $room_for_torch GB to install, and $room are free"
fi
