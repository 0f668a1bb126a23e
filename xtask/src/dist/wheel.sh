#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
# wheel.sh VENV PLUGIN COMMAND LICENCES WORK OUT: builds the wheel of the Python module, and puts the plugin, the command and the
# licences of what they contain into it. Packs the module's sources for pip.
set -eu
venv=$1 plugin=$2 command=$3 licences=$4 work=$5 out=$6
here=$(dirname "$0")
if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
    cp "$here/requirements.txt" "$venv/requirements.txt"
fi
PATH=$venv/bin:$PATH
maturin build --quiet --locked --profile release --strip --compatibility linux --auditwheel skip \
    --manifest-path crates/xmem-python/Cargo.toml --interpreter "$venv/bin/python" --out "$work/bare"
mkdir "$work/full"
wheel unpack --dest "$work" "$work"/bare/*.whl
for folder in "$work"/gst_xmem-*; do
    name=$(basename "$folder")
    # In an environment of conda, GStreamer finds plugins in this folder by itself.
    install -D --strip -t "$folder/$name.data/data/lib/gstreamer-1.0" "$plugin"
    install -D --strip -t "$folder/$name.data/scripts" "$command"
    install -D --mode=644 -t "$folder/$name.dist-info/licenses" LICENSE "$licences"
    # maturin's list of the crates has the path of the sources, which differs between machines.
    sed -i "s|file://$PWD/|file:///usr/src/xmem/|g" "$folder/$name.dist-info/sboms"/*.json
    wheel pack --dest-dir "$work/full" "$folder"
done
# GStreamer and GLib are those of the user's system.
auditwheel repair --only-plat --wheel-dir "$out" --exclude 'libgst*' --exclude 'libg*-2.0.so.0' "$work"/full/*.whl
maturin sdist --manifest-path crates/xmem-python/Cargo.toml --out "$out"
# The wheel has no folder of copied libraries.
if "$venv/bin/python" -m zipfile --list "$out"/*.whl | grep 'gst_xmem.libs/'; then
    echo "auditwheel copied these libraries into the wheel: exclude those that users have, and do not link the others" >&2
    exit 1
fi
