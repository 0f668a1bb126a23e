// SPDX-License-Identifier: MPL-2.0

//! One error enum per operation. Each message states the problem and the remedy.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use thiserror::Error;
use xmem_shm::abi::layout::VERSION;
use xmem_shm::abi::limits::{MAX_NAMED_ENTRIES, MAX_NAMED_SIZE, MAX_PARTS, MAX_REQUEST};
use xmem_shm::abi::video::LayoutError;

/// The message of each operation on a handle that was inherited through fork.
const FORKED: &str = "this handle belongs to the parent process: create a new one after fork";

/// The handle was inherited through fork.
pub(crate) struct Forked;

macro_rules! from_forked {
    ($($error:ident),*) => {
        $(impl From<Forked> for $error {
            #[cold]
            fn from(_: Forked) -> Self {
                Self::Forked
            }
        })*
    };
}

from_forked!(
    AcquireError,
    ImportError,
    PublishError,
    StickyError,
    UpstreamNeedError
);

/// A system call failed.
#[derive(Debug, Error)]
#[error("cannot {what}: {error}{}", remedy(error))]
#[non_exhaustive]
pub struct SystemError {
    /// The operation that failed.
    pub what: &'static str,
    /// Why it failed.
    #[source]
    pub error: io::Error,
}

/// The remedy for a system error that has the same one wherever it occurs.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => "; raise the limit of open files of the process (ulimit -n)",
        Some(Errno::NFILE) => "; raise the limit of open files of the host (fs.file-max)",
        Some(Errno::AGAIN) => {
            "; raise the limit of processes and threads (ulimit -u, TasksMax of systemd, pids.max)"
        }
        Some(Errno::NOMEM) => "; free memory, or raise the memory limit of the process (ulimit -v)",
        Some(Errno::PERM | Errno::NOSYS) => {
            "; a sandbox may forbid this system call, such as the seccomp profile of a container"
        }
        _ => "",
    }
}

impl SystemError {
    /// Adds the operation that failed.
    pub fn at<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self {
            what,
            error: error.into(),
        }
    }

    /// Whether the system has no descriptors or no memory left, which may pass.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(
            Errno::from_io_error(&self.error),
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN)
        )
    }
}

/// A pool name or its runtime directory cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("the pool name is empty: give it a name such as \"cam0\"")]
    Empty,
    /// The name contains control characters.
    #[error(
        "the pool name {0:?} has a control character in it: use letters, digits, '-', '_' and '.'"
    )]
    ControlCharacter(OsString),
    /// The name is `.` or `..`, or a path that ends in a slash.
    #[error("the pool name {0:?} names a directory: give a file name, or a path that ends in one")]
    Directory(OsString),
    /// The name is not UTF-8. A path may be.
    #[error(
        "the pool name {0:?} is not UTF-8: choose another one, or name the pool by the path of its socket"
    )]
    NotUtf8(OsString),
    /// The socket's path does not fit into a socket address.
    #[error(
        "the socket path {path:?} has {len} bytes, but may have at most {max}: choose a shorter pool name, or set \
         XMEM_RUNTIME_DIR to a shorter directory"
    )]
    TooLong {
        /// The path that does not fit.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
        /// The longest path that fits, in bytes.
        max: usize,
    },
    /// The directory of a pool that was given as a path does not exist.
    #[error("there is no directory {path:?}: create it, or use a pool name without a slash")]
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The runtime directory cannot be trusted.
    #[error(
        "the runtime directory {path:?} cannot be used: {reason}; set XMEM_RUNTIME_DIR to a directory of your own"
    )]
    RuntimeDir {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// Making a pool failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The pool's name or its directory cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Another producer has the pool.
    #[error(
        "pool {pool:?} already has a producer, {holder}: stop that one or choose another pool name"
    )]
    InUse {
        /// The pool.
        pool: String,
        /// The process that is its producer, as text (name and ID if known).
        holder: String,
    },
    /// A file that is not a socket has the path of the pool's socket.
    #[error("{path:?} exists and is not a socket: remove it or choose another pool name")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A file that no producer made has the path of the pool's lock file.
    #[error("{path:?} exists and is not a pool's lock file: remove it or choose another pool name")]
    NotALock {
        /// The path.
        path: PathBuf,
    },
    /// A file of another user has the path of one of the pool's files.
    #[error(
        "{path:?} belongs to user {uid}: choose another pool name or a directory of your own, \
         or have that user stop its producer and remove the file"
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// The user that owns it.
        uid: u32,
    },
    /// The pool's lock file cannot be made.
    #[error(
        "cannot create {path:?}: {error}{}", match remedy(error) {
            "" => "; choose a directory that this user can write to and that is not full",
            remedy => remedy,
        }
    )]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
    /// Settings contradict each other.
    #[error("{0}")]
    Settings(String),
    /// The device that makes DMA buffers cannot be opened.
    #[error("{}", no_udmabuf(.0))]
    Dmabuf(#[source] io::Error),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
}

