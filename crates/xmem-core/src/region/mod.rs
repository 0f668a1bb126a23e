// SPDX-License-Identifier: MPL-2.0

//! Regions: blocks of shared memory that hold slots, with one kind for each way to share memory.

pub(crate) mod device;
mod dmabuf;
mod imported;
mod memfd;
mod posix_shm;

use std::any::Any;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use xmem_shm::abi::device_header::TwinKind;
use xmem_shm::lock::lock;
use xmem_shm::os::mapping::Mapping;
use xmem_shm::os::udmabuf::Udmabuf;

use crate::error::RegionError;
use dmabuf::ReceivedBuffers;

pub use dmabuf::Dmabuf;
pub(crate) use imported::Imported;
pub use posix_shm::remove_stale_segments;
pub(crate) use posix_shm::{prefix as shm_prefix, sweep as sweep_shm};

/// The memory of a pool's slots.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backing {
    /// Sealed anonymous memory: consumers can neither write nor truncate it, and no file remains.
    #[default]
    Memfd,
    /// A named segment under /dev/shm, for programs that open it by name. It cannot be sealed, so such a pool serves one
    /// user only.
    PosixShm,
}

/// Settings of a new region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionSettings<'a> {
    pub(crate) backing: Backing,
    /// Prefix of the segments' names.
    pub(crate) shm_prefix: &'a str,
    /// Makes a DMA buffer for each slot of this size.
    pub(crate) udmabuf: Option<(&'a Udmabuf, usize)>,
}

/// A writable region in its producer.
#[derive(Debug)]
pub(crate) enum Region {
    Memfd(memfd::Owned),
    PosixShm(posix_shm::Owned),
    Cuda(device::Owned),
}

/// The content of a message that sends a region to a consumer.
#[derive(Debug)]
pub(crate) enum Ticket<Fd> {
    Memfd(Fd),
    PosixShm(String),
    Imported(Fd),
    /// The host half of a CUDA region, and its device memory if it has a descriptor.
    Cuda(Fd, Option<Fd>),
}

impl Region {
    /// Allocates a region. All of its memory is reserved.
    pub(crate) fn create(len: usize, settings: RegionSettings<'_>) -> Result<Self, RegionError> {
        match settings.backing {
            Backing::Memfd => memfd::Owned::create(len, settings.udmabuf).map(Self::Memfd),
            Backing::PosixShm => {
                posix_shm::Owned::create(len, settings.shm_prefix).map(Self::PosixShm)
            }
        }
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        match self {
            Self::Memfd(region) => region.mapping.ptr(),
            Self::PosixShm(region) => region.ptr(),
            Self::Cuda(region) => region.mapping().ptr(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memfd(region) => region.mapping.len(),
            Self::PosixShm(region) => region.len(),
            Self::Cuda(region) => region.mapping().len(),
        }
    }

    /// The size on the host and on a device.
    pub(crate) fn footprint(&self) -> u64 {
        let on_device = self.cuda().map_or(0, device::Owned::twin_len);
        self.len() as u64 + on_device as u64
    }

    /// Whether its device memory must not be freed while another process has it open.
    pub(crate) fn ends_with_producer(&self) -> bool {
        self.cuda().is_some_and(device::Owned::ends_with_producer)
    }

    /// The device of the region, and how its memory is shared.
    pub(crate) fn device(&self) -> Option<String> {
        self.cuda().and_then(device::Owned::describe)
    }

    pub(crate) fn cuda(&self) -> Option<&device::Owned> {
        match self {
            Self::Cuda(region) => Some(region),
            _ => None,
        }
    }

    /// The DMA buffer with this byte, and its first byte in the region. `Err`: why there is none.
    pub(crate) fn dmabuf(&self, offset: u64) -> Result<(BorrowedFd<'_>, u64), &str> {
        match self {
            Self::Memfd(region) => region.dmabufs.at(offset),
            Self::PosixShm(_) => Err("its producer uses backing=posix-shm"),
            Self::Cuda(_) => Err("it is on a CUDA device"),
        }
    }

    pub(crate) fn ticket(&self) -> Ticket<BorrowedFd<'_>> {
        match self {
            Self::Memfd(region) => Ticket::Memfd(region.fd.as_fd()),
            Self::PosixShm(region) => Ticket::PosixShm(region.name().to_owned()),
            Self::Cuda(region) => region.ticket(),
        }
    }
}

/// A region in a consumer.
#[derive(Debug)]
pub(crate) struct RegionView {
    memory: Memory,
    /// Whether it is registered with devices.
    pinned: device::Pinned,
    derived: Mutex<Vec<(u64, Derived)>>,
    dmabufs: ReceivedBuffers,
}

/// A value that other code derived from a region.
type Derived = Arc<dyn Any + Send + Sync>;

