// SPDX-License-Identifier: MPL-2.0

//! What the user sets.

use std::{ffi::OsString, path::Path, time::Duration};

use gst::{glib, prelude::*};
use xmem_core::{Backing, Delivery, MAX_NAMED_SIZE, Producer, ProducerBuilder};

use super::{XmemSinkBacking, XmemSinkCopy, XmemSinkCudaIpcMode, XmemSinkDelivery, XmemSinkPace};
use crate::bytes;

pub(super) const PROP_POOL: &str = "pool";
pub(super) const PROP_STATS: &str = "stats";
pub(super) const PROP_NUM_CLIENTS: &str = "num-clients";
const PROP_DELIVERY: &str = "delivery";
const PROP_LOSSLESS_TIMEOUT: &str = "lossless-timeout";
const PROP_META_ROOM: &str = "meta-room";
const PROP_MIN_SLOTS: &str = "min-slots";
const PROP_MAX_SLOTS: &str = "max-slots";
const PROP_MAX_BYTES: &str = "max-bytes";
const PROP_HISTORY: &str = "history";
const PROP_COPY: &str = "copy";
const PROP_WAIT_FOR_CONNECTION: &str = "wait-for-connection";
const PROP_BACKING: &str = "backing";
const PROP_MAX_CONSUMERS: &str = "max-consumers";
const PROP_MAX_HELD: &str = "max-held";
const PROP_SOCKET_MODE: &str = "socket-mode";
const PROP_SOCKET_GROUP: &str = "socket-group";
const PROP_ALLOW_UIDS: &str = "allow-uids";
const PROP_PACE: &str = "pace";
const PROP_CUDA_IPC_MODE: &str = "cuda-ipc-mode";
const PROP_CUDA_DEVICE_ID: &str = "cuda-device-id";
const PROP_RELEASE_TIMEOUT: &str = "release-timeout";

/// How many frames are kept unless somebody says how many.
const LEAST_HISTORY: u32 = 4;
/// How much of the stream is kept then. More than twice as long as a sink waits that has the processing deadline of
/// GstBaseSink, behind that of xmemsrc; a sink for sound waits longer.
const HISTORY_TIME: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) pool: OsString,
    pub(super) delivery: XmemSinkDelivery,
    pub(super) lossless_timeout: u64,
    pub(super) meta_room: u32,
    pub(super) min_slots: u32,
    pub(super) max_slots: u32,
    pub(super) max_bytes: u64,
    pub(super) history: u32,
    pub(super) copy: XmemSinkCopy,
    pub(super) wait_for_connection: bool,
    pub(super) backing: XmemSinkBacking,
    pub(super) max_consumers: u32,
    pub(super) max_held: u32,
    /// As it was set; looked at when the sink starts.
    pub(super) socket_mode: String,
    /// Empty: not set.
    pub(super) socket_group: String,
    /// As it was set, too.
    pub(super) allow_uids: String,
    pub(super) pace: XmemSinkPace,
    pub(super) cuda_ipc_mode: XmemSinkCudaIpcMode,
    /// -1: any.
    pub(super) cuda_device_id: i32,
    pub(super) release_timeout: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pool: "default".into(),
            delivery: XmemSinkDelivery::default(),
            lossless_timeout: 0,
            // A frame with a handful of regions, or with captions.
            meta_room: 512,
            min_slots: 0,
            max_slots: 256,
            max_bytes: 0,
            history: 0,
            copy: XmemSinkCopy::default(),
            wait_for_connection: false,
            backing: XmemSinkBacking::default(),
            max_consumers: 256,
            max_held: 8,
            socket_mode: "0600".to_owned(),
            socket_group: String::new(),
            allow_uids: String::new(),
            pace: XmemSinkPace::default(),
            cuda_ipc_mode: XmemSinkCudaIpcMode::default(),
            cuda_device_id: -1,
            release_timeout: 5_000_000_000,
        }
    }
}

impl Settings {
    /// The device that was asked for.
    #[cfg(feature = "cuda")]
    pub(super) fn cuda_device(&self) -> Option<u32> {
        u32::try_from(self.cuda_device_id).ok()
    }

