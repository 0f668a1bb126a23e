// SPDX-License-Identifier: MPL-2.0

//! Regions: pieces of shared memory that hold slots. One kind per way to share memory.

pub(crate) mod device;
mod heap;
mod imported;
mod memfd;
mod posix_shm;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use xmem_shm::abi::device_header::TwinKind;
#[cfg(feature = "cuda")]
use xmem_shm::lock::inside;
use xmem_shm::lock::lock;
use xmem_shm::os::mapping::Mapping;

use crate::error::RegionError;

pub(crate) use imported::Imported;
pub use posix_shm::remove_stale_segments;
pub(crate) use posix_shm::{prefix as shm_prefix, sweep as sweep_shm};

/// Where the slots of a pool lie.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backing {
    /// Sealed anonymous memory: consumers can neither write nor truncate it, and nothing is left behind.
    #[default]
    Memfd,
    /// A named segment under /dev/shm, for peers that open it by name. It cannot be sealed, so such a pool serves one
    /// user only.
    PosixShm,
    /// Memory of this process, for tests.
    #[doc(hidden)]
    Heap,
}

/// What a kind of region promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct Capabilities {
    /// Nobody can shrink it under a reader.
    pub size_is_sealed: bool,
    /// The kernel keeps consumers from writing.
    pub consumers_cannot_write: bool,
    /// Other processes can open it.
    pub crosses_processes: bool,
}

impl Backing {
    #[doc(hidden)]
    pub fn capabilities(self) -> Capabilities {
        match self {
            Self::Memfd => Capabilities {
                size_is_sealed: true,
                consumers_cannot_write: true,
                crosses_processes: true,
            },
            Self::PosixShm => Capabilities {
                size_is_sealed: false,
                consumers_cannot_write: false,
                crosses_processes: true,
            },
            Self::Heap => Capabilities {
                size_is_sealed: true,
                consumers_cannot_write: false,
                crosses_processes: false,
            },
        }
    }
}

/// How a region is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionSettings<'a> {
    pub(crate) backing: Backing,
    /// What names of segments begin with.
    pub(crate) shm_prefix: &'a str,
    /// Consumers may write too (pools opened with `peers_may_write`).
    pub(crate) peers_may_write: bool,
}

/// A region as its owner has it: writable.
#[derive(Debug)]
pub(crate) enum Region {
    Memfd(memfd::Owned),
    PosixShm(posix_shm::Owned),
    Heap(heap::Owned),
    #[cfg(feature = "cuda")]
    Cuda(device::owned::Owned),
}

/// How a consumer gets at a region.
#[derive(Debug)]
pub(crate) enum Ticket<Fd> {
    Memfd(Fd),
    PosixShm(String),
    Heap(u64),
    Imported(Fd),
    /// The host half of a CUDA region, and its device memory if that has a descriptor.
    Cuda(Fd, Option<Fd>),
}

impl Region {
    /// Makes a region whose every byte is reserved.
    pub(crate) fn create(len: usize, settings: RegionSettings<'_>) -> Result<Self, RegionError> {
        match settings.backing {
            Backing::Memfd => memfd::Owned::create(len, settings.peers_may_write).map(Self::Memfd),
            Backing::PosixShm => {
                posix_shm::Owned::create(len, settings.shm_prefix).map(Self::PosixShm)
            }
            Backing::Heap => heap::Owned::create(len).map(Self::Heap),
        }
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        match self {
            Self::Memfd(region) => region.mapping.ptr(),
            Self::PosixShm(region) => region.ptr(),
            Self::Heap(region) => region.memory.ptr(),
            #[cfg(feature = "cuda")]
            Self::Cuda(region) => region.mapping().ptr(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memfd(region) => region.mapping.len(),
            Self::PosixShm(region) => region.len(),
            Self::Heap(region) => region.memory.len(),
            #[cfg(feature = "cuda")]
            Self::Cuda(region) => region.mapping().len(),
        }
    }

    /// Bytes that it takes, on the host and on a device.
    pub(crate) fn footprint(&self) -> u64 {
        let on_device = match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(region) => region.twin.len(),
            _ => 0,
        };
        self.len() as u64 + on_device as u64
    }