fn no_udmabuf(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => {
            "load the kernel module udmabuf (modprobe udmabuf), and give the device to this container if it is one"
        }
        io::ErrorKind::PermissionDenied => {
            "add this user to the group of the device (kvm on Debian), or change its mode by a udev rule"
        }
        _ => "check that device",
    };
    format!(
        "cannot make DMA buffers, since /dev/udmabuf cannot be opened ({error}): {remedy}, or do not allow dmabuf"
    )
}

/// Why the files of a killed producer were not removed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// The pool's name or its directory cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The pool has a producer.
    #[error(
        "the files of pool {pool:?} were not removed, because it has a producer, {holder}: stop that one first"
    )]
    Live {
        /// The pool.
        pool: String,
        /// The process that is its producer, as text (name and ID if known).
        holder: String,
    },
    /// It belongs to another user.
    #[error(
        "{path:?} was not removed, because it belongs to user {uid}: that user can remove it, if no producer uses it"
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// The user that owns it.
        uid: u32,
    },
    /// The files were not made by a producer, or that is not certain.
    #[error(
        "{path:?} was not removed, because it may not be a file of a pool: if it is one, remove it yourself"
    )]
    NotAPools {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl From<CreateError> for RemoveError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Name(error) => Self::Name(error),
            CreateError::InUse { pool, holder } => Self::Live { pool, holder },
            CreateError::NotASocket { path } | CreateError::NotALock { path } => {
                Self::NotAPools { path }
            }
            CreateError::Foreign { path, uid } => Self::Foreign { path, uid },
            CreateError::Lock { error, .. } => SystemError::at("lock the pool")(error).into(),
            CreateError::System(error) => Self::System(error),
            CreateError::Settings(text) => {
                SystemError::at("remove it")(io::Error::other(text)).into()
            }
            CreateError::Dmabuf(error) => SystemError::at("make DMA buffers")(error).into(),
        }
    }
}

