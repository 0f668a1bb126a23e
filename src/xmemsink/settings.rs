// SPDX-License-Identifier: MPL-2.0

//! The settings of the user.

use std::{ffi::OsString, time::Duration};

use gst::{glib, prelude::*};
use xmem_core::{Backing, Delivery, MAX_NAMED_SIZE, Producer, ProducerBuilder};

use crate::properties::{choices, settings};

pub(super) const PROP_POOL: &str = "pool";
pub(super) const PROP_NUM_CLIENTS: &str = "num-clients";

/// How many frames are kept by default.
const DEFAULT_HISTORY: u32 = 4;
/// The maximum number of slots by default, and if the slots are small. Then the history may have many frames.
const DEFAULT_SLOTS: u32 = 256;
const SMALL_SLOTS: u32 = 1_024;
/// How much time the default history covers if consumers do not wait for the frames' times.
const HISTORY_TIME: Duration = Duration::from_millis(100);

settings! {
    computed {
        /**
         * GstXmemSink:num-clients:
         *
         * How many consumers are connected. Notified when a consumer connects or disconnects.
         */
        glib::ParamSpecUInt::builder(PROP_NUM_CLIENTS)
            .nick("Number of Clients")
            .blurb("How many consumers are connected")
            .read_only()
            .build();
        /**
         * GstXmemSink:stats:
         *
         * `application/x-xmemsink-stats` with the fields below. After a stop, they have the values from the end of the
         * run.
         *
         * * `published`, `zero-copy`, `copied`, `dropped` (guint64): frames that were published; of these, the frames that
         *   were published in place, and the frames that were copied into a slot; frames that were not published because no
         *   slot was free, or because upstream had few buffers left.
         * * `scarce` (guint64): frames that were copied or dropped because upstream, such as a camera, had few buffers left.
         * * `late` (guint64): frames that were dropped because they were later than `max-lateness` allows. There is no
         *   limit by default.
         * * `skipped` (guint64): the late frames, frames outside of their segment, frames that do not match their caps, and
         *   frames that were waiting at a flush. Of a buffer list that is dropped as a whole, only the first frame counts.
         * * `memory-copies` (guint64): how often an element upstream copied a frame out of its slot.
         * * `metas-dropped` (guint64), `dropped-metas` (`application/x-xmem-metas`): metas that could not be published
         *   with their frame, and how many there were of each name (guint64).
         * * `events`, `events-dropped` (guint64): events between frames that were published, and events that were not,
         *   because they are valid in this process only or because no slot was free. A warning names each kind of the
         *   dropped events once.
         * * `slots`, `slots-held`, `max-slots`, `regions` (guint), `bytes` (guint64): the pool's memory.
         * * `budget-limit` (string): `max-slots` or `max-bytes`, if this property prevents the pool from granting the
         *   budgets that consumers requested; else empty.
         * * `devices` (GstValueArray of strings), `device-bytes` (guint64): the CUDA devices that have slots, and how their
         *   memory is shared, such as `0 NVIDIA H200 (vmm)`; how many of `bytes` are on devices.
         * * `cut-off`, `timed-out` (guint64): consumers that were disconnected because they sent invalid data, and because
         *   they blocked lossless delivery.
         * * `clients` (GstValueArray of `application/x-xmem-client`): `id` (guint64), `pid`, `uid` (guint), `name`
         *   (string), `via` (string), `budget`, `held` (guint), `received`, `missed`, `copied`, `dropped`, `oldest-held-age`,
         *   `latency`, `waited-for` (guint64, times in nanoseconds), `device` (string): how it imports the memory of frames on CUDA
         *   devices: `vmm`, `legacy`, `same process`, or `none: ` and the reason. Empty until it has used such memory.
         */
        glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
            .nick("Statistics")
            .blurb("Statistics of the pool and its consumers")
            .read_only()
            .build();
    }
    /**
     * GstXmemSink:pool:
     *
     * Name of the pool that consumers connect to. A name with a slash is the path of the pool's socket. For any other
     * name, the socket is in the runtime directory: `$XMEM_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/xmem`, else
     * `/tmp/xmem-<uid>`.
     */
    pool: OsString = "default".into(),
        PROP_POOL, "Pool",
        "Name of the pool, or the path of its socket if it contains a slash";
    /**
     * GstXmemSink:delivery:
     *
     * What the sink does if a consumer is too slow: with `live` the consumer misses frames, with `lossless` the sink
     * waits for it.
     */
    delivery: XmemSinkDelivery = XmemSinkDelivery::default(),
        "delivery", "Delivery",
        "Whether a slow consumer misses frames or the sink waits for it";
    /**
     * GstXmemSink:lossless-timeout:
     *
     * How long one consumer may block lossless delivery before it is disconnected.
     */
    lossless_timeout: u64 = 0,
        "lossless-timeout", "Lossless Timeout",
        "Time in nanoseconds after which a consumer that blocks lossless delivery is disconnected \
         (0 = never)";
    /**
     * GstXmemSink:meta-room:
     *
     * How many bytes each slot has after its frame for the frame's metas, such as regions of interest. If the metas of
     * a frame are larger, they are stored in a second, small slot, and new slots get more bytes for metas. Only a
     * frame that was published before, and has more metas now, is copied. Set this property if such copies must not
     * occur.
     */
    // Room for a few regions of interest, or for captions.
    meta_room: u32 = 512,
        "meta-room", "Meta Room",
        "Initial number of bytes for metas in each slot; it grows if frames have more",
        maximum(MAX_NAMED_SIZE as u32);
    min_slots: u32 = 0,
        "min-slots", "Minimum Slots",
        "Slots of the first region (0 = as many as upstream needs)";
    max_slots: u32 = DEFAULT_SLOTS,
        "max-slots", "Maximum Slots",
        "Maximum number of slots of the pool; their memory is allocated when it is needed",
        minimum(1);
    max_bytes: u64 = 0,
        "max-bytes", "Maximum Bytes",
        "Maximum size of the pool's shared memory in bytes (0 = no limit)";
    /**
     * GstXmemSink:history:
     *
     * How many of the newest frames the pool keeps for consumers that have not taken them yet, for example because their
     * sink waits for the time of a frame. With 0, the pool keeps the four newest frames. In live delivery it then also
     * keeps frames that a connected consumer has not taken, for 100 ms and for as long as the sinks of that consumer wait,
     * at most 952 frames and 256 MiB. These additional frames are only frames in the pool's own slots, and the pool
     * releases them when it needs the slots.
     */
    history: u32 = 0,
        "history", "History",
        "Number of newest frames that are kept for consumers (0 = four, and more for consumers that wait)";
    /**
     * GstXmemSink:copy:
     *
     * Whether the sink may copy frames. A frame that upstream did not write into one of the pool's slots has to be copied
     * into one, unless its memory can be shared unchanged, such as a DMA buffer. Some elements always send such frames (parsers, `x264enc`, all elements after a `tee`). With
     * `forbid`, the first such frame is an error, which gives the reason.
     */
    copy: XmemSinkCopy = XmemSinkCopy::default(),
        "copy", "Copy",
        "Whether frames that are not in a slot may be copied into one";
    /**
     * GstXmemSink:send-eos:
     *
     * Whether the consumers receive EOS at the end of this stream. EOS that follows an error in the pipeline is not sent to
     * them in any case: the producer is lost then. If false, they do not receive it and wait for more
     * frames: from this stream after a seek, or from the next producer of the pool.
     */
    send_eos: bool = true,
        "send-eos", "Send EOS",
        "Whether consumers receive EOS at the end of the stream";
    wait_for_connection: bool = false,
        "wait-for-connection", "Wait for Connection",
        "Whether to block the stream while no consumer is connected";
    /**
     * GstXmemSink:backing:
     *
     * The kind of shared memory for the slots. `posix-shm` is for peers that open the memory by name. The kernel does not
     * prevent them from writing to it, so only this user may connect to such a pool. Settings that allow other users
     * are an error.
     */
    backing: XmemSinkBacking = XmemSinkBacking::default(),
        "backing", "Backing",
        "The kind of shared memory for the slots (posix-shm is for this user only)";
    max_consumers: u32 = 256,
        "max-consumers", "Maximum Consumers",
        "Maximum number of connected consumers",
        minimum(1);
    max_held: u32 = 8,
        "max-held", "Maximum Held",
        "Maximum budget of a consumer: the number of slots that it may hold at once",
        minimum(1);
    /**
     * GstXmemSink:socket-mode:
     *
     * Which users may connect, as the file mode of the pool's socket in octal. This user and root may always connect;
     * with `0660` the socket's group may too, with `0666` all users may. They can read all frames of the pool but
     * cannot change them. Other users also need search permission for the socket's directory.
     */
    // Text as the user set it; parsed when the sink starts.
    socket_mode: String = "0600".to_owned(),
        "socket-mode", "Socket Mode",
        "File mode of the pool's socket in octal: which users may connect (\"0600\" = this user and root)";
    /**
     * GstXmemSink:socket-group:
     *
     * Group of the pool's socket: its name (as in /etc/group) or its number. `socket-mode` has to allow the group to
     * connect, as `0660` does, and this user has to be a member of the group. If empty, the socket gets the group of
     * new files.
     */
    // Empty: not set.
    socket_group: String = String::new(),
        "socket-group", "Socket Group",
        "Group whose members may connect, by name or number (with socket-mode=0660)";
    /**
     * GstXmemSink:allow-uids:
     *
     * Users that may connect in addition to those that `socket-mode` allows: their numbers, separated by commas. The file
     * of the socket is then writable for all users, because the kernel cannot check a list of users. The sink
     * disconnects other users before it shares anything.
     */
    // Text as the user set it; parsed when the sink starts.
    allow_uids: String = String::new(),
        "allow-uids", "Allowed Users",
        "Numbers of additional users that may connect, separated by commas (\"1000,1001\")";
    /**
     * GstXmemSink:pace:
     *
     * When a frame is published. `auto` publishes live input immediately, and other input, such as a file, at the time of
     * each frame. The reason is that a sink that waits for the time of each frame adds the latency of its pipeline to
     * live input, and the sink of the consumer would add it again. With `sync=false` all frames are published
     * immediately, for all values of this property. Each frame has the time at which it is due in all cases. For live
     * input that is published immediately, a consumer adds the latency of this pipeline to its own.
     */
    pace: XmemSinkPace = XmemSinkPace::default(),
        "pace", "Pace",
        "Whether a frame is published at its time or immediately (sync=false: always immediately)",
        mutable_playing();
    /**
     * GstXmemSink:cuda-ipc-mode:
     *
     * How slots on CUDA devices are shared with consumers. `vmm` shares file descriptors: the memory exists as long as a
     * process uses it, even if this process is killed. `legacy` shares IPC handles: the memory is freed with this
     * process, so a stop waits for consumers; see #GstXmemSink:release-timeout. `auto` is `vmm` if the device
     * supports it, else `legacy`.
     *
     * No effect on frames in host memory, or if the plugin was built without CUDA.
     */
    cuda_ipc_mode: XmemSinkCudaIpcMode = XmemSinkCudaIpcMode::default(),
        "cuda-ipc-mode", "CUDA IPC Mode",
        "How slots on CUDA devices are shared (no effect on host memory, or in builds without CUDA)";
    /**
     * GstXmemSink:cuda-device-id:
     *
     * The CUDA device of the slots that the sink offers to upstream. -1 is the device that upstream or the application
     * already uses, or else the first device.
     *
     * No effect on frames in host memory, or if the plugin was built without CUDA.
     */
    // -1: any device.
    cuda_device_id: i32 = -1,
        "cuda-device-id", "CUDA Device",
        "Number of the CUDA device for slots (-1 = device of the frames; no effect in builds without CUDA)",
        minimum(-1);
    /**
     * GstXmemSink:release-timeout:
     *
     * How long a stop waits for CUDA devices to complete their work on published frames, and for consumers to release
     * frames in memory that is freed with this process (#GstXmemSink:cuda-ipc-mode `legacy`). Memory that is still in
     * use afterwards is freed when this process exits. Pools without frames on devices do not wait.
     *
     * No effect if the plugin was built without CUDA.
     */
    release_timeout: u64 = 5_000_000_000,
        "release-timeout", "Release Timeout",
        "Maximum time in nanoseconds that a stop waits for frames on CUDA devices (no effect in builds without \
         CUDA)";
}

