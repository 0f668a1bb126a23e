// SPDX-License-Identifier: MPL-2.0

//! How a pool is made.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xmem_shm::abi::budget::BudgetLimit;
use xmem_shm::abi::layout::{Constants, Control, Shape};
use xmem_shm::abi::limits::MAX_SLOTS;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::lock::{LockError, LockFile};
use xmem_shm::os::{cred, socket};

use super::access::Access;
use super::commands::Commands;
use super::control;
use super::listener::Listener;
use super::peer::Departure;
use super::pool::Pool;
use super::sticky_log::StickyLog;
use super::{Owner, Producer};
use crate::delivery::Delivery;
use crate::error::{CreateError, RegionError};
use crate::region::{self, Backing};
use crate::rendezvous::{lock_path, prepare_dir, socket_path};
use crate::stats::ConsumerStats;

/// What happened to a pool's consumers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ConsumerEvent {
    /// It is connected.
    Connected(ConsumerStats),
    /// It is not connected any more.
    Disconnected {
        /// Its last figures.
        consumer: ConsumerStats,
        /// Why.
        reason: Departure,
    },
    /// Consumers may hold fewer slots than they asked for, and copy frames beyond that. The first time, and when they may hold
    /// none.
    BudgetsCut {
        /// How many each may hold.
        budget: u32,
        /// How many consumers there are.
        consumers: u32,
        /// What has room for no more.
        limit: BudgetLimit,
    },
    /// It has taken no frame for two seconds, for which a lossless producer waits. Once for each consumer.
    HoldsUp(ConsumerStats),
    /// It asks whoever feeds the pool for something ([`Consumer::request`](crate::Consumer::request)). What it says is
    /// not to be trusted, and it may ask as often as it likes.
    Request {
        /// Its figures.
        consumer: ConsumerStats,
        /// What it asks for.
        name: String,
        /// What it says to that, at most [`MAX_REQUEST`](crate::MAX_REQUEST) bytes.
        data: Vec<u8>,
    },
}