/// A region of shared memory could not be made or opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// There is not enough memory for it.
    #[error("{}", no_space(*size, error))]
    NoSpace {
        /// The region's size in bytes.
        size: usize,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
    /// Another process could truncate the memory, or it is not what its owner states.
    #[error("the memory is unsafe to use: {0}")]
    Untrusted(&'static str),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
}

fn no_space(size: usize, error: &io::Error) -> String {
    let errno = Errno::from_io_error(error);
    if matches!(errno, Some(Errno::MFILE | Errno::NFILE)) {
        let remedy = remedy(error);
        return format!("cannot create a region of {size} bytes: {error}{remedy}");
    }
    let limit = match errno {
        Some(Errno::NOMEM) => ", or raise the memory limit of the process (ulimit -v)",
        _ => "",
    };
    format!(
        "no memory for a region of {size} bytes ({error}): free memory (backing posix-shm: in /dev/shm), or lower max-slots, \
         max-bytes or history{limit}"
    )
}

impl RegionError {
    /// Whether the system gives no more memory or descriptors.
    fn is_shortage(&self) -> bool {
        match self {
            Self::NoSpace { .. } => true,
            Self::System(error) => error.is_shortage(),
            _ => false,
        }
    }
}

/// No slot could be acquired.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// All slots are in use, and the pool cannot grow. Frames that are released make room.
    #[error("{}", exhausted(pool, *slots, *max_slots, *max_bytes, shortage.as_deref()))]
    Exhausted {
        /// The pool.
        pool: String,
        /// The number of slots.
        slots: u32,
        /// The limit on slots.
        max_slots: u32,
        /// The limit on bytes; 0: none.
        max_bytes: u64,
        /// Why the pool cannot grow to its limits: a lack of memory or of descriptors. `None`: it has reached a limit.
        shortage: Option<Arc<AcquireError>>,
    },
    /// One frame is larger than the pool may be.
    #[error("{}", too_large(*size, *slot_size, *max_bytes))]
    TooLarge {
        /// The frame's size in bytes, with the room for its attachments.
        size: usize,
        /// The size of the slot that it would need.
        slot_size: u64,
        /// The limit in bytes; 0: the system's memory.
        max_bytes: u64,
    },
    /// A frame without bytes has no slot.
    #[error("a frame needs at least one byte: acquire a larger slot")]
    ZeroSize,
    /// The pool needed a new region and could not get one.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// An operation on a CUDA device failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] xmem_cuda::error::CudaError),
    /// No slot became free in time.
    #[error(
        "no slot became free before the timeout: release frames, or raise max-slots or max-bytes"
    )]
    Timeout,
    /// The wait was cancelled.
    #[error("the wait for a slot was cancelled")]
    Cancelled,
    /// The pool is closed.
    #[error("the pool is closed")]
    Closed,
    /// The handle was inherited through fork.
    #[error("{}", FORKED)]
    Forked,
}

fn exhausted(
    pool: &str,
    slots: u32,
    max_slots: u32,
    max_bytes: u64,
    shortage: Option<&AcquireError>,
) -> String {
    let used = format!("all {slots} slots of pool {pool:?} are in use");
    match shortage {
        None => format!(
            "{used}: release frames, or raise max-slots ({max_slots}) or max-bytes ({max_bytes}; 0 = no limit)"
        ),
        Some(error) => format!("{used}, and it cannot grow: {error}"),
    }
}

impl AcquireError {
    /// Whether memory or descriptors are lacking, which may pass.
    pub(crate) fn is_shortage(&self) -> bool {
        match self {
            Self::Region(error) => error.is_shortage(),
            #[cfg(feature = "cuda")]
            Self::Cuda(xmem_cuda::error::CudaError::OutOfMemory { .. }) => true,
            _ => false,
        }
    }
}

/// No slots were reserved for upstream.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UpstreamNeedError {
    /// The pool may not have as many slots.
    #[error(
        "pool {pool:?} cannot reserve {slots} slots for upstream: with its history and two more it would need {needed}, but \
         max-slots is {max_slots}: raise it"
    )]
    TooMany {
        /// The pool.
        pool: String,
        /// The number of slots that were asked for.
        slots: u32,
        /// The least number of slots that the pool would need.
        needed: u32,
        /// The limit on slots.
        max_slots: u32,
    },
    /// The handle was inherited through fork.
    #[error("{}", FORKED)]
    Forked,
}

/// The sticky state was not set.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StickyError {
    /// It has too many bytes.
    #[error("{}: it has {size} bytes and may have {MAX_NAMED_SIZE}", STICKY)]
    TooLarge {
        /// Its size in bytes, as it is stored.
        size: usize,
    },
    /// It has too many entries.
    #[error("{}: it has {count} entries and may have {MAX_NAMED_ENTRIES}", STICKY)]
    TooMany {
        /// The number.
        count: usize,
    },
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The handle was inherited through fork.
    #[error("{}", FORKED)]
    Forked,
}

