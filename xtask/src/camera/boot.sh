#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
#
# boot.sh ROOT SHARE COMMAND
#
# Boots the Debian in the folder ROOT in a small virtual machine, which has the folder SHARE as /mnt, and runs COMMAND there as
# root. ROOT is its root file system, read-only: no image and no initramfs is made. The exit code is that of COMMAND.
set -eu
root=$1
share=$2

work=$(mktemp -d)
pids=
trap 'kill $pids 2>/dev/null || true; rm -rf "$work"' EXIT

# Debian 12 has the first one, later releases the second.
for server in /usr/lib/qemu/virtiofsd /usr/libexec/virtiofsd ''; do
    if [ -x "$server" ]; then break; fi
done
serve() { # tag, folder
    if "$server" --help 2>&1 | grep -q -- --shared-dir; then
        "$server" --socket-path="$work/$1" --shared-dir="$2" --sandbox=none --cache=auto >"$work/$1.log" 2>&1 &
    else
        "$server" --socket-path="$work/$1" -o "source=$2,sandbox=chroot,cache=auto" >"$work/$1.log" 2>&1 &
    fi
    pids="$pids $!"
    tries=0
    while [ ! -S "$work/$1" ]; do
        tries=$((tries + 1))
        if [ "$tries" = 100 ]; then
            cat "$work/$1.log" >&2
            exit 125
        fi
        sleep 0.1
    done
}
serve root "$root"
serve share "$share"

cat >"$root/init-of-camera-test" <<'INIT'
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 XDG_RUNTIME_DIR=/run/user
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
for dir in /tmp /run /dev/shm; do
    mkdir -p $dir
    mount -t tmpfs tmpfs $dir
done
mkdir -m 700 /run/user
ln -s /proc/self/fd /dev/fd
mount -t virtiofs share /mnt
cd /tmp
setsid -w sh /mnt/command </dev/null
echo $? >/mnt/exit-code
sync
echo o >/proc/sysrq-trigger
sleep 60
INIT
chmod +x "$root/init-of-camera-test"
printf '%s\n' "$3" >"$share/command"
rm -f "$share/exit-code"

# KVM for paravirtualized guests only cannot run this kernel. Emulation is fast enough: with qemu64 it need not emulate AVX.
if [ -w /dev/kvm ] && [ ! -d /sys/module/kvm_pvm ]; then
    machine='-accel kvm -cpu host'
else
    machine='-accel tcg -cpu qemu64'
fi
# shellcheck disable=SC2086
timeout --foreground 1200 qemu-system-x86_64 $machine -machine q35 -smp 2 -m 1536 \
    -object memory-backend-memfd,id=mem,size=1536M,share=on -numa node,memdev=mem \
    -nodefaults -no-user-config -no-reboot -display none -serial stdio \
    -chardev "socket,id=root,path=$work/root" -device vhost-user-fs-pci,chardev=root,tag=root \
    -chardev "socket,id=share,path=$work/share" -device vhost-user-fs-pci,chardev=share,tag=share \
    -kernel "$(ls -v "$root"/boot/vmlinuz-* | tail -n 1)" \
    -append 'console=ttyS0 quiet loglevel=3 rootfstype=virtiofs root=root ro init=/init-of-camera-test panic=-1' </dev/null
exit "$(cat "$share/exit-code" 2>/dev/null || echo 125)"
