// SPDX-License-Identifier: MPL-2.0

//! The device twin of a region in the producer: its memory and the events of its slots.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};

use xmem_cuda::copy;
use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::event::Event;
use xmem_cuda::memory::{self, Borrowed, FREEING_TIME, OwnMemory};
use xmem_cuda::reaper;
use xmem_cuda::reaper::CHECK_INTERVAL;
use xmem_cuda::stream::Stream;
use xmem_shm::abi::device_header::{Canary, DeviceHeader, IpcHandle, TwinKind, header_len};
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::random;

use super::mode::Mode;

/// The layout of a region on a device.
#[derive(Debug, Clone)]
pub(crate) struct TwinPlan {
    pub(crate) device: Device,
    pub(crate) mode: Mode,
    pub(crate) slots: u32,
    /// The size of each slot on the device. 0: there is no memory, only events.
    pub(crate) device_stride: usize,
    pub(crate) host_stride: usize,
}

/// The memory of a region on its device. Clones are handles to the same memory.
#[derive(Debug, Clone)]
pub(crate) struct Twin(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    device: Device,
    memory: Option<OwnMemory>,
    /// `None`: the driver cannot share events, so consumers wait for the slot's `ready` word.
    events: Vec<Option<Event>>,
    /// The context of the stream on which each slot was last written.
    writers: Vec<AtomicUsize>,
    /// Held while a slot is published, and during the check whether its work will never end.
    settling: Mutex<()>,
    /// The header that consumers get.
    header: DeviceHeader,
}

/// The shared memory of this process, by the nonce in its header. A process cannot import its own memory, so it is looked up
/// here.
static OWN: LazyLock<Mutex<HashMap<[u8; 16], Weak<Inner>>>> = LazyLock::new(Mutex::default);

fn own() -> MutexGuard<'static, HashMap<[u8; 16], Weak<Inner>>> {
    lock(&OWN)
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    for chunk in bytes.chunks_mut(8) {
        for (to, from) in chunk.iter_mut().zip(random::u64().to_le_bytes()) {
            *to = from;
        }
    }
    bytes
}

fn allocate(plan: &TwinPlan, len: usize) -> Result<OwnMemory, CudaError> {
    match plan.mode {
        Mode::Vmm => OwnMemory::vmm(&plan.device, len),
        Mode::Legacy => OwnMemory::legacy(&plan.device, len),
        Mode::Auto => OwnMemory::vmm(&plan.device, len).or_else(|error| match error {
            CudaError::Unsupported { .. }
            | CudaError::DriverTooOld { .. }
            | CudaError::Driver { .. } => {
                log::info!(
                    "CUDA memory is shared by legacy handle, since by descriptor it is not: {error}"
                );
                OwnMemory::legacy(&plan.device, len)
            }
            error => Err(error),
        }),
    }
}

impl Twin {
    /// Allocates the memory, and the header that describes it.
    pub(crate) fn create(plan: &TwinPlan) -> Result<(Self, DeviceHeader), CudaError> {
        let device = &plan.device;
        let payload = plan.slots as usize * plan.device_stride;
        let canary: Canary = random_bytes();
        let memory = if plan.device_stride == 0 {
            None
        } else {
            let len = payload + size_of::<Canary>();
            let memory = allocate(plan, len).or_else(|error| match error {
                // Memory that is being freed may suffice.
                CudaError::OutOfMemory { .. } => {
                    reaper::flush(FREEING_TIME);
                    allocate(plan, len)
                }
                error => Err(error),
            })?;
            fault::point(Point::TwinMade);
            copy::to_device_now(device, memory.ptr() + payload as u64, &canary)?;
            fault::point(Point::CanaryWritten);
            Some(memory)
        };
        let mut events = Vec::with_capacity(plan.slots as usize);
        let mut handles = Vec::with_capacity(plan.slots as usize);
        for _ in 0..plan.slots {
            let (event, handle) = match Event::interprocess(device) {
                Ok((event, handle)) => (Some(event), handle),
                // Also if events run out. The driver reports that as a lack of memory, although no device memory is missing.
                Err(
                    error @ (CudaError::Driver { .. }
                    | CudaError::DriverTooOld { .. }
                    | CudaError::OutOfMemory { .. }),
                ) => {
                    log::info!("frames of a slot are published when they are done, since {error}");
                    (None, [0; 64])
                }
                Err(error) => return Err(error),
            };
            events.push(event);
            handles.push(handle);
        }
        let header = DeviceHeader {
            kind: match &memory {
                Some(OwnMemory::Vmm { .. }) => TwinKind::Vmm,
                Some(OwnMemory::Legacy { .. } | OwnMemory::Borrowed { .. }) => TwinKind::Legacy,
                None => TwinKind::None,
            },
            uuid: device.uuid(),
            nonce: random_bytes(),
            device_len: memory.as_ref().map_or(0, |memory| memory.len() as u64),
            device_offset: 0,
            slots: plan.slots,
            device_stride: plan.device_stride as u64,
            host_stride: plan.host_stride as u64,
            slots_at: header_len(plan.slots) as u64,
            canary_at: payload as u64,
            canary,
            handle: match &memory {
                Some(OwnMemory::Legacy { handle, .. }) => *handle,
                _ => [0; 64],
            },
            canary_handle: [0; 64],
            events: handles,
        };
        let twin = Self::listed(device, memory, events, &header);
        fault::point(Point::EventsMade);
        Ok((twin, header))
    }

