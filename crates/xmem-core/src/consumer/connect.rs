// SPDX-License-Identifier: MPL-2.0

//! Joins a pool, and queries a producer.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use xmem_shm::abi::budget::BudgetLimit;
use xmem_shm::abi::layout::{Control, LeasePage, OpenError, VERSION};
use xmem_shm::abi::text::Text;
use xmem_shm::abi::wire::StartFrom;
use xmem_shm::abi::wire::{MAX_MESSAGE, ToConsumer, ToProducer};
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::Deadline;
use xmem_shm::os::sealed;
use xmem_shm::os::{cred, socket};
use xmem_shm::printable::printable;

use super::Consumer;
use super::connection::Terms;
use super::listener::Listener;
use super::origin::Join;
use super::position::ResumePoint;
use super::session::Session;
use crate::cancel::{Canceller, Notifier};
use crate::error::{ConnectError, NameError, SystemError};
use crate::rendezvous::{check_default_dir, socket_path};
use crate::stats::PoolStats;

/// The time in which a producer that accepts a connection must answer.
const HANDSHAKE_TIME: Duration = Duration::from_secs(2);
const LEAST_HANDSHAKE_TIME: Duration = Duration::from_millis(500);
/// The longest wait for a cursor if the pool forwards frames: the consumer first joins the pools of origin.
const PLACE_TIME: Duration = Duration::from_secs(5);
/// The time in which `query` expects an answer.
const QUERY_TIME: Duration = Duration::from_secs(1);
/// The default of [`ConsumerBuilder::max_held`].
const DEFAULT_MAX_HELD: u32 = 8;
/// The maximum size of figures: those of as many consumers as a pool may have, with a long state.
const MAX_STATS_SIZE: usize = 8 << 20;
/// The time in which a new socket gets its mode and group. A socket exists before that, with a mode that depends on the umask.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// The intervals of attempts to reach a producer that does not exist yet: the first, and the longest, in which a producer of 120
/// frames a second publishes fewer frames than it keeps.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(25));

/// Makes a [`Consumer`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ConsumerBuilder {
    pool: OsString,
    /// `None`: the default.
    max_held: Option<u32>,
    name: String,
    start_from: StartFrom,
    /// The position of an earlier consumer.
    pub(super) resume: Option<ResumePoint>,
    pub(super) newest_only: bool,
    /// The time between two frames. `None`: all frames.
    pub(super) interval: Option<Duration>,
    pub(super) events: bool,
    pub(super) parts: bool,
    pub(super) dmabuf: bool,
    /// If set, it takes no frames. It only holds frames that the pool with this name forwards.
    holds_only_for: Option<String>,
    pub(super) busy_poll: Duration,
    pub(super) canceller: Canceller,
}

