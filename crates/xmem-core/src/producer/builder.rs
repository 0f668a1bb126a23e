// SPDX-License-Identifier: MPL-2.0

//! How a pool is made.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Duration;

use xmem_shm::abi::layout::{Constants, Control};
use xmem_shm::abi::limits::MAX_SLOTS;
use xmem_shm::fault::{self, Point};

use super::commands::Commands;
use super::control;
use super::event::ConsumerEvent;
use super::listener::Listener;
use super::lock_file::take_lock;
use super::pool::Pool;
use super::settings::Settings;
use super::sticky_log::StickyLog;
use super::{Owner, Producer};
use crate::delivery::Delivery;
use crate::error::{CreateError, RegionError, SystemError};
use crate::region::{self, Backing};
use crate::rendezvous::{prepare_dir, socket_path};

/// Makes a [`Producer`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ProducerBuilder {
    pool: OsString,
    settings: Settings,
}

impl ProducerBuilder {
    pub(super) fn new(pool: &OsStr) -> Self {
        Self {
            pool: pool.to_owned(),
            settings: Settings::default(),
        }
    }

    /// How the pool treats a slow consumer. Default: [`Delivery::Live`].
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.settings.delivery = delivery;
        self
    }

    /// How many of the newest frames are kept for consumers, at least 1. Default: 4. A live consumer that is further
    /// behind skips older frames.
    pub fn history(mut self, frames: u32) -> Self {
        self.settings.history = frames.max(1);
        self
    }

    /// Keeps more frames than the newest `history` in a live pool: those that a connected consumer has yet to take, and whose
    /// time is not further than this from the time of the newest one, 64 entries at most. Default: zero.
    ///
    /// So a consumer may lag behind by a time, however many frames that are. These further frames are kept only while nothing
    /// else needs their slots; they do not reduce the budgets of consumers. Frames without a time are not kept for longer, nor
    /// are frames with a release hook or with parts, because upstream waits for their memory.
    pub fn history_time(mut self, time: Duration) -> Self {
        self.settings.history_time = time;
        self
    }

    /// Keeps no frames for consumers that come later: a slot is free as soon as no reference is left. For lossless pools,
    /// and for pools that keep frames by counts ([`WriteLease::keep_until`](crate::WriteLease::keep_until)).
    pub fn without_history(mut self) -> Self {
        self.settings.history = 0;
        self
    }

    /// Buffers are found by number: each slot has a record of its newest frame.
    pub(crate) fn by_number(mut self) -> Self {
        self.settings.by_number = true;
        self
    }

    /// Slots of the first region. Default: 0, as many as upstream needs.
    pub fn min_slots(mut self, slots: u32) -> Self {
        self.settings.min_slots = slots;
        self
    }

    /// For frames of different sizes in turn, as messages are: slots of one size are kept for a while when others are in
    /// use. Default: no, as for video, where another size replaces the old one.
    pub fn mixed_sizes(mut self, mixed: bool) -> Self {
        self.settings.mixed_sizes = mixed;
        self
    }

    /// The most slots there may be. Default: 256. Regions are made as they are needed.
    pub fn max_slots(mut self, slots: u32) -> Self {
        self.settings.max_slots = slots;
        self
    }

    /// The most bytes that all regions may have. Default: 0, no limit.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.settings.max_bytes = bytes;
        self
    }

    /// The most consumers that may be connected. Default: 256.
    pub fn max_consumers(mut self, consumers: u32) -> Self {
        self.settings.max_consumers = consumers;
        self
    }

    /// The largest budget that a consumer may have, in slots. Default: 8. Where there are many consumers, each gets an equal share
    /// of the slots that `max_slots` and `max_bytes` allow, and more again when others leave.
    pub fn max_held(mut self, slots: u32) -> Self {
        self.settings.max_held = slots.clamp(1, MAX_SLOTS);
        self
    }

    /// Where the slots lie. Default: [`Backing::Memfd`].
    pub fn backing(mut self, backing: Backing) -> Self {
        self.settings.backing = backing;
        self
    }

    /// Permissions of the socket. Default: `0o600`. With write permission for the group or for all users, these may
    /// join too.
    pub fn socket_mode(mut self, mode: u32) -> Self {
        self.settings.access.mode = mode & 0o777;
        self
    }

    /// Group of the socket, by name (in /etc/group) or number. Default: the process's own. Its members may join if
    /// `socket_mode` has write permission for the group, as `0o660` has.
    pub fn socket_group(mut self, group: Option<String>) -> Self {
        self.settings.access.group = group;
        self
    }

    /// Users that may join besides those that `socket_mode` admits. The socket's file is then writable for all,
    /// because the kernel has no list of users for a file; the producer refuses other users before anything is shared.
    pub fn allow_uids(mut self, uids: Vec<u32>) -> Self {
        self.settings.access.allow_uids = uids;
        self
    }

    /// How long a lossless pool waits for a consumer that takes nothing. Default: `None`, for ever.
    pub fn lossless_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.settings.lossless_timeout = timeout;
        self
    }

    /// Calls `f` when a consumer comes, goes or sends a request, on the pool's control thread. It must not block: no
    /// consumer can join meanwhile.
    pub fn on_consumer(mut self, f: impl Fn(ConsumerEvent) + Send + Sync + 'static) -> Self {
        self.settings.on_consumer = Some(Arc::new(f));
        self
    }

    /// How the memory of slots on CUDA devices is shared. Default: [`Mode::Auto`](crate::region::device::mode::Mode).
    #[cfg(feature = "cuda")]
    pub fn cuda_mode(mut self, mode: crate::region::device::mode::Mode) -> Self {
        self.settings.cuda_mode = mode;
        self
    }

    /// How long [`close`](Producer::close) waits for devices to end their work on frames that are out, and for consumers to
    /// give back frames in device memory that ends with this process (legacy handles). Default: 5 seconds. Pools without
    /// frames on devices do not wait.
    #[cfg(feature = "cuda")]
    pub fn release_timeout(mut self, timeout: Duration) -> Self {
        self.settings.release_timeout = timeout;
        self
    }

    /// Makes the pool. Consumers can join from here on.
    ///
    /// # Errors
    ///
    /// [`CreateError::InUse`] when another producer has the pool; see [`CreateError`] for the others.
    pub fn build(self) -> Result<Producer, CreateError> {
        let Self { pool, mut settings } = self;
        let least = settings.history.saturating_add(2);
        if settings.max_slots < least || settings.max_slots > MAX_SLOTS {
            return Err(CreateError::Settings(format!(
                "max-slots is {}: with history {} it has to be at least {least}, and at most {MAX_SLOTS}",
                settings.max_slots, settings.history
            )));
        }
        settings.access.resolve()?;
        if settings.backing == Backing::PosixShm && settings.access.admits_others() {
            return Err(CreateError::Settings(
                "a pool of backing posix-shm serves one user only, since such memory cannot be sealed: \
                 use backing memfd, or leave socket-mode at 0600 and allow-uids empty"
                    .into(),
            ));
        }
        settings.min_slots = settings.min_slots.min(settings.max_slots);
        let socket = socket_path(&pool)?;
        prepare_dir(&pool, &socket)?;
        let lock = take_lock(&pool, &socket)?;
        // From here on only this process may touch the pool's files.
        let shm_prefix = region::shm_prefix(&socket);
        // Whatever the backing of this producer: an earlier one may have left segments.
        region::sweep_shm(&shm_prefix);
        let constants = Constants {
            shape: settings.shape(),
            pool_id: xmem_shm::os::random::u64(),
            lossless: settings.delivery == Delivery::Lossless,
            history: settings.history,
        };
        let (control, control_fd) =
            Control::create(constants).map_err(SystemError::at("make control memory"))?;
        let sticky = StickyLog::new().map_err(|error| match error {
            RegionError::System(error) => CreateError::System(error),
            other => CreateError::Settings(other.to_string()),
        })?;
        let listener = Listener::bind(&socket, lock, &settings.access)?;
        let commands = Commands::new().map_err(SystemError::at("make an eventfd"))?;
        let pool = Arc::new(Pool::new(
            pool.to_string_lossy().into_owned(),
            socket,
            settings,
            control,
            control_fd,
            Arc::new(commands),
            shm_prefix,
            sticky,
        ));
        let thread =
            control::spawn(&pool, listener).map_err(SystemError::at("start the control thread"))?;
        fault::point(Point::ThreadStarted);
        Ok(Producer {
            owner: Arc::new(Owner::new(pool, thread)),
        })
    }
}
