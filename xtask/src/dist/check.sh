#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
# check.sh PACKAGES EXAMPLES [OLD]: installs the packages of OLD on this system, replaces them with those of PACKAGES while a pool is
# in use, uses these, removes them, and looks for what they leave behind. Without OLD, it makes packages with an older version from
# those of PACKAGES. EXAMPLES has programs for libxmem.
set -eu
packages=$1 examples=$2 old=${3:-}
work=$(mktemp -d)
cd "$work"
export DEBIAN_FRONTEND=noninteractive XMEM_RUNTIME_DIR=$work/pools

# A program that waits for frames which never come ends here.
soon() { timeout --foreground 60 "$@"; }
did() { printf '%-28s ok   %s\n' "$1" "$2"; }
# All files but the records of the package manager.
files() {
    find / -xdev \( -path /var/lib/dpkg -o -path /var/log -o -path /var/cache -o -path /var/lib/apt -o -path /root \) -prune -o \
        -print | sort
}
is_without_plugin() {
    if gst-inspect-1.0 --exists xmemsink; then
        echo "GStreamer still finds xmemsink" >&2
        exit 1
    fi
}
# Every program below that is started with & ends by its signal.
end() {
    kill -INT "$1"
    wait "$1" || [ $? -eq 130 ]
}
read_ten='
import sys
import numpy as np
import xmem
for count, frame in enumerate(xmem.Consumer(sys.argv[1])):
    planes = [np.asarray(plane) for plane in frame.planes]
    assert len(planes) == 2, frame.format
    if count == 10:
        break
print(frame.format, planes[0].shape)
'
read_by_gstreamer='
import sys
import xmem
xmem.setup_gstreamer()
from gi.repository import Gst
pipeline = Gst.parse_launch(f"xmemsrc pool={sys.argv[1]} num-buffers=10 ! fakesink")
pipeline.set_state(Gst.State.PLAYING)
message = pipeline.get_bus().timed_pop_filtered(60 * Gst.SECOND, Gst.MessageType.EOS | Gst.MessageType.ERROR)
pipeline.set_state(Gst.State.NULL)
assert message is not None and message.type == Gst.MessageType.EOS, message and message.parse_error()
'

. /etc/os-release
echo "$PRETTY_NAME, $(gst-launch-1.0 --version | sed -n 2p), $(python3 --version)"
(cd "$packages" && sha256sum --quiet --check SHA256SUMS)
did checksums "$(wc -l < "$packages/SHA256SUMS") files"
is_without_plugin

files > before
debs_in() { find "$1" -name '*.deb' ! -name '*-dbgsym_*'; }
# Without a network: what they depend on is here.
install_from() {
    # shellcheck disable=SC2046
    unshare --net apt-get install --quiet=2 --yes --no-install-recommends $(debs_in "$1") > apt.log 2>&1 || { cat apt.log; exit 1; }
}
if [ -z "$old" ]; then
    old=$work/old
    mkdir "$old"
    for deb in $(debs_in "$packages"); do
        version=$(dpkg-deb --field "$deb" Version)
        dpkg-deb --raw-extract "$deb" package
        # A version with a tilde is older than the same without.
        sed -i "s/^Version: .*/&~old/; s/(= $version)/(= $version~old)/" package/DEBIAN/control
        dpkg-deb --root-owner-group --build package "$old" > /dev/null
        rm -r package
    done
fi
names=$(for deb in $(debs_in "$packages"); do dpkg-deb --field "$deb" Package; done)
# shellcheck disable=SC2086
versions() { dpkg-query --show --showformat '${Version}\n' $names | sort -u; }

install_from "$old"
did 'apt-get install' "$(versions): $(echo $names)"
gst-launch-1.0 --quiet videotestsrc is-live=true ! xmemsink pool=kept &
producer=$!
soon gst-launch-1.0 --quiet xmemsrc pool=kept num-buffers=10 ! fakesink
before=$(versions)
install_from "$packages"
[ "$before" != "$(versions)" ]
if soon gst-launch-1.0 --quiet xmemsrc pool=kept num-buffers=10 ! fakesink 2> reader; then
    kept='a new consumer reads a pool of before'