impl ConsumerBuilder {
    pub(super) fn new(pool: &OsStr) -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&program).file_name().unwrap_or_default();
        Self {
            pool: pool.to_owned(),
            max_held: None,
            name: name.to_string_lossy().into_owned(),
            start_from: StartFrom::Next,
            resume: None,
            newest_only: false,
            interval: None,
            events: false,
            parts: false,
            dmabuf: false,
            holds_only_for: None,
            busy_poll: Duration::ZERO,
            canceller: Canceller::new(),
        }
    }

    /// The requested budget: the number of slots that it can hold at once. Default: 8. The producer may grant fewer: at most
    /// [`ProducerBuilder::max_held`](crate::ProducerBuilder::max_held), and with many consumers an equal share.
    /// [`Consumer::budget`] returns the present budget, and [`Consumer::budget_limit`] the setting that limits it. The crate
    /// `log` gets a warning with both if the budget is smaller than requested here, or if a smaller budget is used up.
    pub fn max_held(mut self, slots: u32) -> Self {
        self.max_held = Some(slots.max(1));
        self
    }

    /// The name in the producer's figures. Default: the name of the program.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// The first frame to receive. Default: [`StartFrom::Next`].
    pub fn start_from(mut self, start_from: StartFrom) -> Self {
        self.start_from = start_from;
        self.resume = None;
        self
    }

    /// Continues after the last frame of an earlier consumer, which lost its producer or was disconnected
    /// ([`ReceiveError::TimedOut`](crate::ReceiveError::TimedOut)), instead of [`start_from`](Self::start_from). If the producer is the
    /// same, frames that it does not keep any more count as missed. With another producer, the first frame is the
    /// [oldest](StartFrom::Oldest).
    pub fn resume(mut self, consumer: &Consumer) -> Self {
        self.start_from = StartFrom::Oldest;
        self.resume = Some(consumer.resume_point());
        self
    }

    /// Remembers that an attempt failed. If there was no producer, the next one's first frames may come before this consumer joins,
    /// and it receives them too.
    pub(crate) fn note_failure(&mut self, error: &ConnectError) {
        if matches!(error, ConnectError::NotFound { .. }) && self.start_from == StartFrom::Next {
            self.start_from = StartFrom::Oldest;
        }
    }

    /// Whether to skip frames if a newer one exists, for programs that are slower than the stream and need no old frames. Skipped
    /// frames count as missed. Default: no; all frames that the producer keeps are received in order.
    pub fn newest_only(mut self, newest_only: bool) -> Self {
        self.newest_only = newest_only;
        self
    }

    /// The maximum rate of frames: at most `frames` in each `time`, on average, by the times of publication. Frames in between are
    /// skipped without a lease, and they do not wake this consumer. They count as [`skipped`](crate::ReceiveStats::skipped) and not
    /// as missed. Events between them come with the next frame. A lossless producer still waits until this consumer has skipped a
    /// frame, which wakes it. Do not use it for encoded streams, whose frames depend on one another. Default, and if `frames` is 0:
    /// no limit.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// // Five frames per second.
    /// let builder = xmem_core::Consumer::builder("cam0").max_rate(5, Duration::from_secs(1));
    /// ```
    pub fn max_rate(mut self, frames: u32, time: Duration) -> Self {
        self.interval = time.checked_div(frames).filter(|it| !it.is_zero());
        self
    }

    /// Whether to receive [events](crate::FrameMeta::event) of the stream. Default: no; they are skipped.
    pub fn events(mut self, events: bool) -> Self {
        self.events = events;
        self
    }

    /// Whether to receive frames that are not in their slot as [parts](crate::ReadLease::parts). Default: no; frames of one
    /// part are mapped, and frames of several parts are missed.
    pub fn parts(mut self, parts: bool) -> Self {
        self.parts = parts;
        self
    }

    /// Whether to receive each frame also as a [DMA buffer](crate::ReadLease::dmabuf), for devices. Default: no. If a frame is in no
    /// DMA buffer, or the producer does [not allow it](crate::ProducerBuilder::allow_dmabuf), receiving it is an error.
    pub fn dmabuf(mut self, dmabuf: bool) -> Self {
        self.dmabuf = dmabuf;
        self
    }

    fn holds_only_for(mut self, pool: &str) -> Self {
        self.holds_only_for = Some(pool.to_owned());
        self
    }

    /// The time to spin for a frame before sleeping. Default: zero. Spinning uses a core and saves the wake-up.
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll = time;
        self
    }

    /// The canceller of waits for a producer and for frames.
    pub fn canceller(mut self, canceller: &Canceller) -> Self {
        self.canceller = canceller.clone();
        self
    }

    /// The path of the socket.
    ///
    /// # Errors
    ///
    /// If no socket can have that name.
    pub fn socket_path(&self) -> Result<PathBuf, NameError> {
        socket_path(&self.pool)
    }

    /// Joins the pool. Does not wait for a producer, but up to 2 seconds for its answer, and up to 5 more seconds to join the pools
    /// that its frames come from.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NotFound`] when there is no producer, and others: see [`ConnectError`].
    pub fn connect(&self) -> Result<Consumer, ConnectError> {
        self.connect_within(HANDSHAKE_TIME)
    }

    /// Like `connect`, with a limit for the producer's answer.
    fn connect_within(&self, time: Duration) -> Result<Consumer, ConnectError> {
        let path = self.socket_path()?;
        check_default_dir(&self.pool, &path)?;
        let hello = ToProducer::Join {
            version: VERSION,
            max_held: self.max_held.unwrap_or(DEFAULT_MAX_HELD),
            start_from: self.start_from,
            name: Text::new(&self.name),
            via: Text::new(self.holds_only_for.as_deref().unwrap_or_default()),
        };
        let (socket, answer, fds) = ask_first(&path, &hello, time, &self.canceller)?;
        let protocol = |reason: &str| ConnectError::Protocol {
            path: path.clone(),
            reason: reason.to_owned(),
        };
        let ToConsumer::Welcome {
            version,
            budget,
            pool,
            origins,
            ..
        } = answer
        else {
            return Err(protocol("its first message was no welcome"));
        };
        if version != VERSION {
            return Err(ConnectError::OtherVersion { path, version });
        }
        let [control, page, wake_socket] = <[OwnedFd; 3]>::try_from(fds)
            .map_err(|_| protocol("its welcome came without memory"))?;
        let refused = |error| match error {
            OpenError::Invalid(what, reason) => protocol(&format!("its {what}: {reason}")),
            OpenError::System(error) => SystemError::at("map the pool's memory")(error).into(),
        };
        let control = Control::open(&control).map_err(refused)?;
        fault::point(Point::ControlMapped);
        let page = LeasePage::open(&page, control.constants().shape).map_err(refused)?;
        fault::point(Point::PageMapped);
        match socket_domain(&wake_socket) {
            Ok(AddressFamily::UNIX) => {}
            Err(error) if is_refused(&error.into()) => {
                return Err(SystemError::at("check the wake socket")(error).into());
            }
            // Watching another file could take any time.
            _ => return Err(protocol("its wake socket is none")),
        }
        let terms = Terms {
            asked: self.max_held.unwrap_or(DEFAULT_MAX_HELD),
            granted: budget.max(1),
            producer_pid: producer_pid(&socket),
            pool: pool.as_str().to_owned(),
            path,
        };
        let join = self.joins_origins(&terms);
        let started =
            Session::new(socket, control, page, wake_socket, terms, join).and_then(|session| {
                let session = Arc::new(session);
                let thread = Listener::start(&session)?;
                Ok((session, thread))
            });
        let (session, mut thread) = started.map_err(SystemError::at("start the control thread"))?;
        fault::point(Point::SessionStarted);
        let connection = session.connection();
        let limit = connection.budget_limit();
        if let Some(asked) = self.max_held
            && limit != BudgetLimit::Asked
            && self.holds_only_for.is_none()
            // For buffers by number a smaller budget is expected.
            && !connection.control().constants().shape.by_number
        {
            log::warn!(
                "pool {:?}: asked to hold {asked} slots at once, granted {}: raise {limit} of the producer",
                connection.pool_name(),
                connection.budget()
            );
        }
        if origins > 0
            && !connection.wait_for_place(Deadline::after(Some(PLACE_TIME)), &self.canceller)
        {
            connection.leave();
            thread.join();
            return Err(if self.canceller.is_cancelled() {
                ConnectError::Cancelled
            } else {
                ConnectError::NoAnswer {
                    path: connection.terms().path.clone(),
                }
            });
        }
        Ok(Consumer::new(session, thread, self))
    }

    /// Joins the pools of origin of frames. `None`: this consumer takes no frames.
    fn joins_origins(&self, terms: &Terms) -> Option<Arc<Join>> {
        if self.holds_only_for.is_some() {
            return None;
        }
        let (budget, pool, name) = (terms.granted, terms.pool.clone(), self.name.clone());
        Some(Arc::new(move |path: &str| {
            let origin = Consumer::builder(path)
                .max_held(budget)
                .name(&name)
                .holds_only_for(&pool)
                .connect()?;
            // Dropping the consumer notifies that producer that it takes no frames.
            Ok(origin.session().leases().clone())
        }))
    }

    /// Joins the pool. Waits for its producer if there is none, and then begins with the first frame, if the pool still has it. The
    /// timeout does not include the time, up to 5 seconds, to join the pools that frames of this pool come from.
    ///
    /// It can be called again for the next producer, with [`resume`](Self::resume). A [follower](Self::follow) does this
    /// automatically.
    ///
    /// # Errors
    ///
    /// After the timeout, [`ConnectError::NotFound`], or [`ConnectError::NoAnswer`] if a producer exists and does not answer; it has
    /// at least half a second to answer. [`ConnectError::Cancelled`] when the wait was cancelled. Errors that waiting cannot resolve
    /// are returned at once: an invalid name, a refusal, another protocol. A socket that denies access counts as a refusal
    /// after one second, because a new producer may not have set its mode yet.
    pub fn connect_wait(&self, timeout: Option<Duration>) -> Result<Consumer, ConnectError> {
        let deadline = Deadline::after(timeout);
        let notifier = Arc::new(Notifier::default());
        let _registration = self.canceller.register(&notifier);
        let mut pause = LOOK_AGAIN.0;
        let mut builder = self.clone();
        loop {
            let seen = notifier.count();
            if self.canceller.is_cancelled() {
                return Err(ConnectError::Cancelled);
            }
            // A busy producer gets time to answer, even if little is left.
            let time = deadline
                .left_up_to(HANDSHAKE_TIME)
                .max(LEAST_HANDSHAKE_TIME);
            let error = match builder.connect_within(time) {
                Err(error) if error.may_pass() => error,
                result => return result,
            };
            if deadline.is_over() {
                return Err(error);
            }
            builder.note_failure(&error);
            notifier.wait(seen, deadline.left_up_to(pause));
            pause = (pause * 2).min(LOOK_AGAIN.1);
        }
    }
}

