#!/bin/sh
# SPDX-License-Identifier: MPL-2.0
#
# Shares cameras in the virtual machine. Each case prints a line; the exit code is the number of failures.
# shellcheck disable=SC2086 # pipelines are words

export GST_PLUGIN_PATH=/mnt GST_REGISTRY=/tmp/registry XMEM_RUNTIME_DIR=/run/xmem PATH=/mnt:$PATH GST_DEBUG_NO_COLOR=1
mkdir -m 700 /run/xmem
failures=0
pids=

ok() { echo "ok      $*"; }
failed() {
    echo "FAILED  $*"
    tail -n 12 /tmp/*.log | cut -c1-200
    failures=$((failures + 1))
}
# Waits at most a minute.
until_true() {
    tries=0
    while ! eval "$1" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 120 ] || return 1
        sleep 0.5
    done
}
begin() { # name, command...
    name=$1
    shift
    "$@" >"/tmp/$name.log" 2>&1 &
    pid=$!
    pids="$pids $pid"
}
end_all() {
    for pid in $pids; do
        kill -CONT "$pid" 2>/dev/null
        kill "$pid" 2>/dev/null
    done
    for pid in $pids; do wait "$pid" 2>/dev/null; done
    pids=
    rm -f /tmp/*.log /tmp/*.raw
    until_true '[ -z "$(ls /dev/video* 2>/dev/null)" ]'
}
plug() { # brightness, JPEG files
    before=$(ls /dev/video* 2>/dev/null)
    begin "webcam$1" python3 /mnt/webcam.py "$@"
    webcam=$pid
    until_true '[ "$(ls /dev/video* 2>/dev/null)" != "$before" ]'
    sleep 1
    device=$(grep -l "camera $1" /sys/class/video4linux/*/name | sort | head -n 1)
    device=/dev/$(basename "$(dirname "$device")")
}
unplug() {
    kill "$1"
    wait "$1"
}
field() { xmem show cam --format json 2>/dev/null | python3 -c "import json, sys; print(json.load(sys.stdin)['$1'])"; }
published() { field published || echo 0; }
# The brightness of the middle of the next frame, as a consumer that needs the bytes sees it.
brightness() {
    rm -f /tmp/frame.raw
    timeout 60 gst-launch-1.0 -q xmemsrc pool=cam num-buffers=1 start-from=newest ! decodebin ! videoconvert \
        ! video/x-raw,format=GRAY8 ! filesink location=/tmp/frame.raw >/tmp/reader.log 2>&1
    python3 -c 'b = open("/tmp/frame.raw", "rb").read(); print(b[len(b) // 2])'
}
shows() { # what, brightness
    until_true '[ "$(published)" -gt 3 ]' || return 1
    seen=$(brightness 2>/dev/null) || return 1
    [ "$seen" -ge $(($1 - 4)) ] && [ "$seen" -le $(($1 + 4)) ]
}
goes_on() {
    n=$(published)
    until_true "[ \$(published) -gt $((n + 30)) ]"
}

modprobe -a uvcvideo vhci-hcd || exit 125
gst-launch-1.0 -q videotestsrc num-buffers=2 pattern=white ! video/x-raw,width=640,height=480 \
    ! jpegenc ! multifilesink location=/tmp/%d.jpg >/dev/null
jpegs='/tmp/0.jpg /tmp/1.jpg'
gst-launch-1.0 --version | sed -n 2p

# The camera gives raw video only, or JPEG in a larger size too.
for camera in raw both; do
    case $camera in
    raw) more='' level=180 ;;
    both) more=$jpegs level=235 ;;
    esac
    for pipeline in "$(cat /mnt/readme)" 'v4l2src ! decodebin ! xmemsink pool=cam'; do
        case $camera:$pipeline in both:*userptr*) continue ;; esac
        plug 180 $more
        begin producer gst-launch-1.0 -q $pipeline
        if shows $level; then ok "$camera: $pipeline"; else failed "$camera: $pipeline"; fi
        end_all
    done
    plug 180 $more
    begin share xmem share "$device" --pool cam
    if shows $level; then ok "$camera: xmem share"; else failed "$camera: xmem share"; fi
    end_all
done

# A camera that is read in place, by four consumers that hold what they may, and are stopped.
for mode in auto userptr; do
    plug 90
    begin producer gst-launch-1.0 v4l2src io-mode=$mode ! video/x-raw ! xmemsink pool=cam
    until_true '[ "$(published)" -gt 3 ]'
    # One after another, so that they hold different frames.
    for n in 1 2 3 4; do
        begin "hoarder$n" gst-launch-1.0 xmemsrc pool=cam \
            ! queue min-threshold-buffers=1000 max-size-buffers=0 max-size-bytes=0 max-size-time=0 ! fakesink
        until_true 'xmem show cam --format json | python3 -c "
import json, sys
held = [it[\"held\"] for it in json.load(sys.stdin)[\"consumers\"]]
sys.exit(sum(it >= 8 for it in held) != '$n')"'
        kill -STOP "$pid"
    done
    what="$mode: stopped consumers do not stop the camera"
    scarce=$(field scarce)
    if ! goes_on || ! shows 90; then
        failed "$what"
    elif [ $mode = auto ] && { [ "$(field scarce)" = 0 ] || ! grep -q 'upstream has' /tmp/producer.log; }; then
        failed "$what: and says so"
    elif [ $mode = userptr ] && [ "$(field copied):$scarce" != 0:0 ]; then
        failed "$what, and nothing is copied"
    else
        ok "$what"
    fi
    end_all
done

# A camera that is unplugged is a lost producer.
plug 60
begin consumer gst-launch-1.0 -q xmemsrc pool=cam ! fakesink
consumer=$pid
begin producer gst-launch-1.0 v4l2src ! video/x-raw ! xmemsink pool=cam
until_true '[ "$(published)" -gt 10 ]'
unplug "$webcam"
until_true '! xmem show cam'
plug 70
begin producer gst-launch-1.0 v4l2src ! video/x-raw ! xmemsink pool=cam
if shows 70 && kill -0 "$consumer"; then ok 'unplugged: consumers wait'; else failed 'unplugged: consumers wait'; fi
end_all

# `share` follows a link as those in /dev/v4l/by-id: another camera gets the number, and the camera comes back with another one.
plug 200
link=/run/by-id
ln -s "$device" $link
begin share xmem share $link --pool cam
shows 200 || failed 'by-id: share'
unplug "$webcam"
rm $link
plug 20
plug 210
ln -s "$device" $link
if until_true 'shows 210'; then ok 'by-id: the same camera'; else failed "by-id: the same camera ($device)"; fi
end_all

. /mnt/loopback.sh
. /mnt/dmabuf.sh

exit $failures