impl Settings {
    /// The device that the user selected.
    pub(super) fn cuda_device(&self) -> Option<u32> {
        u32::try_from(self.cuda_device_id).ok()
    }

    /// The options of the pool, without its callback and its devices. `Err`: why the settings are invalid.
    pub(super) fn producer(&self) -> Result<ProducerBuilder, String> {
        // An error and not a warning, because the mode controls which users may read the frames.
        let mode = parse_mode(&self.socket_mode).ok_or_else(|| {
            format!(
                "socket-mode {:?} is no file mode: give octal digits, at most 0777, such as \"0660\"",
                self.socket_mode
            )
        })?;
        let uids = parse_uids(&self.allow_uids).ok_or_else(|| {
            format!(
                "allow-uids {:?} are no users: give their numbers with commas in between, such as \"1000,1001\"",
                self.allow_uids
            )
        })?;
        let by_time = self.history == 0 && self.delivery == XmemSinkDelivery::Live;
        let group = (!self.socket_group.is_empty()).then(|| self.socket_group.clone());
        Ok(Producer::builder(&self.pool)
            .delivery(match self.delivery {
                XmemSinkDelivery::Live => Delivery::Live,
                XmemSinkDelivery::Lossless => Delivery::Lossless,
            })
            .lossless_timeout(
                (self.lossless_timeout > 0).then(|| Duration::from_nanos(self.lossless_timeout)),
            )
            .min_slots(self.min_slots)
            .max_slots(self.max_slots)
            .small_slots(if by_time && self.max_slots == DEFAULT_SLOTS {
                SMALL_SLOTS
            } else {
                0
            })
            .max_bytes(self.max_bytes)
            .history(match self.history {
                0 => DEFAULT_HISTORY,
                frames => frames,
            })
            .history_time(if by_time {
                HISTORY_TIME
            } else {
                Duration::ZERO
            })
            .backing(match self.backing {
                XmemSinkBacking::Memfd => Backing::Memfd,
                XmemSinkBacking::PosixShm => Backing::PosixShm,
            })
            .max_consumers(self.max_consumers)
            .max_held(self.max_held)
            .socket_mode(mode)
            .socket_group(group)
            .allow_uids(uids))
    }
}

