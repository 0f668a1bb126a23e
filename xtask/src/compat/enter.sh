#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
#
# enter.sh MODE ROOT DIR... -- PROGRAM ARGUMENT...
#
# Runs a program with ROOT as its root directory, which it may write to if MODE is `rw` and not if it is `ro`. Each DIR is
# there too, at the same path. All mounts are in a namespace of their own, so they are gone when the program is.
# /tmp, /run and /dev/shm are empty.
set -e

case $1 in
ro) exec unshare --mount --propagation private -- sh "$0" mounted "$@" ;;
# The processes of an installation end with it, and it stops no others.
rw) exec unshare --mount --propagation private --pid --fork --kill-child -- sh "$0" mounted "$@" ;;
mounted) ;;
*)
    echo "usage: enter.sh ro|rw ROOT DIR... -- PROGRAM ARGUMENT..." >&2
    exit 2
    ;;
esac
mode=$2
root=$3
shift 3

mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
for dir in tmp run dev/shm; do
    mount -t tmpfs -o mode=1777 tmpfs "$root/$dir"
done
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --bind "$1" "$root$1"
    shift
done
shift
if [ "$mode" = ro ]; then
    mount -o remount,bind,ro "$root"
fi

# A chroot would not do: in one, no process may make a user namespace.
here=$PWD
cd "$root"
pivot_root . .
umount --lazy .
cd "$here" 2>/dev/null || cd /
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
# GStreamer's registry of plugins, for users that may not write.
export GST_REGISTRY=/var/cache/gstreamer-registry.bin
unset TMPDIR XDG_RUNTIME_DIR XDG_CACHE_HOME
exec "$@"