impl StickyError {
    /// Whether the system lacks descriptors or memory. This may be temporary.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::System(error) if error.is_shortage())
    }
}

const STICKY: &str = "cannot keep the stream's sticky state";

/// A frame could not be published.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The payload in the metadata is outside of the slot.
    #[error(
        "the frame's bytes {offset}..{end} do not fit into its slot of {slot_size} bytes: acquire a larger slot"
    )]
    OutOfSlot {
        /// First byte of the payload in the slot.
        offset: u64,
        /// First byte after the payload.
        end: u64,
        /// The slot's size in bytes.
        slot_size: usize,
    },
    /// The attachments do not fit into the slot after the payload.
    #[error(
        "the frame's attachments have {needed} bytes, but its slot has room for only {room}: acquire the slot with \
         SlotSpec::attachments({needed})"
    )]
    NoRoomForAttachments {
        /// Size of the attachments in bytes, as they are stored.
        needed: usize,
        /// Bytes of room for them.
        room: usize,
    },
    /// There are more attachments than a consumer accepts.
    #[error(
        "the frame has {count} attachments, with its parts; the maximum is {MAX_NAMED_ENTRIES}: put several into one"
    )]
    TooManyAttachments {
        /// The number.
        count: usize,
    },
    /// Consumers would refuse the metadata.
    #[error("the frame's metadata is invalid: {reason}")]
    Metadata {
        /// The reason.
        reason: &'static str,
    },
    /// The lease belongs to another pool.
    #[error("this slot was acquired from another pool: publish it in that pool")]
    OtherPool,
    /// A consumer that joined meanwhile cannot join the pool of origin.
    #[error("a consumer cannot join the pool that the frame comes from: copy the frame")]
    NotReached,
    /// The event for the end of the device's work on the frame was not recorded.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(Box<xmem_cuda::error::CudaError>),
    /// The frame has no parts, or too many.
    #[error(
        "a frame may have 1 to {MAX_PARTS} parts, but this one has {count}: copy them into fewer"
    )]
    PartCount {
        /// The number.
        count: usize,
    },
    /// A part belongs to another pool.
    #[error(
        "a part of the frame belongs to another pool: import its memory into this pool, or copy it"
    )]
    PartOfOtherPool,
    /// A part exceeds its memory.
    #[error(
        "a part of the frame reaches beyond the end of its memory: check its offset and its size"
    )]
    PartOutOfMemory,
    /// Consumers of a lossless pool have not taken the frames that this one would overwrite.
    #[error("consumers are too far behind to take one more frame: call wait_for_room first")]
    NoRoom,
    /// The pool is closed.
    #[error("the pool is closed")]
    Closed,
    /// The handle was inherited through fork.
    #[error("{}", FORKED)]
    Forked,
}

/// An event was not published.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EventError {
    /// There is no slot for it.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// It was refused.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// Memory could not be imported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Its owner could shrink it or punch holes into it while it is read, or it cannot be used for another reason.
    #[error("this memory cannot be shared without a copy: {0}; copy the frame")]
    Memory(#[from] RegionError),
    /// It is on a CUDA device, and cannot be shared there.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] xmem_cuda::error::CudaError),
    /// The pool has the maximum number of imported memories.
    #[error(
        "the pool has imported {max} pieces of memory, as many as max-slots allows: raise max-slots, or copy the frame"
    )]
    TooMany {
        /// The limit.
        max: u32,
    },
    /// The pool is closed.
    #[error("the pool is closed")]
    Closed,
    /// The handle was inherited through fork.
    #[error("{}", FORKED)]
    Forked,
}

