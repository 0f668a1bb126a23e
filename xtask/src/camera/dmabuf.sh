#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
#
# Slots as DMA buffers, in the virtual machine: its kernel has /dev/udmabuf. Read by cases.sh, whose functions it uses.

produce() { # what, options of xmemsink, caps
    begin producer gst-launch-1.0 videotestsrc is-live=true pattern=snow ! "video/x-raw,framerate=15/1,$2" ! xmemsink pool=dma $1
    until_true 'xmem show dma --format json'
}
# Whether a consumer ends with an error that has these words.
is_refused() {
    timeout 60 gst-launch-1.0 xmemsrc pool=dma dmabuf=true num-buffers=1 ! fakesink >/tmp/consumer.log 2>&1 && return 1
    grep -q "$1" /tmp/consumer.log
}
has_line() { until_true "grep -qx $1 /tmp/reader.log"; }
open_dmabufs() { ls -l "/proc/$1/fd" | grep -c dmabuf; }

small=format=GRAY8,width=640,height=480
large=format=NV12,width=800,height=600

# A program that maps the descriptors itself, over the kill of the producer.
produce dmabuf=allow $small
first=$pid
mkfifo /tmp/steps
exec 3<>/tmp/steps
begin reader sh -c 'exec python3 /mnt/dmabuf.py </tmp/steps'
reader=$pid
what='DMA buffers have the bytes of their frames'
if has_line equal && [ "$(open_dmabufs "$first")" -gt 0 ]; then ok "$what"; else failed "$what"; fi
kill -9 "$first"
echo >&3
what='DMA buffers of a killed producer stay'
if has_line held; then ok "$what"; else failed "$what"; fi
produce dmabuf=allow $large
echo >&3
what='DMA buffers of the next producer, with another size, and none is left open'
if has_line back && has_line closed && wait "$reader"; then ok "$what"; else failed "$what"; fi
exec 3>&-
what='a program in C gets the planes of frames in their DMA buffers'
if LD_LIBRARY_PATH=/mnt timeout 120 /mnt/dmabuf >/tmp/planes.log 2>&1 && [ "$(grep -c '^NV12 2 0$' /tmp/planes.log)" = 10 ]; then
    ok "$what"
else
    failed "$what"
fi
what='a consumer that did not ask has no DMA buffer'
begin plain gst-launch-1.0 xmemsrc pool=dma ! fakesink
until_true 'xmem show dma --format json | python3 -c "
import json, sys
sys.exit(json.load(sys.stdin)[\"consumers\"][0][\"received\"] == 0)"'
if [ "$(open_dmabufs "$pid")" = 0 ]; then ok "$what"; else failed "$what"; fi
end_all

# What is missing is named.
produce dmabuf=forbid $small
what='refused: dmabuf=forbid'
if is_refused 'set dmabuf=allow on xmemsink'; then ok "$what"; else failed "$what"; fi
end_all
limit=/sys/module/udmabuf/parameters/size_limit_mb
before=$(cat $limit)
echo 0 >$limit
produce dmabuf=allow $small
what='refused: a slot that is too large'
if is_refused 'raise size_limit_mb'; then ok "$what"; else failed "$what"; fi
echo "$before" >$limit
end_all
what='refused: no right to /dev/udmabuf'
chmod 600 /dev/udmabuf
mkdir -m 777 /tmp/nobody
if ! XMEM_RUNTIME_DIR=/tmp/nobody setpriv --reuid=65534 --clear-groups gst-launch-1.0 videotestsrc ! xmemsink pool=dma dmabuf=allow \
    >/tmp/nobody.log 2>&1 && grep -q 'group of the device' /tmp/nobody.log; then
    ok "$what"
else
    failed "$what"
fi
rm -f /tmp/nobody.log