/// Asks the producer of a pool for its figures. Waits at most one second.
///
/// [`PoolStats::pid`] is the producer's process ID in this process's PID namespace. The process IDs of consumers are those in the
/// producer's.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pool = dir.path().join("p.sock");
/// # let pool = pool.to_str().unwrap();
/// let producer = xmem_core::Producer::builder(pool).build()?;
/// let stats = xmem_core::discovery::query(pool)?;
/// assert_eq!(stats.pid, std::process::id());
/// assert_eq!(stats.published, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As for joining.
pub fn query(pool: impl AsRef<OsStr>) -> Result<PoolStats, ConnectError> {
    let pool = pool.as_ref();
    let path = socket_path(pool)?;
    check_default_dir(pool, &path)?;
    let question = ToProducer::Query { version: VERSION };
    let (socket, answer, mut fds) = ask_first(&path, &question, QUERY_TIME, &Canceller::new())?;
    let stats = match (answer, fds.pop()) {
        (ToConsumer::Stats, Some(fd)) => sealed::read(fd, MAX_STATS_SIZE)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .filter(PoolStats::is_possible),
        _ => None,
    };
    match stats {
        Some(stats) => Ok(PoolStats {
            pid: producer_pid(&socket),
            ..stats
        }),
        None => Err(ConnectError::Protocol {
            path,
            reason: "its answer is invalid".into(),
        }),
    }
}