    /// A twin that this process can look up by the nonce in its header.
    fn listed(
        device: &Device,
        memory: Option<OwnMemory>,
        events: Vec<Option<Event>>,
        header: &DeviceHeader,
    ) -> Self {
        let inner = Arc::new(Inner {
            device: device.clone(),
            memory,
            writers: events.iter().map(|_| AtomicUsize::new(0)).collect(),
            events,
            settling: Mutex::default(),
            header: header.clone(),
        });
        own().insert(header.nonce, Arc::downgrade(&inner));
        Self(inner)
    }

    /// The number that identifies it ([`DeviceHeader::nonce`]).
    pub(crate) fn number(&self) -> u128 {
        self.0.header.number()
    }

    /// A twin over memory that other code of this process allocated, and the header that describes it.
    pub(crate) fn borrow(
        device: &Device,
        ptr: u64,
        len: usize,
    ) -> Result<(Self, DeviceHeader), CudaError> {
        let Borrowed { handle, offset } = memory::borrow(device, ptr, len)?;
        let shared = shared_canary(device)?;
        let header = DeviceHeader {
            kind: TwinKind::Foreign,
            uuid: device.uuid(),
            nonce: random_bytes(),
            device_len: len as u64,
            device_offset: offset,
            slots: 0,
            device_stride: 0,
            host_stride: 0,
            slots_at: header_len(0) as u64,
            canary_at: 0,
            canary: shared.canary,
            handle,
            canary_handle: shared.handle,
            events: Vec::new(),
        };
        let memory = Some(OwnMemory::Borrowed { ptr, len });
        Ok((Self::listed(device, memory, Vec::new(), &header), header))
    }

    /// The twin of this process that a header describes.
    pub(crate) fn of_this_process(header: &DeviceHeader) -> Result<Option<Self>, CudaError> {
        let inner = own().get(&header.nonce).and_then(Weak::upgrade);
        match inner {
            // Every consumer knows the nonce, and could send it with other sizes.
            Some(inner) if inner.header != *header => Err(CudaError::Corrupt(
                "it is marked as memory of this process, and is not",
            )),
            inner => Ok(inner.map(Self)),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// The device, and how its memory is shared.
    pub(crate) fn describe(&self) -> Option<String> {
        let how = match self.0.memory.as_ref()? {
            OwnMemory::Vmm { .. } => "vmm",
            OwnMemory::Legacy { .. } | OwnMemory::Borrowed { .. } => "legacy",
        };
        Some(format!(
            "{} {} ({how})",
            self.0.device.ordinal(),
            self.0.device.name()
        ))
    }

    /// The first byte of the memory, if there is any.
    pub(crate) fn ptr(&self) -> Option<u64> {
        self.0.memory.as_ref().map(OwnMemory::ptr)
    }

    /// The size of the device memory in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.memory.as_ref().map_or(0, OwnMemory::len)
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.memory.as_ref().and_then(OwnMemory::fd)
    }

    /// Whether the memory must not be freed while another process has it open.
    pub(crate) fn is_legacy(&self) -> bool {
        matches!(self.0.memory, Some(OwnMemory::Legacy { .. }))
    }

    /// Records the event of a slot. `false`: there is none, so this waited for the stream.
    pub(crate) fn record(&self, slot: u32, stream: Stream) -> Result<bool, CudaError> {
        match self.event(slot) {
            Some(event) => {
                let context = event.record(stream)?;
                if let Some(writer) = self.0.writers.get(slot as usize) {
                    writer.store(context, Ordering::Relaxed);
                }
                Ok(true)
            }
            None => stream.synchronize(&self.0.device).map(|()| false),
        }
    }

    /// Makes a stream wait for the recorded event of a slot.
    pub(crate) fn wait(&self, slot: u32, stream: Stream) -> Result<(), CudaError> {
        self.event(slot)
            .map_or(Ok(()), |event| event.wait_on(stream))
    }

    /// Whether the recorded event of a slot has happened. [`CudaError::Unfinished`]: it never will, because its stream belonged
    /// to another context that has ended.
    pub(crate) fn is_done(&self, slot: u32) -> Result<bool, CudaError> {
        let done = self.event(slot).map_or(Ok(true), Event::has_happened)?;
        if !done && !self.0.may_end(slot as usize) {
            return Err(CudaError::Unfinished);
        }
        Ok(done)
    }

    /// Prevents slots from being published during the check whether their work will never end.
    pub(crate) fn settling(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.settling)
    }