    /// Takes over a property.
    pub(super) fn set(&mut self, pspec: &glib::ParamSpec, value: &glib::Value) {
        fn get<'a, T: glib::value::FromValue<'a>>(value: &'a glib::Value) -> T {
            value.get().expect("type checked upstream")
        }
        match pspec.name() {
            PROP_POOL => self.pool = bytes::path(value).unwrap_or_else(|| Self::default().pool),
            PROP_DELIVERY => self.delivery = get(value),
            PROP_LOSSLESS_TIMEOUT => self.lossless_timeout = get(value),
            PROP_META_ROOM => self.meta_room = get(value),
            PROP_MIN_SLOTS => self.min_slots = get(value),
            PROP_MAX_SLOTS => self.max_slots = get(value),
            PROP_MAX_BYTES => self.max_bytes = get(value),
            PROP_HISTORY => self.history = get(value),
            PROP_COPY => self.copy = get(value),
            PROP_WAIT_FOR_CONNECTION => self.wait_for_connection = get(value),
            PROP_BACKING => self.backing = get(value),
            PROP_MAX_CONSUMERS => self.max_consumers = get(value),
            PROP_MAX_HELD => self.max_held = get(value),
            PROP_SOCKET_MODE => {
                self.socket_mode =
                    bytes::text(value).unwrap_or_else(|| Self::default().socket_mode);
            }
            PROP_SOCKET_GROUP => self.socket_group = bytes::text(value).unwrap_or_default(),
            PROP_ALLOW_UIDS => self.allow_uids = bytes::text(value).unwrap_or_default(),
            PROP_PACE => self.pace = get(value),
            PROP_CUDA_IPC_MODE => self.cuda_ipc_mode = get(value),
            PROP_CUDA_DEVICE_ID => self.cuda_device_id = get(value),
            PROP_RELEASE_TIMEOUT => self.release_timeout = get(value),
            _ => unimplemented!(),
        }
    }

    pub(super) fn get(&self, pspec: &glib::ParamSpec) -> glib::Value {
        match pspec.name() {
            PROP_POOL => Path::new(&self.pool).to_value(),
            PROP_DELIVERY => self.delivery.to_value(),
            PROP_LOSSLESS_TIMEOUT => self.lossless_timeout.to_value(),
            PROP_META_ROOM => self.meta_room.to_value(),
            PROP_MIN_SLOTS => self.min_slots.to_value(),
            PROP_MAX_SLOTS => self.max_slots.to_value(),
            PROP_MAX_BYTES => self.max_bytes.to_value(),
            PROP_HISTORY => self.history.to_value(),
            PROP_COPY => self.copy.to_value(),
            PROP_WAIT_FOR_CONNECTION => self.wait_for_connection.to_value(),
            PROP_BACKING => self.backing.to_value(),
            PROP_MAX_CONSUMERS => self.max_consumers.to_value(),
            PROP_MAX_HELD => self.max_held.to_value(),
            PROP_SOCKET_MODE => self.socket_mode.to_value(),
            PROP_SOCKET_GROUP => self.socket_group.to_value(),
            PROP_ALLOW_UIDS => self.allow_uids.to_value(),
            PROP_PACE => self.pace.to_value(),
            PROP_CUDA_IPC_MODE => self.cuda_ipc_mode.to_value(),
            PROP_CUDA_DEVICE_ID => self.cuda_device_id.to_value(),
            PROP_RELEASE_TIMEOUT => self.release_timeout.to_value(),
            _ => unimplemented!(),
        }
    }

