#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
#
# enter.sh MODE ROOT DIR... -- PROGRAM ARGUMENT...
#
# Runs PROGRAM with ROOT as its root directory. ROOT is writable if MODE is `rw`, and read-only if it is `ro`. If it is `fresh`, the
# changes are in memory, and end with PROGRAM. Each DIR is mounted at the same path. All mounts are in a separate namespace, so they end with PROGRAM. /tmp, /run and /dev/shm are empty.
set -e

case $1 in
ro) exec unshare --mount --propagation private -- sh "$0" mounted "$@" ;;
# A PID namespace: processes that the installation starts end with it, and it cannot stop others.
rw | fresh) exec unshare --mount --propagation private --pid --fork --kill-child -- sh "$0" mounted "$@" ;;
mounted) ;;
*)
    echo "usage: enter.sh ro|rw|fresh ROOT DIR... -- PROGRAM ARGUMENT..." >&2
    exit 2
    ;;
esac
mode=$2
root=$3
shift 3

if [ "$mode" = fresh ]; then
    layers=$root.layers
    mkdir -p "$layers"
    mount -t tmpfs tmpfs "$layers"
    mkdir "$layers/upper" "$layers/work"
    mount -t overlay -o "lowerdir=$root,upperdir=$layers/upper,workdir=$layers/work" overlay "$root"
else
    mount --bind "$root" "$root"
fi
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

# pivot_root, not chroot: a process in a chroot cannot create a user namespace.
here=$PWD
cd "$root"
pivot_root . .
umount --lazy .
cd "$here" 2>/dev/null || cd /
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
# The plugin registry of GStreamer. It is written in `rw` mode, and read by users without write access in `ro` mode.
export GST_REGISTRY_1_0=/var/cache/gstreamer-registry.bin
unset TMPDIR XDG_RUNTIME_DIR XDG_CACHE_HOME
exec "$@"