pub(super) type OnConsumer = Arc<dyn Fn(ConsumerEvent) + Send + Sync>;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) delivery: Delivery,
    pub(super) history: u32,
    pub(super) history_time: Duration,
    pub(super) min_slots: u32,
    pub(super) mixed_sizes: bool,
    pub(super) max_slots: u32,
    pub(super) max_bytes: u64,
    pub(super) max_consumers: u32,
    pub(super) max_held: u32,
    pub(super) backing: Backing,
    pub(super) access: Access,
    pub(super) lossless_timeout: Option<Duration>,
    pub(super) peers_may_write: bool,
    pub(super) on_consumer: Option<OnConsumer>,
    #[cfg(feature = "cuda")]
    pub(super) cuda_mode: crate::region::device::mode::Mode,
    #[cfg(feature = "cuda")]
    pub(super) release_timeout: Duration,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("delivery", &self.delivery)
            .field("history", &self.history)
            .field("max_slots", &self.max_slots)
            .field("backing", &self.backing)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            delivery: Delivery::Live,
            history: 4,
            history_time: Duration::ZERO,
            min_slots: 0,
            mixed_sizes: false,
            max_slots: 256,
            max_bytes: 0,
            max_consumers: 256,
            max_held: 8,
            backing: Backing::Memfd,
            access: Access::default(),
            lossless_timeout: None,
            peers_may_write: false,
            on_consumer: None,
            #[cfg(feature = "cuda")]
            cuda_mode: crate::region::device::mode::Mode::Auto,
            #[cfg(feature = "cuda")]
            release_timeout: Duration::from_secs(5),
        }
    }
}

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

    /// What happens when a consumer is slow. Default: [`Delivery::Live`].
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.settings.delivery = delivery;
        self
    }

    /// How many of the newest frames are kept for consumers, at least 1. Default: 4. A live consumer that is further
    /// behind skips what is older.
    pub fn history(mut self, frames: u32) -> Self {
        self.settings.history = frames.max(1);
        self
    }

    /// Keeps more frames than the newest `history` in a live pool: those whose time is not further than this from the time of
    /// the newest one, 64 entries at most. Default: zero.
    ///
    /// So a consumer may lag behind by a time, however many frames that are. These further frames are kept as long as nothing
    /// else needs their slots, so nobody is promised less for them. Frames without a time are not kept for longer,
    /// nor are those with a release hook or with pieces, since somebody waits for what they lie in.
    pub fn history_time(mut self, time: Duration) -> Self {
        self.settings.history_time = time;
        self
    }

    /// Keeps no frames for consumers that come later: a slot is free as soon as nobody needs it. For lossless pools, and
    /// those that live by counts ([`WriteLease::keep_until`](crate::WriteLease::keep_until)).
    pub fn without_history(mut self) -> Self {
        self.settings.history = 0;
        self
    }

    /// Slots of the first region. Default: 0, as many as upstream needs.
    pub fn min_slots(mut self, slots: u32) -> Self {
        self.settings.min_slots = slots;
        self
    }

    /// Frames of different sizes take turns, as messages do: slots of one size are kept for a while when others are in use.
    /// Default: no, as with video: another size means that the old one is over.
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
    /// of what `max_slots` and `max_bytes` have room for, and more again when others leave.
    pub fn max_held(mut self, slots: u32) -> Self {
        self.settings.max_held = slots.clamp(1, MAX_SLOTS);
        self
    }

    /// Where the slots lie. Default: [`Backing::Memfd`].
    pub fn backing(mut self, backing: Backing) -> Self {
        self.settings.backing = backing;
        self
    }

    /// Permissions of the socket. Default: `0o600`. With the group's or everybody's write permission, such users may
    /// join too.
    pub fn socket_mode(mut self, mode: u32) -> Self {
        self.settings.access.mode = mode & 0o777;
        self
    }

    /// Group of the socket, by name (in /etc/group) or number. Default: the process's own. It may join if `socket_mode`
    /// has its write permission, as `0o660` has.
    pub fn socket_group(mut self, group: Option<String>) -> Self {
        self.settings.access.group = group;
        self
    }

    /// Users that may join besides those that `socket_mode` lets in. The socket's file is then writable for everybody,
    /// since the kernel knows no list of users; the producer sends others away before anything is shared.
    pub fn allow_uids(mut self, uids: Vec<u32>) -> Self {
        self.settings.access.allow_uids = uids;
        self
    }

    /// How long a lossless pool waits for a consumer that takes nothing. Default: `None`, for ever.
    pub fn lossless_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.settings.lossless_timeout = timeout;
        self
    }

    /// Lets consumers write into slots that the producer grants them. Regions are then sealed against resizing only,
    /// so a consumer could also write where it should not. Default: no.
    pub fn peers_may_write(mut self, may: bool) -> Self {
        self.settings.peers_may_write = may;
        self
    }

    /// Is called when a consumer comes, goes or asks for something, on the pool's control thread. It must not block:
    /// nobody can join meanwhile.
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
    /// [`CreateError::InUse`] when another producer has the pool, and others as [`CreateError`] says.
    pub fn build(self) -> Result<Producer, CreateError> {
        let Self { pool, mut settings } = self;
        let least = settings.history.saturating_add(2);
        if settings.max_slots < least || settings.max_slots > MAX_SLOTS {
            return Err(CreateError::Settings(format!(
                "max-slots is {}: with history {} it has to be at least {least}, and at most {MAX_SLOTS}",
                settings.max_slots, settings.history
            )));
        }
        if settings.peers_may_write && settings.backing != Backing::Memfd {
            return Err(CreateError::Settings(
                "consumers can only be let write into pools of backing memfd".into(),
            ));
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
        // From here on this process is the only one that may touch the pool's files.
        let shm_prefix = region::shm_prefix(&socket);
        // Whatever this producer's own backing is.
        region::sweep_shm(&shm_prefix);
        let constants = Constants {
            shape: Shape::new(settings.max_slots),
            pool_id: xmem_shm::os::random::u64(),
            lossless: settings.delivery == Delivery::Lossless,
            history: settings.history,
        };
        let (control, control_fd) =
            Control::create(constants).map_err(|error| CreateError::System {
                what: "make control memory",
                error,
            })?;
        let sticky = StickyLog::new().map_err(|error| match error {
            RegionError::System { what, error } => CreateError::System { what, error },
            other => CreateError::Settings(other.to_string()),
        })?;
        let listener = Listener::bind(&socket, lock, &settings.access)?;
        let commands = Arc::new(Commands::new().map_err(|error| CreateError::System {
            what: "make an eventfd",
            error,
        })?);
        let pool = Arc::new(Pool::new(
            pool.to_string_lossy().into_owned(),
            socket,
            settings,
            control,
            control_fd,
            commands,
            shm_prefix,
            sticky,
        ));
        let thread = control::spawn(&pool, listener).map_err(|error| CreateError::System {
            what: "start the control thread",
            error,
        })?;
        fault::point(Point::ThreadStarted);
        Ok(Producer {
            owner: Arc::new(Owner::new(pool, thread)),
        })
    }
}

/// Whether this process listens there. The kernel says so: numbers in a file may be of another PID namespace.
fn is_own(path: &Path) -> bool {
    let listener = socket::connect_to(path).and_then(cred::peer);
    listener.is_ok_and(|peer| peer.pid == std::process::id())
}

/// Makes this process the pool's producer.
pub(super) fn take_lock(pool: &OsStr, socket: &Path) -> Result<LockFile, CreateError> {
    let pid = std::process::id();
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let own = format!("{} (process {pid})", program.trim());
    LockFile::acquire(&lock_path(socket), &own).map_err(|error| match error {
        LockError::Held(holder) => CreateError::InUse {
            pool: pool.to_string_lossy().into_owned(),
            holder: if is_own(socket) {
                format!("{own}, which is this very process")
            } else if holder.is_empty() {
                "another process".into()
            } else {
                holder
            },
        },
        LockError::NotALock => CreateError::NotALock {
            path: lock_path(socket),
        },
        LockError::Foreign(uid) => CreateError::Foreign {
            path: lock_path(socket),
            uid,
        },
        LockError::Io(error) => match error.kind() {
            ErrorKind::PermissionDenied
            | ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::StorageFull
            | ErrorKind::ReadOnlyFilesystem => CreateError::Lock {
                path: lock_path(socket),
                error,
            },
            _ => CreateError::System {
                what: "lock the pool",
                error,
            },
        },
    })
}