/// The process ID of the producer in this PID namespace. 0: it has none here.
fn producer_pid(socket: impl AsFd) -> u32 {
    cred::peer(socket).map_or(0, |peer| peer.pid)
}

/// Connects, sends the first message, and receives the first answer.
fn ask_first(
    path: &Path,
    message: &ToProducer,
    time: Duration,
    cancel: &Canceller,
) -> Result<(OwnedFd, ToConsumer, Vec<OwnedFd>), ConnectError> {
    let socket = socket::connect_to(path).map_err(|error| connect_error(path, error))?;
    fault::point(Point::Connected);
    let no_answer = || ConnectError::NoAnswer {
        path: path.to_owned(),
    };
    let protocol = |reason: &str| ConnectError::Protocol {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    // A producer that refuses may already have closed the connection. Its reason can still be read.
    let has_sent = match socket::send(&socket, &message.encode(), &[]) {
        Err(error) if is_refused(&error) => {
            return Err(SystemError::at("send a message to the producer")(error).into());
        }
        sent => sent.is_ok(),
    };
    let deadline = Deadline::after(Some(time));
    let mut buffer = [0; MAX_MESSAGE + 1];
    loop {
        match socket::recv(&socket, &mut buffer) {
            Ok(Some(received)) => {
                if received.fds_lost {
                    let what = "take the descriptors that the producer sent";
                    return Err(SystemError::at(what)(Errno::MFILE).into());
                }
                let answer = ToConsumer::decode(received.bytes).ok_or_else(|| {
                    protocol("it answered something that is not of this protocol")
                })?;
                if let ToConsumer::Refused { version, reason } = answer {
                    let path = path.to_owned();
                    return Err(match version {
                        VERSION => ConnectError::Refused {
                            path,
                            reason: printable(reason.as_str()),
                        },
                        _ => ConnectError::OtherVersion { path, version },
                    });
                }
                let fds = received.fds;
                fault::point(Point::Answered);
                return Ok((socket, answer, fds));
            }
            Ok(None) => return Err(no_answer()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if is_refused(&error) => {
                return Err(SystemError::at("receive the producer's answer")(error).into());
            }
            Err(_) => {
                return Err(protocol(
                    "it answered something that is not of this protocol",
                ));
            }
        }
        if !has_sent || deadline.is_over() {
            return Err(no_answer());
        }
        if cancel.is_cancelled() {
            return Err(ConnectError::Cancelled);
        }
        // In short intervals, so that a cancelled wait ends.
        let turn = deadline.left_up_to(Duration::from_millis(50));
        let turn = Timespec::try_from(turn).ok();
        let answered = &mut [PollFd::new(&socket, PollFlags::IN)];
        retry_on_intr(|| poll(answered, turn.as_ref()))
            .map_err(SystemError::at("wait for the producer's answer"))?;
    }
}

/// Whether the kernel refuses the system call itself, as in a sandbox. The peer cannot cause that.
fn is_refused(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::PERM | Errno::NOSYS))
}