/// A frame cannot be forwarded without a copy; copy it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// It was not received from another pool.
    #[error("only frames that were received from another pool can be forwarded: copy this frame")]
    NotReceived,
    /// Its memory has no descriptor that could be forwarded.
    #[error("the frame's memory has no descriptor (backing posix-shm): copy the frame")]
    NoDescriptor,
    /// Its device memory has only a legacy handle. Its owner frees it when no consumer of the owner's pool uses it any more,
    /// and does not wait for the consumers of this pool.
    #[error(
        "the frame's device memory is freed when its producer exits (CUDA IPC mode legacy, or imported memory): copy the frame"
    )]
    EndsWithProducer,
    /// A consumer cannot hold frames in the pool of origin, or has not answered yet whether it can.
    #[error(
        "a consumer cannot join the pool that the frame comes from, or has not answered yet: copy the frame"
    )]
    NotReached,
    /// The wait for consumers was cancelled.
    #[error("the wait was cancelled")]
    Cancelled,
    /// Its memory was not imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// Its descriptor was not duplicated.
    #[error("cannot duplicate the descriptor of the frame's memory: {0}")]
    Descriptor(#[source] io::Error),
}

/// A frame's bytes are not in one piece of this process's memory.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotReadable {
    /// They are on a CUDA device.
    #[error("the frame is on a CUDA device: use ReadLease::cuda")]
    OnDevice,
    /// They are in this many parts.
    #[error("the frame is in {0} parts: read each of them (ReadLease::parts)")]
    InParts(usize),
    /// They are in a part that is not [mapped](crate::Part::map), or in parts that the producer's own lease does not have.
    #[error("the frame's memory is not mapped here: map its part (Part::map)")]
    NotMapped,
}

/// The planes of a frame are not in DMA buffers.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DmabufError {
    /// The frame is in host memory of which the consumer has no DMA buffer, or on a CUDA device.
    #[error(
        "the frame is in no DMA buffer: set the option dmabuf of this consumer, and dmabuf=allow on xmemsink (allow_dmabuf in Rust)"
    )]
    NoDmabuf,
    /// Another process wrote this.
    #[error("a plane of the frame is outside of its DMA buffers, or in several")]
    Outside,
    /// The format has no rows, or is not known.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// A request was not sent.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestError {
    /// It is too long.
    #[error("a request may have at most {MAX_REQUEST} bytes; this one has {size}")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
    },
    /// The producer has not read the earlier messages.
    #[error("the producer is not reading requests at the moment: try again later")]
    Busy,
    /// The producer is gone, or the consumer is.
    #[error("the connection to the producer has ended: connect again")]
    ProducerLost,
    /// The handle was inherited through fork.
    #[error("{}", FORKED)]
    Forked,
}

/// Waiting for consumers failed.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The timeout expired.
    #[error("the timeout has expired")]
    Timeout,
    /// The wait was cancelled.
    #[error("the wait was cancelled")]
    Cancelled,
    /// The pool is closed.
    #[error("the pool is closed")]
    Closed,
    /// The handle was inherited through fork.
    #[error("{}", FORKED)]
    Forked,
}

/// Joining a pool failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The pool's name or its directory cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There is no producer at the path (yet).
    #[error("no producer at {path:?}: start one, or check XMEM_RUNTIME_DIR on both sides")]
    NotFound {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The socket exists, but this user may not use it.
    #[error(
        "this user may not open {path:?}: admit the user on the producer's side (socket-mode, socket-group, allow-uids), and \
         let it enter the directory"
    )]
    Denied {
        /// The socket.
        path: PathBuf,
        /// Whether the socket is so new that its producer may still be setting its mode and its group.
        is_new: bool,
    },
    /// The producer refused.
    #[error("the producer of {path:?} refused: {reason}")]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The producer's reason as text.
        reason: String,
    },
    /// The producer uses another version of the shared format, as both sides report.
    #[error("{}", other_version(path, *version))]
    OtherVersion {
        /// The socket.
        path: PathBuf,
        /// The producer's version of the shared format.
        version: u32,
    },
    /// The process that listens there does not speak this protocol.
    #[error("{path:?} is not a producer of xmem: {reason}")]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The producer does not answer; it may be stopped.
    #[error(
        "the producer of {path:?} does not answer: it may be stopped, hung, or out of memory or descriptors; restart it if it \
         does not recover"
    )]
    NoAnswer {
        /// The socket.
        path: PathBuf,
    },
    /// The wait was cancelled.
    #[error("the wait for a producer was cancelled")]
    Cancelled,
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl ConnectError {
    /// Whether waiting may resolve the error: there is no producer yet, it is starting, or it does not answer now.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. } | Self::NoAnswer { .. } | Self::Denied { is_new: true, .. }
        )
    }

    /// Whether the system lacks descriptors or memory. This may be temporary.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::System(error) if error.is_shortage())
    }
}