else
    grep 'update the producer and restart it' reader
    kept='a new consumer names the old producer'
fi
end $producer
did 'upgrade with a pool in use' "$(versions): $kept"

gst-inspect-1.0 xmem | grep -q '/gstreamer-1.0/libgstxmem.so'
gst-launch-1.0 --quiet videotestsrc is-live=true ! xmemsink pool=cam0 &
producer=$!
soon gst-launch-1.0 --quiet xmemsrc pool=cam0 num-buffers=30 ! videoconvert ! fakesink
end $producer
did 'xmemsink, xmemsrc' '30 frames in another process'

xmem share test --pool cam1 > share.log 2>&1 &
share=$!
soon gst-launch-1.0 --quiet xmemsrc pool=cam1 num-buffers=30 ! fakesink
xmem list | grep cam1 | tee list
soon xmem snapshot cam1 cam1.png
[ "$(head -c 4 cam1.png | tail -c 3)" = PNG ]
did 'xmem share, list, snapshot' "$(wc -c < cam1.png) bytes of PNG"
xmem doctor > doctor || [ $? -eq 1 ] || { cat doctor; exit 1; }
grep plugin doctor
did 'xmem doctor' 'no problem'

# shellcheck disable=SC2046
cc "$examples/save-frame.c" $(pkg-config --cflags --libs xmem) -o save-frame
soon ./save-frame cam1 frame.pgm
[ "$(head -c 2 frame.pgm)" = P5 ]
end $share
did 'a program in C' "$(wc -c < frame.pgm) bytes of PGM, libxmem $(pkg-config --modversion xmem)"
[ -e /usr/share/man/man1/xmem-share.1.gz ] && [ -e /usr/share/doc/xmem/copyright ]

case " $(echo $names) " in *' xmem-bridge '*)
    xmem share test --pool cam3 > share.log 2>&1 &
    share=$!
    xmem-bridge export cam3 --listen tcp/127.0.0.1:7447 --trusted-network > export.log 2>&1 &
    export=$!
    XMEM_RUNTIME_DIR=$work/host-b xmem-bridge import cam3@127.0.0.1 --trusted-network > import.log 2>&1 &
    import=$!
    XMEM_RUNTIME_DIR=$work/host-b soon gst-launch-1.0 --quiet xmemsrc pool=cam3 num-buffers=10 ! fakesink
    xmem list --remote 127.0.0.1 --trusted-network | grep cam3 > list
    end $import
    end $export
    end $share
    did 'xmem-bridge' "10 frames over TCP; $(cat list)"
    ;;
esac

# shellcheck disable=SC2086
apt-get purge --quiet=2 --yes $names > apt.log 2>&1 || { cat apt.log; exit 1; }
rm -rf "$XMEM_RUNTIME_DIR"
files > after
diff before after
is_without_plugin
did 'apt-get purge' 'no file is left'

python3 -m venv --system-site-packages venv
find venv | sort > before
venv/bin/pip install --quiet --no-index --no-deps "$packages"/*.whl
PATH=$work/venv/bin:$PATH
xmem share test --pool cam2 > share.log 2>&1 &
share=$!
soon python -c "$read_ten" cam2 > loop
did 'wheel: a loop in Python' "$(cat loop)"
soon python -c "$read_by_gstreamer" cam2
did 'wheel: setup_gstreamer()' '10 frames'
xmem plugin install > link
soon gst-launch-1.0 --quiet xmemsrc pool=cam2 num-buffers=10 ! fakesink
xmem plugin remove > /dev/null
is_without_plugin
soon env GST_PLUGIN_PATH="$(xmem plugin path)" gst-launch-1.0 --quiet xmemsrc pool=cam2 num-buffers=10 ! fakesink
end $share
did 'wheel: xmem plugin' "$(cat link)"
pip uninstall --quiet --yes gst-xmem
find venv ! -name '*.pyc' ! -name __pycache__ | sort > after
grep -v -e '\.pyc$' -e __pycache__ before | diff - after
did 'pip uninstall' 'no file is left'
ls /dev/shm | grep xmem && exit 1
echo 'everything works, and nothing is left'
