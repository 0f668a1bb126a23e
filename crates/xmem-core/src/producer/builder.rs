// SPDX-License-Identifier: MPL-2.0

//! The options of a new pool.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Duration;

use xmem_shm::abi::layout::{Constants, Control};
use xmem_shm::abi::limits::{MAX_CONSUMERS, MAX_SLOTS};
use xmem_shm::fault::{self, Point};
use xmem_shm::os::udmabuf::Udmabuf;

use super::control::listener::Listener;
use super::control::lock_file::take_lock;
use super::pool::Pool;
use super::pool::event::Commands;
use super::pool::event::PoolEvent;
use super::pool::lookup::StickyLog;
use super::pool::settings::Settings;
use super::{Owner, Producer, control};
use crate::delivery::Delivery;
use crate::error::{CreateError, SystemError};
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

    /// Whether a slow consumer misses frames or delays the producer. Default: [`Delivery::Live`].
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.settings.delivery = delivery;
        self
    }

    /// The number of newest frames that are kept for consumers. Default: 4. A live consumer that is further behind skips older
    /// frames.
    ///
    /// 0: a slot is free as soon as no reference is left. For lossless pools, and for pools that keep frames by counts
    /// ([`WriteLease::keep_until`](crate::WriteLease::keep_until)).
    pub fn history(mut self, frames: u32) -> Self {
        self.settings.history = frames;
        self
    }

    /// In a live pool, also keeps older frames than the newest `history`: frames that a connected consumer has not taken yet, for
    /// this long after they were published, or longer if [the consumer asks for it](crate::Consumer::keep_for_longer). At most
    /// 952 entries and 256 MiB. Default: zero, and a consumer cannot ask.
    ///
    /// So a consumer can lag by this time at any frame rate. These frames are kept only while nothing else needs their slots,
    /// and do not reduce the budgets of consumers. Frames with a release hook or with parts are not kept, because upstream waits
    /// for their memory.
    pub fn history_time(mut self, time: Duration) -> Self {
        self.settings.history_time = time;
        self
    }

    /// Finds buffers by number: each slot has a record of its newest frame.
    pub(crate) fn by_number(mut self) -> Self {
        self.settings.by_number = true;
        self
    }

    /// The number of slots of the first region. Default: 0, as many as upstream needs.
    pub fn min_slots(mut self, slots: u32) -> Self {
        self.settings.min_slots = slots;
        self
    }

    /// Whether to keep unused slots for a while when the size of frames changes. Use it for streams with mixed sizes, such as
    /// messages. Default: no, because a video stream rarely returns to an earlier size.
    pub fn mixed_sizes(mut self, mixed: bool) -> Self {
        self.settings.mixed_sizes = mixed;
        self
    }

    /// The maximum number of slots, at least 2 more than `history`. Default: 256. Regions are made when they are needed.
    pub fn max_slots(mut self, slots: u32) -> Self {
        self.settings.max_slots = slots;
        self
    }

    /// The maximum number of slots of up to 64 KiB, if that is more than `max_slots`. Default: 0. The budgets of consumers depend only
    /// on `max_slots`. So the further slots are for frames that are kept for [a time](Self::history_time).
    pub fn small_slots(mut self, slots: u32) -> Self {
        self.settings.small_slots = slots.min(MAX_SLOTS);
        self
    }

    /// The maximum size of all regions in bytes. Default: 0, no limit.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.settings.max_bytes = bytes;
        self
    }

    /// The maximum number of consumers. Default: 256.
    pub fn max_consumers(mut self, consumers: u32) -> Self {
        self.settings.max_consumers = consumers;
        self
    }

    /// The maximum budget of a consumer, in slots. Default: 8. With many consumers, each gets an equal share of the slots that
    /// `max_slots` and `max_bytes` allow. The shares grow again when consumers leave.
    pub fn max_held(mut self, slots: u32) -> Self {
        self.settings.max_held = slots.clamp(1, MAX_SLOTS);
        self
    }

    /// The kind of memory for slots. Default: [`Backing::Memfd`].
    pub fn backing(mut self, backing: Backing) -> Self {
        self.settings.backing = backing;
        self
    }

    /// Whether consumers that [ask for it](crate::ConsumerBuilder::dmabuf) get slots in host memory as DMA buffers, which devices
    /// import without a copy. Default: no.
    ///
    /// **Each of them can then write to every frame**, because the kernel makes no read-only DMA buffers. The producer needs access
    /// to /dev/udmabuf, [`Backing::Memfd`], and one more descriptor for each slot.
    pub fn allow_dmabuf(mut self, allow: bool) -> Self {
        self.settings.allow_dmabuf = allow;
        self
    }

    /// The permissions of the socket. Default: `0o600`. With write permission for the group or for all users, these can also
    /// join.
    pub fn socket_mode(mut self, mode: u32) -> Self {
        self.settings.access.mode = mode & 0o777;
        self
    }

    /// The group of the socket, by name (in /etc/group) or number. Default: the group of the process. Its members can join if
    /// `socket_mode` has write permission for the group, as `0o660` has.
    pub fn socket_group(mut self, group: Option<String>) -> Self {
        self.settings.access.group = group;
        self
    }

    /// Further users that can join, in addition to those that `socket_mode` admits. The socket is then writable for all users,
    /// because a file has no list of users. The producer refuses other users before it shares anything.
    pub fn allow_uids(mut self, uids: Vec<u32>) -> Self {
        self.settings.access.allow_uids = uids;
        self
    }

    /// The time after which a lossless pool disconnects a consumer that takes nothing. Default: `None`, never.
    pub fn lossless_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.settings.lossless_timeout = timeout;
        self
    }

    /// Calls `f` on the pool's control thread for each [`PoolEvent`]: a consumer joins, leaves, sends a request, and others. It
    /// must not block, because no consumer can join during the call.
    pub fn on_event(mut self, f: impl Fn(PoolEvent) + Send + Sync + 'static) -> Self {
        self.settings.on_event = Some(Arc::new(f));
        self
    }

    /// The way to share memory of slots on CUDA devices. Default: [`Mode::Auto`](crate::region::device::mode::Mode).
    #[cfg(feature = "cuda")]
    pub fn cuda_mode(mut self, mode: crate::region::device::mode::Mode) -> Self {
        self.settings.cuda_mode = mode;
        self
    }

    /// The longest wait of [`close`](Producer::close) for devices to complete their work on frames in use, and for consumers to
    /// release frames in device memory that ends with this process (legacy handles). Default: 5 seconds. Pools without frames
    /// on devices do not wait.
    #[cfg(feature = "cuda")]
    pub fn release_timeout(mut self, timeout: Duration) -> Self {
        self.settings.release_timeout = timeout;
        self
    }

    /// Makes the pool. Consumers can then join.
    ///
    /// # Errors
    ///
    /// [`CreateError::InUse`] when another producer has the pool; see [`CreateError`] for the others.
    pub fn build(self) -> Result<Producer, CreateError> {
        let Self { pool, mut settings } = self;
        let least = settings.history.saturating_add(2);
        if least > MAX_SLOTS {
            return Err(CreateError::Settings(format!(
                "history is {}, and it may be at most {}",
                settings.history,
                MAX_SLOTS - 2
            )));
        }
        if settings.min_slots > settings.max_slots {
            return Err(CreateError::Settings(format!(
                "min-slots is {}, and max-slots only {}: lower min-slots, or raise max-slots",
                settings.min_slots, settings.max_slots
            )));
        }
        if settings.max_slots < least || settings.max_slots > MAX_SLOTS {
            return Err(CreateError::Settings(format!(
                "max-slots is {}: with history {} it has to be at least {least}, and at most {MAX_SLOTS}",
                settings.max_slots, settings.history
            )));
        }
        if !(1..=MAX_CONSUMERS).contains(&settings.max_consumers) {
            return Err(CreateError::Settings(format!(
                "max-consumers is {}, and it may be 1 to {MAX_CONSUMERS}",
                settings.max_consumers
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
        if settings.allow_dmabuf {
            if settings.backing == Backing::PosixShm {
                return Err(CreateError::Settings(
                    "DMA buffers cannot be made of backing posix-shm: use backing memfd, or do not allow dmabuf".into(),
                ));
            }
            let device = Udmabuf::open().map_err(CreateError::Dmabuf)?;
            settings.udmabuf = Some(Arc::new(device));
        }
        let socket = socket_path(&pool)?;
        prepare_dir(&pool, &socket)?;
        let lock = take_lock(&pool, &socket)?;
        // From here on only this process may change the pool's files.
        let shm_prefix = region::shm_prefix(&socket);
        // With any backing, because an earlier producer may have left segments.
        region::sweep_shm(&shm_prefix);
        let constants = Constants {
            shape: settings.shape(),
            pool_id: xmem_shm::os::random::u64(),
            lossless: settings.delivery == Delivery::Lossless,
            history: settings.history,
        };
        let (control, control_fd) =
            Control::create(constants).map_err(SystemError::at("make control memory"))?;
        let sticky = StickyLog::new()?;
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