    pub(crate) fn is_vmm(&self) -> bool {
        matches!(self.0.memory, Some(OwnMemory::Vmm { .. }))
    }

    pub(crate) fn event(&self, slot: u32) -> Option<&Event> {
        self.0.events.get(slot as usize)?.as_ref()
    }
}

/// Proves to consumers that legacy handles of this process work for them. The canary needs an allocation of its own, because
/// borrowed memory must not be written.
struct SharedCanary {
    _memory: OwnMemory,
    handle: IpcHandle,
    canary: Canary,
}

/// By device. Kept until the process ends, because consumers may have it open as long.
static CANARIES: Mutex<Vec<(u32, Arc<SharedCanary>)>> = Mutex::new(Vec::new());

fn shared_canary(device: &Device) -> Result<Arc<SharedCanary>, CudaError> {
    let mut canaries = lock(&CANARIES);
    if let Some((_, shared)) = canaries
        .iter()
        .find(|(ordinal, _)| *ordinal == device.ordinal())
    {
        return Ok(shared.clone());
    }
    let canary: Canary = random_bytes();
    let memory = OwnMemory::legacy(device, size_of::<Canary>())?;
    let OwnMemory::Legacy { handle, .. } = &memory else {
        return Err(CudaError::Gone);
    };
    let handle = *handle;
    copy::to_device_now(device, memory.ptr(), &canary)?;
    let shared = Arc::new(SharedCanary {
        _memory: memory,
        handle,
        canary,
    });
    canaries.push((device.ordinal(), shared.clone()));
    Ok(shared)
}

impl Inner {
    /// Whether unfinished work in a slot can still end. The primary context reports its own errors.
    fn may_end(&self, slot: usize) -> bool {
        let writer = self.writers.get(slot);
        let context = writer.map_or(0, |writer| writer.load(Ordering::Relaxed));
        context == 0 || self.device.is_primary(context) || self.device.may_end(context)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a forked child, the lock of the list may be held by a thread that exists only in the parent.
        if !self.device.is_of_this_process() {
            return;
        }
        own().remove(&self.header.nonce);
        let (memory, events) = (self.memory.take(), std::mem::take(&mut self.events));
        // A slow device may still write frames after the last wait for them. Unmapping waits for that "for most use cases", but
        // the thread that unmaps has other work. If no work runs, nothing is waited for. Other errors do not show that.
        let is_done = |event: &Event| {
            matches!(
                event.has_happened(),
                Ok(true) | Err(CudaError::ContextInError { .. })
            )
        };
        reaper::later(move || {
            if events.iter().flatten().all(is_done) {
                return drop((memory, events));
            }
            let mut rest = Some((memory, events));
            reaper::DRIVER.every(CHECK_INTERVAL, move || {
                let done = rest
                    .as_ref()
                    .is_some_and(|(_, events)| events.iter().flatten().all(is_done));
                done.then(|| rest.take()).is_some()
            });
        });
    }
}
