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
         * Notified when a consumer connects or disconnects.
         */
        glib::ParamSpecUInt::builder(PROP_NUM_CLIENTS)
            .nick("Number of Clients")
            .blurb("How many consumers are connected")
            .read_only()
            .build();
        /**
         * GstXmemSink:stats:
         *
         * A structure `application/x-xmemsink-stats`. After a stop it keeps the final values.
         *
         * * `published` (guint64): published frames.
         * * `zero-copy`, `copied` (guint64): published frames that weren't copied, and published frames that were copied
         *   into a slot.
         * * `dropped` (guint64): frames that weren't published because no slot was free, because upstream had few
         *   buffers left, or because new caps could not be shared for lack of memory or descriptors.
         * * `scarce` (guint64): frames that were copied or dropped because upstream, for example a camera, had few
         *   buffers left.
         * * `metas-dropped` (guint64), `dropped-metas` (`application/x-xmem-metas`): metas that didn't travel with their frame,
         *   in all and by name. Metas that refer to other objects, for example overlays and network addresses, can't travel. A
         *   warning names each kind once.
         * * `late` (guint64): frames that weren't published because they exceeded `max-lateness`.
         * * `skipped` (guint64): the late frames, raw frames outside of their segment, frames that don't match their
         *   caps, and frames that waited during a flush. A buffer list that is dropped as a whole counts as one.
         * * `clipped` (guint64): samples that were removed from published frames of raw sound, because they are outside of
         *   their segment.
         * * `events`, `events-dropped` (guint64): events between frames that were published, and events that weren't.
         * * `memory-copies` (guint64): how often upstream elements copied frames that are in slots.
         * * `slots`, `slots-held`, `max-slots` (guint): existing slots, slots that the producer or a consumer uses, and the
         *   property `max-slots`.
         * * `budget-limit` (string): the property that makes budgets smaller than requested: `max-slots` or `max-bytes`.
         *   Empty if none does.
         * * `regions` (guint), `bytes` (guint64): number of regions (blocks of shared memory), and their size.
         * * `devices` (GstValueArray of strings), `device-bytes` (guint64): the CUDA devices of the slots, each with the kind
         *   of its memory, for example `0 NVIDIA H200 (vmm)`, and the bytes on these devices. `bytes` includes these bytes.
         * * `cut-off`, `timed-out` (guint64): consumers that the sink disconnected because of an invalid lease page (the list
         *   of slots that a consumer holds), and consumers that it disconnected by `lossless-timeout`.
         * * `clients` (GstValueArray of `application/x-xmem-client`): the connected consumers.
         *
         * A structure `application/x-xmem-client` describes one consumer:
         *
         * * `id` (guint64), `pid`, `uid` (guint), `name` (string): the consumer's number in the pool, its process, its
         *   user, and its name.
         * * `via` (string): the pool through which the consumer gets this pool's frames. Empty if it reads this pool directly.
         * * `device` (string): how the consumer reached the memory of frames on CUDA devices: `vmm`, `legacy`, `same process`,
         *   or `none: ` with the reason. Empty until it has used such frames.
         * * `budget`, `held` (guint): slots that the consumer may hold, and slots that it holds.
         * * `received`, `missed`, `skipped` (guint64): frames that the consumer took, that it missed, and that its `max-rate`
         *   left out.
         * * `copied`, `dropped` (guint64): of the received frames, those that the consumer copied, and those that it dropped.
         * * `oldest-held-age` (guint64): age in ns of the oldest frame that the consumer holds.
         * * `latency` (guint64): smoothed time in ns from publishing to receiving.
         * * `waited-for` (guint64): time in ns that a lossless sink has waited for the consumer, or 0 if it doesn't wait.
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
     * A name without a slash is a name in the runtime directory: `$XMEM_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/xmem`, else
     * `/tmp/xmem-<uid>`. A name with a slash is the path of the socket, and doesn't need to be UTF-8.
     */
    pool: OsString = "default".into(),
        PROP_POOL, "Pool",
        "Name of the pool, or the path of its socket if it contains a slash";
    /**
     * GstXmemSink:delivery:
     *
     * With `live` the pool keeps the newest frames, and a slow consumer misses some. With `lossless` each connected
     * consumer receives every frame: the sink waits while the slowest one is eight frames behind, or `history` frames if
     * that is more.
     */
    delivery: XmemSinkDelivery = XmemSinkDelivery::default(),
        "delivery", "Delivery",
        "Whether a slow consumer misses frames or the sink waits for it";
    /**
     * GstXmemSink:lossless-timeout:
     *
     * If the sink waits for a consumer, and the consumer takes no frame for this time, the sink disconnects it.
     */
    lossless_timeout: u64 = 0,
        "lossless-timeout", "Lossless Timeout",
        "Time in nanoseconds after which a consumer that blocks lossless delivery is disconnected \
         (0 = never)";
    /**
     * GstXmemSink:meta-room:
     *
     * At most 16 MiB. Metas are, for example, regions of interest and captions. Metas that need more room are stored in a
     * second, small slot, and new slots then have more room. A frame is copied only if it was published before, and has more
     * metas now. A larger value prevents this copy.
     */
    // Room for a few regions of interest, or for captions.
    meta_room: u32 = 512,
        "meta-room", "Meta Room",
        "Initial number of bytes for metas in each slot (grows if frames need more)",
        maximum(MAX_NAMED_SIZE as u32);
    /**
     * GstXmemSink:min-slots:
     *
     * At most `max-slots`.
     */
    min_slots: u32 = 0,
        "min-slots", "Minimum Slots",
        "Slots in the pool's first block of memory (0 = as many as upstream needs)";
    /**
     * GstXmemSink:max-slots:
     *
     * At most 65536, and at least `history` + 2 (6 with `history=0`). With the default value, a live pool with `history=0` may
     * have up to 1024 slots if each is at most 64 KiB. Memory is reserved only when slots are needed.
     */
    max_slots: u32 = DEFAULT_SLOTS,
        "max-slots", "Maximum Slots",
        "Maximum number of slots of the pool",
        minimum(1);
    /**
     * GstXmemSink:max-bytes:
     *
     * If the limit is too small for the history, the history is shorter. If the limit is too small for the budgets of the
     * consumers, the budgets are smaller.
     */
    max_bytes: u64 = 0,
        "max-bytes", "Maximum Bytes",
        "Maximum size of the pool's shared memory in bytes (0 = no limit)";
    /**
     * GstXmemSink:history:
     *
     * The frames are kept for consumers that haven't taken them yet, and for `start-from=oldest` of xmemsrc. With 0, a live
     * pool keeps the four newest frames, and also older frames that a connected consumer hasn't taken: for 100 ms, or longer if
     * that consumer's sinks wait. In all, it keeps at most 952 frames, and at most 256 MiB. Older frames are kept only in the
     * pool's own slots, until the pool needs these slots.
     */
    history: u32 = 0,
        "history", "History",
        "Number of newest frames to keep (0 = four, and more for consumers that wait)";
    /**
     * GstXmemSink:copy:
     *
     * xmemsink copies a frame into a slot, unless upstream wrote the frame into a slot, or the frame's memory can be shared
     * unchanged, for example a DMA buffer. With `forbid`, the first frame that has to be copied is an error, which gives the
     * reason. But a camera's frames are dropped while it has few buffers left.
     */
    copy: XmemSinkCopy = XmemSinkCopy::default(),
        "copy", "Copy",
        "Whether frames that are not in a slot may be copied into a slot";
    /**
     * GstXmemSink:send-eos:
     *
     * Consumers never receive an EOS that follows an error in the pipeline, because the producer is lost then. With `false`,
     * consumers receive no EOS at all. They wait until this stream continues after a seek, or until the pool has its next
     * producer. Only an xmemsrc with the same `pool` in the same pipeline ends at once, because otherwise the pipeline could not
     * end.
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
     * `posix-shm` is for programs that open the memory by name, in /dev/shm. The kernel doesn't prevent these programs from
     * writing to the memory. So only this user may connect to such a pool, and settings that admit other users are an error.
     */
    backing: XmemSinkBacking = XmemSinkBacking::default(),
        "backing", "Backing",
        "The kind of shared memory for the slots";
    /**
     * GstXmemSink:dmabuf:
     *
     * With `allow`, consumers that ask for it (`dmabuf=true` of xmemsrc) get slots in host memory as DMA buffers, which GPUs,
     * displays and encoders import without a copy. Each such consumer can then write to every frame of the pool, because the
     * kernel makes no read-only DMA buffers. Other consumers still can't write. This process needs access to /dev/udmabuf (its
     * group is kvm on Debian), and one more file descriptor for each slot. Slots larger than the `size_limit_mb` of the kernel
     * module udmabuf (64 MiB by default) can't be DMA buffers.
     */
    dmabuf: XmemSinkDmabuf = XmemSinkDmabuf::default(),
        "dmabuf", "DMA Buffers",
        "Whether consumers may get frames as DMA buffers, which they can write to";
    /**
     * GstXmemSink:max-consumers:
     *
     * At most 4096. Further consumers are refused.
     */
    max_consumers: u32 = 256,
        "max-consumers", "Maximum Consumers",
        "Maximum number of connected consumers",
        minimum(1);
    /**
     * GstXmemSink:max-held:
     *
     * A consumer requests its budget, which is 8 by default, and receives at most this number.
     */
    max_held: u32 = 8,
        "max-held", "Maximum Held",
        "Maximum budget of a consumer: the number of slots that it may hold at once",
        minimum(1);
    /**
     * GstXmemSink:socket-mode:
     *
     * `0600` admits this user and root, `0660` also the members of the socket's group, and `0666` all users. Admitted
     * users can read all frames of the pool but can't change them, except in DMA buffers, which a camera uses by default.
     * Other users also need search permission for the socket's directory.
     */
    // Text as the user set it; parsed when the sink starts.
    socket_mode: String = "0600".to_owned(),
        "socket-mode", "Socket Mode",
        "File mode of the pool's socket in octal: which users may connect (\"0600\" = this user and root)";
    /**
     * GstXmemSink:socket-group:
     *
     * A name as in /etc/group, or a number. This user must be a member of the group, and `socket-mode` must admit the
     * group, as `0660` does. If this property is empty, the socket has the group of new files.
     */
    // Empty: not set.
    socket_group: String = String::new(),
        "socket-group", "Socket Group",
        "Group whose members may connect, by name or number (with socket-mode=0660)";
    /**
     * GstXmemSink:allow-uids:
     *
     * These users may connect besides those that `socket-mode` admits. The file of the socket is then writable for all
     * users, because the kernel can't check a list of users. The sink disconnects other users before it shares anything.
     */
    // Text as the user set it; parsed when the sink starts.
    allow_uids: String = String::new(),
        "allow-uids", "Allowed Users",
        "Numbers of additional users that may connect, separated by commas (\"1000,1001\")";
    /**
     * GstXmemSink:pace:
     *
     * With `auto`, live input is published on arrival, and other input, for example a file, at each frame's time. If
     * xmemsink waited for the times of live input, it would add the latency of its pipeline, and the consumer's sink would
     * add this latency again. With `sync=false` every frame is published on arrival, whatever this property says. You can
     * change this property in any state.
     */
    pace: XmemSinkPace = XmemSinkPace::default(),
        "pace", "Pace",
        "Whether a frame is published at its time or immediately",
        mutable_playing();
    /**
     * GstXmemSink:cuda-ipc-mode:
     *
     * `vmm` shares file descriptors: the memory exists as long as a process uses it, even if this process is killed. `legacy`
     * shares IPC handles: the memory ends with this process, so a stop waits for consumers (`release-timeout`). `auto` is `vmm`
     * if the device supports it, otherwise `legacy`.
     */
    cuda_ipc_mode: XmemSinkCudaIpcMode = XmemSinkCudaIpcMode::default(),
        "cuda-ipc-mode", "CUDA IPC Mode",
        "How slots on CUDA devices are shared (no effect without CUDA)";
    /**
     * GstXmemSink:cuda-device-id:
     *
     * -1 means the device of the frames, else the device that upstream or the application already uses, else the first device.
     */
    // -1: any device.
    cuda_device_id: i32 = -1,
        "cuda-device-id", "CUDA Device",
        "Number of the CUDA device for slots, or -1 for the device of the frames (no effect without CUDA)",
        minimum(-1);
    /**
     * GstXmemSink:release-timeout:
     *
     * A stop waits for devices to finish their work on published frames, and for consumers to release memory that ends with
     * this process (`cuda-ipc-mode=legacy`). Memory that is still in use after this time is freed when this process exits.
     * Pools without frames on devices don't wait.
     */
    release_timeout: u64 = 5_000_000_000,
        "release-timeout", "Release Timeout",
        "Maximum time in nanoseconds that a stop waits for frames on CUDA devices (no effect without CUDA)";
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
                "socket-mode {:?} is not a file mode: write octal digits, at most 0777, for example \"0660\"",
                self.socket_mode
            )
        })?;
        let uids = parse_uids(&self.allow_uids).ok_or_else(|| {
            format!(
                "allow-uids {:?} is not a list of users: write their numbers, separated by commas, for example \"1000,1001\"",
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
            .allow_dmabuf(self.dmabuf == XmemSinkDmabuf::Allow)
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
        Live = "live", "Live: a slow consumer misses frames, and the sink does not wait";
        Lossless = "lossless", "Lossless: every connected consumer receives every frame, and the sink waits";
    }

    /// Whether frames that upstream did not write into a slot may be copied into one.
    XmemSinkCopy = "GstXmemSinkCopy" {
        Allow = "allow", "Allow: copy foreign frames once";
        Forbid = "forbid", "Forbid: a foreign frame causes an element error";
    }

    /// Whether consumers may get slots as DMA buffers.
    XmemSinkDmabuf = "GstXmemSinkDmabuf" {
        Forbid = "forbid", "Forbid: consumers can only read frames";
        Allow = "allow", "Allow: consumers that ask for DMA buffers can also write to frames";
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
        Vmm = "vmm", "VMM: by file descriptor. The memory exists as long as any process uses it";
        Legacy = "legacy", "Legacy: by IPC handle. The memory is freed with this process";
    }
}