    /// Whether its device memory must not be freed while anybody has it open.
    pub(crate) fn ends_with_producer(&self) -> bool {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(region) => region.twin.is_legacy(),
            _ => false,
        }
    }

    /// The device that it lies on, and how its memory is shared.
    pub(crate) fn device(&self) -> Option<String> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(region) => region.twin.describe(),
            _ => None,
        }
    }

    /// Has devices reach it by themselves, if they can.
    #[cfg(feature = "cuda")]
    pub(crate) fn pin(&self, device: &xmem_cuda::device::Device) {
        if let Self::Memfd(region) = self {
            region.pinned.pin(&region.mapping, false, device);
        }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn cuda(&self) -> Option<&device::owned::Owned> {
        match self {
            Self::Cuda(region) => Some(region),
            _ => None,
        }
    }

    pub(crate) fn ticket(&self) -> Ticket<BorrowedFd<'_>> {
        match self {
            Self::Memfd(region) => Ticket::Memfd(region.fd.as_fd()),
            Self::PosixShm(region) => Ticket::PosixShm(region.name().to_owned()),
            Self::Heap(region) => Ticket::Heap(region.memory.id()),
            #[cfg(feature = "cuda")]
            Self::Cuda(region) => Ticket::Cuda(region.fd(), region.twin_fd()),
        }
    }
}

/// A region as a consumer has it.
#[derive(Debug)]
pub(crate) struct RegionView {
    memory: Memory,
    /// Whether devices reach it by themselves.
    #[cfg(feature = "cuda")]
    pinned: xmem_cuda::copy::Pinned,
    derived: Mutex<Vec<(u64, Derived)>>,
}

/// What somebody made of a region.
type Derived = Arc<dyn Any + Send + Sync>;

#[derive(Debug)]
enum Memory {
    Memfd(Arc<Mapping>, OwnedFd),
    PosixShm(Mapping),
    Heap(Arc<heap::Memory>),
    /// No slots lie in it, only pieces of frames.
    Imported(Imported),
    Cuda(Box<device::View>),
}

impl RegionView {
    /// Opens what a ticket stands for, of at least `len` bytes.
    pub(crate) fn open(
        ticket: Ticket<OwnedFd>,
        len: usize,
        writable: bool,
    ) -> Result<Self, RegionError> {
        let memory = match ticket {
            Ticket::Memfd(fd) => Memory::Memfd(Arc::new(memfd::view(&fd, len, writable)?), fd),
            // Only memfd regions are made for consumers to write.
            Ticket::PosixShm(_) | Ticket::Heap(_) if writable => {
                return Err(RegionError::Untrusted(
                    "it is of a kind that others may not write",
                ));
            }
            Ticket::PosixShm(name) => Memory::PosixShm(posix_shm::view(&name, len)?),
            Ticket::Heap(id) => Memory::Heap(heap::view(id, len)?),
            Ticket::Imported(fd) => Memory::Imported(Imported::new(fd, len)?),
            Ticket::Cuda(fd, twin) => Memory::Cuda(Box::new(device::View::open(fd, twin, len)?)),
        };
        Ok(Self {
            memory,
            #[cfg(feature = "cuda")]
            pinned: xmem_cuda::copy::Pinned::default(),
            derived: Mutex::default(),
        })
    }