    /// The pool that these settings describe, without its callback. `Err`: what is wrong with them.
    pub(super) fn producer(&self) -> Result<ProducerBuilder, String> {
        // Not something to ignore: it says who may read the frames.
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
        let group = (!self.socket_group.is_empty()).then(|| self.socket_group.clone());
        Ok(self
            .for_devices(Producer::builder(&self.pool))
            .delivery(match self.delivery {
                XmemSinkDelivery::Live => Delivery::Live,
                XmemSinkDelivery::Lossless => Delivery::Lossless,
            })
            .lossless_timeout(
                (self.lossless_timeout > 0).then(|| Duration::from_nanos(self.lossless_timeout)),
            )
            .min_slots(self.min_slots)
            .max_slots(self.max_slots)
            .max_bytes(self.max_bytes)
            .history(match self.history {
                0 => LEAST_HISTORY,
                frames => frames,
            })
            .history_time(if self.history == 0 {
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

    #[cfg(feature = "cuda")]
    fn for_devices(&self, builder: ProducerBuilder) -> ProducerBuilder {
        use xmem_core::cuda::Mode;
        builder
            .cuda_mode(match self.cuda_ipc_mode {
                XmemSinkCudaIpcMode::Auto => Mode::Auto,
                XmemSinkCudaIpcMode::Vmm => Mode::Vmm,
                XmemSinkCudaIpcMode::Legacy => Mode::Legacy,
            })
            .release_timeout(Duration::from_nanos(self.release_timeout))
    }

    #[cfg(not(feature = "cuda"))]
    fn for_devices(&self, builder: ProducerBuilder) -> ProducerBuilder {
        builder
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

pub(super) fn properties() -> Vec<glib::ParamSpec> {
    let default = Settings::default();
    vec![
        /**
         * GstXmemSink:pool:
         *
         * Name of the pool that consumers ask for. A name with a slash in it is the path of the pool's socket itself;
         * any other name lies in the runtime directory: `$XMEM_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/xmem`, else
         * `/tmp/xmem-<uid>`.
         */
        glib::ParamSpecString::builder(PROP_POOL)
            .nick("Pool")
            .blurb("Name of the pool, or the path of its socket if it has a slash in it")
            .default_value(default.pool.to_str())
            .build(),
        /**
         * GstXmemSink:delivery:
         *
         * What happens when a consumer does not keep up.
         */
        glib::ParamSpecEnum::builder_with_default(PROP_DELIVERY, default.delivery)
            .nick("Delivery")
            .blurb("Whether a slow consumer misses frames or is waited for")
            .build(),
        /**
         * GstXmemSink:lossless-timeout:
         *
         * How long one consumer may hold all others up in lossless delivery before it is disconnected.
         */
        glib::ParamSpecUInt64::builder(PROP_LOSSLESS_TIMEOUT)
            .nick("Lossless Timeout")
            .blurb(
                "Time in nanoseconds after which a consumer that holds up lossless delivery is disconnected \
                 (0 = never)",
            )
            .default_value(default.lossless_timeout)
            .build(),
        /**
         * GstXmemSink:meta-room:
         *
         * How many bytes each slot has behind its frame for the frame's metas, such as regions of interest. A frame
         * with more takes a second, small slot for them, and later slots have that room. Only a frame that was
         * published before, and now has more metas than fit, is copied; so this matters only where no frame may be.
         */
        glib::ParamSpecUInt::builder(PROP_META_ROOM)
            .nick("Meta Room")
            .blurb("Bytes for metas in each slot, to begin with; it grows with what frames bring")
            .maximum(MAX_NAMED_SIZE as u32)
            .default_value(default.meta_room)
            .build(),
        glib::ParamSpecUInt::builder(PROP_MIN_SLOTS)
            .nick("Minimum Slots")
            .blurb("Slots of the first piece of memory that is taken (0 = as many as upstream needs)")
            .default_value(default.min_slots)
            .build(),
        glib::ParamSpecUInt::builder(PROP_MAX_SLOTS)
            .nick("Maximum Slots")
            .blurb("The most slots the pool may have; their memory is taken as it is needed")
            .minimum(1)
            .default_value(default.max_slots)
            .build(),
        glib::ParamSpecUInt64::builder(PROP_MAX_BYTES)
            .nick("Maximum Bytes")
            .blurb("The most bytes of shared memory the pool may take (0 = no limit)")
            .default_value(default.max_bytes)
            .build(),
        /**
         * GstXmemSink:history:
         *
         * How many of the newest frames are kept for consumers that have not taken them yet, as those whose sink waits for a
         * frame's time. With 0 those are the four newest, and in live delivery as many more as the last 100 ms of the
         * stream have, 64 at most: of these only such as lie in the pool's own slots, and as long as nobody needs the slots.
         */
        glib::ParamSpecUInt::builder(PROP_HISTORY)
            .nick("History")
            .blurb("Newest frames that are kept for consumers (0 = four, and those of the last 100 ms)")
            .default_value(default.history)
            .build(),
        /**
         * GstXmemSink:copy:
         *
         * Frames that upstream did not write into one of the pool's slots have to be copied into one. Some elements
         * always send such frames (parsers, `x264enc`, everything behind a `tee`). With `forbid`, the first of them
         * is an error that says where it came from.
         */
        glib::ParamSpecEnum::builder_with_default(PROP_COPY, default.copy)
            .nick("Copy")
            .blurb("Whether frames that do not lie in a slot may be copied into one")
            .build(),
        glib::ParamSpecBoolean::builder(PROP_WAIT_FOR_CONNECTION)
            .nick("Wait for Connection")
            .blurb("Hold the stream while no consumer is connected")
            .default_value(default.wait_for_connection)
            .build(),
        /**
         * GstXmemSink:backing:
         *
         * The kind of shared memory that the slots lie in. `posix-shm` is for peers that open the memory by name. The
         * kernel does not keep them from writing, so such a pool serves this user only: settings that let in others are an
         * error.
         */
        glib::ParamSpecEnum::builder_with_default(PROP_BACKING, default.backing)
            .nick("Backing")
            .blurb("The kind of shared memory that the slots lie in (posix-shm serves this user only)")
            .build(),
        glib::ParamSpecUInt::builder(PROP_MAX_CONSUMERS)
            .nick("Maximum Consumers")
            .blurb("The most consumers that may be connected at once")
            .minimum(1)
            .default_value(default.max_consumers)
            .build(),
        glib::ParamSpecUInt::builder(PROP_MAX_HELD)
            .nick("Maximum Held")
            .blurb("The largest budget a consumer may ask for: slots that it holds at once")
            .minimum(1)
            .default_value(default.max_held)
            .build(),
        /**
         * GstXmemSink:socket-mode:
         *
         * Who may connect, as the file mode of the pool's socket in octal: this user and root always, with `0660` the
         * socket's group too, with `0666` everybody. Who may connect can read all frames of the pool, and change none.
         * Other users also have to be able to enter the socket's directory.
         */
        glib::ParamSpecString::builder(PROP_SOCKET_MODE)
            .nick("Socket Mode")
            .blurb("File mode of the pool's socket in octal: who may connect (\"0600\" = this user and root)")
            .default_value(Some(default.socket_mode.as_str()))
            .build(),
        /**
         * GstXmemSink:socket-group:
         *
         * Group of the pool's socket: its name (as in /etc/group) or its number. `socket-mode` has to let the group in, as
         * `0660` does, and this user has to be a member of it. Without it the socket has the group that new files have.
         */
        glib::ParamSpecString::builder(PROP_SOCKET_GROUP)
            .nick("Socket Group")
            .blurb("Group whose members may connect, by name or number (with socket-mode=0660)")
            .default_value(Some(default.socket_group.as_str()))
            .build(),
        /**
         * GstXmemSink:allow-uids:
         *
         * Users that may connect besides those that `socket-mode` lets in: their numbers with commas in between. The
         * socket's file is then writable for all, since the kernel knows no list of users; everybody else is sent away
         * before anything is shared.
         */
        glib::ParamSpecString::builder(PROP_ALLOW_UIDS)
            .nick("Allowed Users")
            .blurb("Numbers of users that may connect too, with commas in between (\"1000,1001\")")
            .default_value(Some(default.allow_uids.as_str()))
            .build(),
        /**
         * GstXmemSink:pace:
         *
         * When a frame is handed over. A sink that waits for each frame's time adds the latency of the whole pipeline
         * to live input, which a consumer with a sink of its own then adds again. `auto` therefore hands live input
         * over as it comes and other input, such as a file, at its time. `sync=false` hands everything over at once,
         * whatever is set here. Either way each frame says when it is due; a consumer adds the latency of live input
         * that is handed over as it comes to its own.
         */
        glib::ParamSpecEnum::builder_with_default(PROP_PACE, default.pace)
            .nick("Pace")
            .blurb("Whether a frame is handed over at its time or as it comes (sync=false: always as it comes)")
            .mutable_playing()
            .build(),
        /**
         * GstXmemSink:cuda-ipc-mode:
         *
         * How consumers get at slots on CUDA devices. `vmm` is by descriptor: such memory lives for as long as anybody uses
         * it, also when this process was killed. `legacy` is by handle: it ends with this process, so a stop waits for
         * consumers; see #GstXmemSink:release-timeout. `auto` is `vmm` where the device can, else `legacy`.
         *
         * Without effect on frames in host memory, and where the plugin was built without CUDA.
         */
        glib::ParamSpecEnum::builder_with_default(PROP_CUDA_IPC_MODE, default.cuda_ipc_mode)
            .nick("CUDA IPC Mode")
            .blurb("How slots on CUDA devices are shared (without effect on host memory, and in builds without CUDA)")
            .build(),
        /**
         * GstXmemSink:cuda-device-id:
         *
         * The CUDA device that slots lie on which upstream is offered. -1 is the device that upstream or the application
         * uses already, or the first one.
         *
         * Without effect on frames in host memory, and where the plugin was built without CUDA.
         */
        glib::ParamSpecInt::builder(PROP_CUDA_DEVICE_ID)
            .nick("CUDA Device")
            .blurb("Number of the CUDA device for slots (-1 = that of the frames; without effect in builds without CUDA)")
            .minimum(-1)
            .default_value(default.cuda_device_id)
            .build(),
        /**
         * GstXmemSink:release-timeout:
         *
         * How long a stop waits for CUDA devices to end their work on frames that are out, and for consumers to give back
         * frames in memory that ends with this process (#GstXmemSink:cuda-ipc-mode `legacy`). Memory that is in use after
         * that is kept for as long as this process runs. Pools without frames on devices do not wait.
         *
         * Without effect where the plugin was built without CUDA.
         */
        glib::ParamSpecUInt64::builder(PROP_RELEASE_TIMEOUT)
            .nick("Release Timeout")
            .blurb(
                "Time in nanoseconds that a stop waits at most for frames on CUDA devices (without effect in builds \
                 without CUDA)",
            )
            .default_value(default.release_timeout)
            .build(),
        /**
         * GstXmemSink:num-clients:
         *
         * How many consumers are connected. Notified when one comes or goes.
         */
        glib::ParamSpecUInt::builder(PROP_NUM_CLIENTS)
            .nick("Number of Clients")
            .blurb("How many consumers are connected")
            .read_only()
            .build(),
        /**
         * GstXmemSink:stats:
         *
         * `application/x-xmemsink-stats` with these fields; after a stop they say what there was at its end.
         *
         * * `published`, `zero-copy`, `copied`, `dropped` (guint64): frames handed over, of these those that upstream
         *   wrote into their slot and those that were copied into one; frames that were not handed over because no
         *   slot was free.
         * * `late` (guint64): frames that were dropped because they came later than `max-lateness` allows; by default
         *   none are.
         * * `skipped` (guint64): these, and frames that lay outside of their segment or waited when there was a flush; of a list
         *   that is dropped as a whole, its first.
         * * `memory-copies` (guint64): how often an element upstream copied a frame out of its slot.
         * * `metas-dropped` (guint64), `dropped-metas` (`application/x-xmem-metas`): metas that could not travel with
         *   their frame, and how many there were of each name (guint64).
         * * `events`, `events-dropped` (guint64): events between frames that were handed over, and events that were
         *   not, since they mean something in this process only or found no slot; a warning names each kind of these
         *   once.
         * * `slots`, `slots-held`, `max-slots`, `regions` (guint), `bytes` (guint64): the pool's memory.
         * * `budget-limit` (string): `max-slots` or `max-bytes`, where that has no room for the budgets that consumers asked
         *   for; else empty.
         * * `devices` (GstValueArray of strings), `device-bytes` (guint64): the CUDA devices that slots lie on, and how their
         *   memory is shared, such as `0 NVIDIA H200 (vmm)`; of the bytes, those on devices.
         * * `cut-off`, `timed-out` (guint64): consumers that were disconnected, for nonsense or for holding all up.
         * * `clients` (GstValueArray of `application/x-xmem-client`): `id` (guint64), `pid`, `uid` (guint), `name`
         *   (string), `via` (string), `budget`, `held` (guint), `received`, `missed`, `copied`, `dropped`, `oldest-held-age`,
         *   `latency`, `waited-for` (guint64, times in nanoseconds), `device` (string): how it came by the memory of frames on CUDA
         *   devices, `vmm`, `legacy`, `same process`, or `none: ` and why; empty as long as it has not used any.
         */
        glib::ParamSpecBoxed::builder::<gst::Structure>(PROP_STATS)
            .nick("Statistics")
            .blurb("What the pool has done so far")
            .read_only()
            .build(),
    ]
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
