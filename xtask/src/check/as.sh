#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
#
# as.sh user|container PROGRAM ARGUMENT...
#
# Runs a program with fewer rights than root, and with a separate home directory.
#   user       an ordinary user; needs root
#   container  root without capabilities, in namespaces where no further ones can be created
# The home directory is $XMEM_TEST_HOME. If it is not set, the script uses a temporary directory and removes it afterwards.
set -eu
kind=$1
shift

home=${XMEM_TEST_HOME-}
run=exec
if [ -z "$home" ]; then
    home=$(mktemp -d /tmp/xmem-home.XXXXXX)
    run=
    trap 'rm -rf "$home"' EXIT
    trap 'exit 143' HUP INT TERM
fi
# An ID that no distribution assigns to a user.
uid=61616
if [ ! -d "$home/run" ]; then
    mkdir -p -m 700 "$home" "$home/run"
    [ "$kind" = container ] || chown -R "$uid:$uid" "$home"
fi

# pytest has a directory for each user name. It must belong to the user.
set -- env HOME="$home" USER="xmem-$kind" LOGNAME="xmem-$kind" XDG_RUNTIME_DIR="$home/run" XDG_CACHE_HOME="$home/.cache" "$@"
case $kind in
user)
    $run setpriv --reuid="$uid" --regid="$uid" --clear-groups --inh-caps=-all "$@"
    ;;
container)
    # The limit applies only to the new user namespace.
    # shellcheck disable=SC2016 # expanded by the inner shell
    $run unshare --user --map-root-user --mount --pid --fork --kill-child --mount-proc --ipc --uts -- sh -ec '
        echo 0 > /proc/sys/user/max_user_namespaces
        exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"' sh "$@"
    ;;
*)
    echo "usage: as.sh user|container PROGRAM ARGUMENT..." >&2
    exit 2
    ;;
esac