    /// The first byte; null for imported memory, which is mapped by who reads it.
    pub(crate) fn ptr(&self) -> *mut u8 {
        match &self.memory {
            Memory::Memfd(mapping, _) => mapping.ptr(),
            Memory::PosixShm(mapping) => mapping.ptr(),
            Memory::Heap(memory) => memory.ptr(),
            Memory::Imported(_) => std::ptr::null_mut(),
            Memory::Cuda(view) => view.mapping().ptr(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.memory {
            Memory::Memfd(mapping, _) => mapping.len(),
            Memory::PosixShm(mapping) => mapping.len(),
            Memory::Heap(memory) => memory.len(),
            Memory::Imported(memory) => memory.len(),
            Memory::Cuda(view) => view.mapping().len(),
        }
    }

    /// Whether slots may lie in it: not in memory that somebody else made, which is for pieces of frames only.
    pub(crate) fn has_slots(&self) -> bool {
        match &self.memory {
            Memory::Memfd(..) | Memory::PosixShm(_) | Memory::Heap(_) => true,
            Memory::Imported(_) => false,
            Memory::Cuda(view) => view.header().kind != TwinKind::Foreign,
        }
    }

    /// Whether this process may write it, where slots are granted.
    pub(crate) fn is_writable(&self) -> bool {
        matches!(&self.memory, Memory::Memfd(mapping, _) if mapping.is_writable())
    }

    /// Has devices reach it by themselves, if they can.
    #[cfg(feature = "cuda")]
    pub(crate) fn pin(&self, device: &xmem_cuda::device::Device) {
        if let Memory::Memfd(mapping, _) = &self.memory {
            // What was mapped for writing can be read just as well.
            self.pinned.pin(mapping, true, device);
        }
    }

    /// Bytes in which pieces of frames may lie: on a device, those of the twin.
    pub(crate) fn payload_len(&self) -> u64 {
        match &self.memory {
            Memory::Cuda(view) => view.payload_len(),
            _ => self.len() as u64,
        }
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

    /// A descriptor of the memory that can be passed on.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.memory {
            Memory::Memfd(_, fd) => Some(fd.as_fd()),
            Memory::Imported(memory) => Some(memory.fd()),
            Memory::Cuda(view) => Some(view.fd()),
            Memory::PosixShm(_) | Memory::Heap(_) => None,
        }
    }

    fn lock_derived(&self) -> MutexGuard<'_, Vec<(u64, Derived)>> {
        lock(&self.derived)
    }

    /// What was made of the region by whom this number stands for.
    pub(crate) fn derived<T: Any + Clone>(&self, by: u64) -> Option<T> {
        let derived = self.lock_derived();
        let (_, made) = derived.iter().find(|(other, _)| *other == by)?;
        made.downcast_ref().cloned()
    }

    /// Keeps what was made of the region for as long as that is there.
    pub(crate) fn derive<T: Any + Send + Sync>(&self, by: u64, made: T) {
        self.lock_derived().push((by, Arc::new(made)));
    }
}

#[cfg(feature = "cuda")]
impl Drop for RegionView {
    fn drop(&mut self) {
        let derived = inside(&mut self.derived);
        if !derived.is_empty() && xmem_cuda::pending::is_host_function() {
            // Hooks of frames run with it, and those are others' code, which may call the driver.
            let derived = std::mem::take(derived);
            xmem_cuda::reaper::elsewhere(move || drop(derived));
        }
    }
}

/// Memory that another process made is as large as its producer says, or larger. Returns how large.
fn check_len(actual: Result<usize, &'static str>, len: usize) -> Result<usize, RegionError> {
    actual
        .and_then(|actual| {
            (actual >= len)
                .then_some(actual)
                .ok_or("it is smaller than its producer says")
        })
        .map_err(RegionError::Untrusted)
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> RegionError {
    move |error| RegionError::System { what, error }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use xmem_cuda::pending::as_host_function;

    use super::*;

    /// Reports on which thread it is dropped.
    #[derive(Clone)]
    struct Tells(Sender<Option<String>>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self
                .0
                .send(std::thread::current().name().map(str::to_owned));
        }
    }

    #[test]
    fn what_was_made_of_a_region_goes_on_no_thread_of_the_driver() {
        let settings = RegionSettings {
            backing: Backing::Heap,
            shm_prefix: "",
            peers_may_write: false,
        };
        let region = Region::create(4096, settings).unwrap();
        let view = || {
            let Ticket::Heap(id) = region.ticket() else {
                panic!("no other kind was asked for");
            };
            RegionView::open(Ticket::Heap(id), 4096, false).unwrap()
        };
        let (say, hear) = channel();
        let used = view();
        used.derive(1, Tells(say.clone()));
        as_host_function(|| drop(used));
        assert_eq!(hear.recv().unwrap().as_deref(), Some("xmem-cuda-ends"));
        let used = view();
        used.derive(1, Tells(say));
        drop(used);
        assert_eq!(
            hear.recv().unwrap().as_deref(),
            std::thread::current().name()
        );
    }
}