fn parse_mode(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| digits && *mode <= 0o777)
}

fn parse_uids(text: &str) -> Option<Vec<u32>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    text.split(',')
        .map(|uid| {
            let uid = uid.trim();
            let digits = uid.bytes().all(|byte| byte.is_ascii_digit());
            uid.parse().ok().filter(|_| digits)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users() {
        assert_eq!(parse_uids(""), Some(vec![]));
        assert_eq!(parse_uids("1000"), Some(vec![1000]));
        assert_eq!(parse_uids(" 1000, 0,65534 "), Some(vec![1000, 0, 65534]));
        for bad in [
            ",",
            "1000,",
            "alice",
            "-1",
            "+1",
            "4294967296",
            "1000;1001",
            "0x3e8",
        ] {
            assert_eq!(parse_uids(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn modes() {
        assert_eq!(parse_mode("0600"), Some(0o600));
        assert_eq!(parse_mode("660"), Some(0o660));
        for bad in ["", "rw", "0888", "1000", "+600", "-1", " 600"] {
            assert_eq!(parse_mode(bad), None, "{bad:?}");
        }
    }
}

choices! {
    /// How the pool treats a slow consumer.
    XmemSinkDelivery = "GstXmemSinkDelivery" {
        Live = "live", "Live: a slow consumer misses frames, the sink does not wait for it";
        Lossless = "lossless", "Lossless: every connected consumer receives every frame, the sink waits";
    }

    /// Whether frames that upstream did not write into a slot may be copied into one.
    XmemSinkCopy = "GstXmemSinkCopy" {
        Allow = "allow", "Allow: copy foreign frames once";
        Forbid = "forbid", "Forbid: a foreign frame causes an element error";
    }

    /// The kind of shared memory that holds the slots.
    XmemSinkBacking = "GstXmemSinkBacking" {
        Memfd = "memfd", "Memfd: anonymous memory that consumers can neither write nor resize";
        PosixShm = "posix-shm", "POSIX shared memory: named segments, for this user only";
    }

    /// When a frame is published.
    XmemSinkPace = "GstXmemSinkPace" {
        Auto = "auto", "Auto: live input immediately, other input at its time";
        Always = "always", "Always: every frame at its time";
        Never = "never", "Never: every frame immediately";
    }

    /// How slots on CUDA devices are shared.
    XmemSinkCudaIpcMode = "GstXmemSinkCudaIpcMode" {
        Auto = "auto", "Auto: by file descriptor if the device supports it, else by legacy handle";
        Vmm = "vmm", "VMM: by file descriptor, the memory exists as long as any process uses it";
        Legacy = "legacy", "Legacy: by IPC handle, the memory is freed with this process";
    }
}