#[derive(Debug)]
enum Memory {
    Memfd(Arc<Mapping>, OwnedFd),
    PosixShm(Mapping),
    /// It has no slots, only parts of frames.
    Imported(Arc<Imported>),
    Cuda(Box<device::View>),
}

impl RegionView {
    /// Opens the region of a ticket, with at least `len` bytes.
    pub(crate) fn open(ticket: Ticket<OwnedFd>, len: usize) -> Result<Self, RegionError> {
        let memory = match ticket {
            Ticket::Memfd(fd) => Memory::Memfd(Arc::new(memfd::view(&fd, len)?), fd),
            Ticket::PosixShm(name) => Memory::PosixShm(posix_shm::view(&name, len)?),
            Ticket::Imported(fd) => Memory::Imported(Arc::new(Imported::new(fd, len)?)),
            Ticket::Cuda(fd, twin) => Memory::Cuda(Box::new(device::View::open(fd, twin, len)?)),
        };
        Ok(Self {
            memory,
            pinned: device::Pinned::default(),
            derived: Mutex::default(),
            dmabufs: ReceivedBuffers::default(),
        })
    }

    /// The first byte. Null for imported memory, which is mapped when it is read.
    pub(crate) fn ptr(&self) -> *mut u8 {
        match &self.memory {
            Memory::Memfd(mapping, _) => mapping.ptr(),
            Memory::PosixShm(mapping) => mapping.ptr(),
            Memory::Imported(_) => std::ptr::null_mut(),
            Memory::Cuda(view) => view.mapping().ptr(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.memory {
            Memory::Memfd(mapping, _) => mapping.len(),
            Memory::PosixShm(mapping) => mapping.len(),
            Memory::Imported(memory) => memory.len(),
            Memory::Cuda(view) => view.mapping().len(),
        }
    }

    /// Whether it can have slots. Imported memory has only parts of frames.
    pub(crate) fn has_slots(&self) -> bool {
        match &self.memory {
            Memory::Memfd(..) | Memory::PosixShm(_) => true,
            Memory::Imported(_) => false,
            Memory::Cuda(view) => view.header().kind != TwinKind::Foreign,
        }
    }

    /// The size of the range in which parts of frames can be. On a device, that of the twin.
    pub(crate) fn payload_len(&self) -> u64 {
        self.cuda()
            .map_or(self.len() as u64, device::View::payload_len)
    }

    pub(crate) fn cuda(&self) -> Option<&device::View> {
        match &self.memory {
            Memory::Cuda(view) => Some(view),
            _ => None,
        }
    }

    pub(crate) fn imported(&self) -> Option<&Imported> {
        match &self.memory {
            Memory::Imported(memory) => Some(memory),
            _ => None,
        }
    }

    /// A descriptor of the memory that can be sent to other processes.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.memory {
            Memory::Memfd(_, fd) => Some(fd.as_fd()),
            Memory::Imported(memory) => Some(memory.fd()),
            Memory::Cuda(view) => Some(view.fd()),
            Memory::PosixShm(_) => None,
        }
    }

    /// These bytes as a DMA buffer, if the producer has sent it.
    pub(crate) fn dmabuf(&self, bytes: &Range<usize>) -> Option<Dmabuf> {
        self.dmabufs.find(bytes)
    }

    /// These bytes as a DMA buffer, also if another library made it.
    pub(crate) fn any_dmabuf(&self, bytes: &Range<usize>) -> Option<Dmabuf> {
        match &self.memory {
            Memory::Imported(memory) => {
                let memory = Some(memory).filter(|it| it.is_dmabuf())?;
                Some(Dmabuf::new(memory.clone(), bytes.start))
            }
            _ => self.dmabuf(bytes),
        }
    }

    /// Keeps a DMA buffer from byte `start` of the region on, if it has these bytes. Returns whether it has.
    pub(crate) fn keep_dmabuf(&self, start: usize, memory: Imported, bytes: &Range<usize>) -> bool {
        self.dmabufs.keep(start, memory, bytes)
    }

    /// The value with this key that was derived from the region.
    pub(crate) fn derived<T: Any + Clone>(&self, by: u64) -> Option<T> {
        let derived = lock(&self.derived);
        let (_, made) = derived.iter().find(|(other, _)| *other == by)?;
        made.downcast_ref().cloned()
    }

    /// Keeps a derived value with this key, as long as the region is mapped and `is_used` returns true.
    pub(crate) fn derive<T: Any + Send + Sync>(
        &self,
        by: u64,
        made: T,
        is_used: impl Fn(&T) -> bool,
    ) {
        let mut derived = lock(&self.derived);
        let unused = derived.extract_if(.., |(_, old)| {
            old.downcast_ref().is_some_and(|old| !is_used(old))
        });
        let unused: Vec<_> = unused.collect();
        derived.push((by, Arc::new(made)));
        drop(derived);
        drop(unused);
    }
}