/// Whether a file was created or changed less than [`SETTLE_TIME`] ago.
fn is_new(path: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(path) else {
        return false;
    };
    let nanos = u32::try_from(meta.ctime_nsec()).unwrap_or_default();
    let changed = u64::try_from(meta.ctime())
        .map(|seconds| SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos));
    changed.is_ok_and(|changed| {
        // The clock may have been set back since then.
        let age = changed.elapsed().unwrap_or_else(|error| error.duration());
        age < SETTLE_TIME
    })
}

/// Whether there is a file at the path that is not a socket. No producer can replace it.
fn is_other_file(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| !meta.file_type().is_socket())
}

fn connect_error(path: &Path, error: io::Error) -> ConnectError {
    let path = path.to_owned();
    match Errno::from_io_error(&error) {
        Some(Errno::CONNREFUSED) if is_other_file(&path) => ConnectError::Protocol {
            path,
            reason: "it is not a socket: give the name of another pool, or remove it".into(),
        },
        Some(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => ConnectError::NotFound { path },
        Some(Errno::ACCESS) => {
            let is_new = is_new(&path);
            ConnectError::Denied { path, is_new }
        }
        Some(Errno::AGAIN) => ConnectError::NoAnswer { path },
        Some(Errno::PROTOTYPE) => ConnectError::Protocol {
            path,
            reason: "its socket is of another kind, so it is another program's".into(),
        },
        _ => SystemError::at("connect to the pool's socket")(error).into(),
    }
}
