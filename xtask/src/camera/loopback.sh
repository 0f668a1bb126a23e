#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
#
# A pool as a camera of v4l2loopback, which programs read that know nothing of pools. Read by cases.sh, whose functions it uses.

out=/dev/video10
written=/tmp/seen.raw
size=320x240

# The brightness of the last frame in YUY2 that a program wrote, at a quarter of its width and height: the text is in the middle.
last_seen() {
    python3 -c '
import sys
frame = 2 * 320 * 240
data = open(sys.argv[1], "rb").read()
start = len(data) // frame * frame - frame
print(data[start + 2 * (60 * 320 + 80)])' $written
}
is_seen() { # lowest, highest brightness
    level=$(last_seen) && [ "$level" -ge "$1" ] && [ "$level" -le "$2" ]
}
check() { # what, lowest, highest brightness
    if until_true "is_seen $2 $3"; then ok "$1"; else failed "$1 (brightness $(last_seen))"; fi
}

modprobe v4l2loopback video_nr=${out#/dev/video} exclusive_caps=1 card_label=cam
plug 180
begin share xmem share "$device" --pool cam
share=$pid
shows 180 || failed 'loopback: share'
begin camera xmem camera cam --v4l2 $out --size $size --rate 5
camera=$pid
# With exclusive_caps=1 the device is a camera only while somebody writes to it.
until_true "v4l2-ctl --device $out --all | grep -q 'Video Capture'"

begin reader ffmpeg -loglevel error -f v4l2 -i $out -c copy -f rawvideo -y $written
reader=$pid
check 'loopback: ffmpeg sees the pool' 176 184
kill "$share"
wait "$share"
check 'loopback: it sees a picture without a signal' 0 16
unplug "$webcam"
plug 100
begin share xmem share "$device" --pool cam
check 'loopback: it sees the next producer' 96 104
if kill -0 "$camera" && [ "$(grep -c 'starting it again' /tmp/camera.log)" = 0 ]; then
    ok 'loopback: by one run of the camera'
else
    failed 'loopback: by one run of the camera'
fi

what='loopback: a second camera on the device names the cause'
timeout -s INT 30 xmem camera cam --v4l2 $out >/tmp/second.log 2>&1
if grep -q 'that no other program writes to' /tmp/second.log; then ok "$what"; else failed "$what"; fi

kill "$reader"
wait "$reader"
rm $written
begin reader gst-launch-1.0 -q v4l2src device=$out ! video/x-raw,format=YUY2 ! filesink location=$written
check 'loopback: v4l2src sees the pool' 96 104
kill "$pid"
wait "$pid"
what='loopback: v4l2-ctl sees the pool'
if timeout 60 v4l2-ctl --device $out --stream-mmap --stream-count=3 --stream-to=$written >/tmp/reader.log 2>&1 &&
    [ "$(wc -c <$written)" = $((3 * 2 * 320 * 240)) ]; then ok "$what"; else failed "$what"; fi
kill "$camera"
wait "$camera"
until_true 'rmmod v4l2loopback'
end_all