fn other_version(path: &Path, version: u32) -> String {
    let old = if version < VERSION {
        "the producer"
    } else {
        "this program"
    };
    format!(
        "the producer of {path:?} uses version {version} of the shared format, and this program version {VERSION}: update {old} \
         and restart it"
    )
}

/// No frame was received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// No frame arrived in time.
    #[error("no frame came before the timeout")]
    Timeout,
    /// The wait was cancelled.
    #[error("the wait for a frame was cancelled")]
    Cancelled,
    /// The stream has ended. More frames may arrive if the producer starts a new stream. If the producer is gone, the next call
    /// returns [`ProducerLost`](Self::ProducerLost).
    #[error("the stream has ended")]
    Eos,
    /// The producer is gone, and all its frames have been received.
    #[error("the producer is gone: connect again")]
    ProducerLost,
    /// The budget of this consumer is used up.
    #[error("{}", over_budget(*budget))]
    OverBudget {
        /// The budget.
        budget: u32,
    },
    /// The producer disconnected this consumer. The frames that it still holds may be overwritten.
    #[error(
        "the producer disconnected this consumer, because its lease page was invalid: drop all frames, since they may be \
         overwritten, and connect again"
    )]
    CutOff,
    /// The producer of a lossless pool no longer waits for this consumer. The frames that it holds stay valid.
    #[error(
        "the producer waited longer than its lossless-timeout for this consumer: read frames faster or raise \
         lossless-timeout, and connect again"
    )]
    TimedOut,
    /// The frame's memory could not be received or mapped: this process may not have more descriptors, mappings or address
    /// space. The frame was not skipped; a later call tries again.
    #[error("the next frame's memory cannot be used: {0}")]
    Region(#[source] RegionError),
    /// The frame is not in a DMA buffer that this consumer can get, though it set [`dmabuf`](crate::ConsumerBuilder::dmabuf). The
    /// frame was not skipped.
    #[error("the frame cannot be received as a DMA buffer: {0}")]
    NoDmabuf(String),
    /// The control memory is corrupt. If only the entry of one frame is, that frame counts as missed, and a later call
    /// continues after it.
    #[error("the producer's control memory is corrupt: {0}; restart the producer")]
    Corrupt(&'static str),
    /// The handle was inherited through fork.
    #[error("{}", FORKED)]
    Forked,
}

fn over_budget(budget: u32) -> String {
    match budget {
        0 => "this consumer has a budget of 0 frames, because its pool has more consumers than slots for them: raise max-slots or \
              max-bytes of the producer, or let this consumer copy frames (over_budget)"
            .to_owned(),
        _ => format!(
            "this consumer has a budget of {budget} and holds as many frames: drop one before it receives the next, copy frames that \
             it keeps, or raise max_held"
        ),
    }
}

impl ReceiveError {
    /// Whether no frame arrived in time.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout)
    }

    /// Whether the stream has ended, or its producer has.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Eos | Self::ProducerLost)
    }
}

fn too_large(size: usize, slot_size: u64, max_bytes: u64) -> String {
    match max_bytes {
        0 => format!("the system cannot allocate {size} bytes"),
        _ => format!(
            "a frame of {size} bytes takes a slot of {slot_size} bytes, and all of the pool may have {max_bytes} (max-bytes): raise \
             max-bytes"
        ),
    }
}
