// SPDX-License-Identifier: MPL-2.0

//! The device twin of a region in a consumer. It is imported once, and verified with its canary. The events of its slots are
//! opened at their first use.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use xmem_cuda::copy;
use xmem_cuda::counts::{COUNTERS, count};
use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::event::Event;
use xmem_cuda::memory::ForeignMemory;
use xmem_cuda::reaper;
use xmem_cuda::stream::Stream;
use xmem_shm::abi::device_header::{Canary, DeviceHeader, IpcHandle, TwinKind};
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;

use super::mode::Mode;
use super::twin::Twin;

/// How the memory was opened.
#[derive(Debug)]
enum Memory {
    Foreign {
        ptr: u64,
        mode: Mode,
        // Fields are dropped in this order: the memory is closed before the producer is notified.
        _memory: ForeignMemory,
        _keep: Keep,
    },
    /// The producer is this process.
    Same(Twin),
    /// There is no memory, only events.
    None,
}

/// The connection to the producer. When it ends, the producer knows that no memory is open here.
pub(crate) type Connection = dyn Any + Send + Sync;

/// Lives until the memory is closed. Dropping it notifies the producer.
#[derive(Debug)]
struct Keep {
    link: Arc<Connection>,
    closed: Arc<AtomicBool>,
}

impl Drop for Keep {
    fn drop(&mut self) {
        let (link, closed) = (self.link.clone(), self.closed.clone());
        // Queued after the closing of the memory.
        reaper::free(move || {
            count(&COUNTERS.closed);
            closed.store(true, Ordering::Release);
            drop(link);
        });
    }
}

/// An imported twin.
#[derive(Debug)]
pub(crate) struct Import {
    device: Device,
    memory: Memory,
    events: Mutex<Vec<Option<Arc<Event>>>>,
    /// Events could not be opened here while the producer lived.
    refuses_events: AtomicBool,
}

/// How the end of the producer's work in a slot is detected.
pub(crate) enum Completion {
    Event(Arc<Event>),
    /// It had already ended when the frame was published.
    Published,
    /// By the `ready` word of the slot, because events of that process cannot be opened here.
    Mark,
}

/// The import of a region, after it was made.
#[derive(Debug, Default)]
pub(crate) struct Imports(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    import: Option<Arc<Import>>,
    /// The last outcome that was reported to the producer.
    reported: Option<Result<(), CudaError>>,
    /// Set when the memory is closed, or can no longer be opened.
    closed: Arc<AtomicBool>,
}

impl Drop for Imports {
    fn drop(&mut self) {
        let state = self.lock();
        let memory = state.import.as_ref().map(|import| &import.memory);
        // Dropping imported memory sets the flag. In the producer's process there is none.
        if !matches!(memory, Some(Memory::Foreign { .. })) {
            state.closed.store(true, Ordering::Release);
        }
    }
}

impl Imports {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// A flag that is set when the memory is closed, if it must not be freed before. While a frame in the memory is held, it
    /// may still be opened.
    pub(crate) fn closing(&self, header: &DeviceHeader) -> Option<Arc<AtomicBool>> {
        let state = self.lock();
        let is_waited_for = match &state.import {
            Some(import) => matches!(
                import.memory,
                Memory::Foreign {
                    mode: Mode::Legacy,
                    ..
                }
            ),
            None => matches!(header.kind, TwinKind::Legacy | TwinKind::Foreign),
        };
        is_waited_for.then(|| state.closed.clone())
    }

    /// The import. Imports the memory if needed. Calls `report` with the outcome if it differs from the last report.
    pub(crate) fn get(
        &self,
        header: &DeviceHeader,
        fd: Option<BorrowedFd<'_>>,
        link: Arc<Connection>,
        report: impl FnOnce(Result<&Import, &CudaError>),
    ) -> Result<Arc<Import>, CudaError> {
        let mut state = self.lock();
        if let Some(import) = &state.import {
            return Ok(import.clone());
        }
        let made = Import::new(header, fd, link, state.closed.clone()).map(Arc::new);
        state.import = made.as_ref().ok().cloned();
        let outcome = made.as_ref().map(drop).map_err(Clone::clone);
        let is_news = state.reported.as_ref() != Some(&outcome);
        state.reported = Some(outcome);
        drop(state);
        if is_news {
            report(made.as_deref());
        }
        made
    }
}

fn check_canary(device: &Device, at: u64, expected: &Canary) -> Result<(), CudaError> {
    let mut found: Canary = [0; size_of::<Canary>()];
    copy::to_host_now(device, &mut found, at)?;
    fault::point(Point::CanaryRead);
    if found == *expected {
        Ok(())
    } else {
        Err(CudaError::Canary)
    }
}

/// Checks the size that the driver reports. The canary has identified the memory.
fn check_size(memory: &ForeignMemory, offset: u64, len: u64) -> Result<(), CudaError> {
    if memory.has(offset, len)? {
        Ok(())
    } else {
        Err(CudaError::Corrupt("it is smaller than that"))
    }
}

fn refused(how: &'static str) -> impl FnOnce(CudaError) -> CudaError {
    move |error| match error {
        CudaError::Driver { name, .. } => CudaError::NotImportable {
            why: format!(
                "{how} failed with {name}: both processes must see the same device, and for legacy handles share a PID namespace and \
                 the producer must live"
            ),
        },
        CudaError::Unsupported { what } => CudaError::NotImportable {
            why: format!(
                "this device or its driver cannot {what}: set the CUDA IPC mode of the producer to legacy (cuda-ipc-mode of xmemsink)"
            ),
        },
        error => error,
    }
}

impl Import {
    fn new(
        header: &DeviceHeader,
        fd: Option<BorrowedFd<'_>>,
        link: Arc<Connection>,
        closed: Arc<AtomicBool>,
    ) -> Result<Self, CudaError> {
        let device = Device::by_uuid(header.uuid)?;
        let memory = match Twin::of_this_process(header)? {
            Some(twin) => Memory::Same(twin),
            None => Self::import(&device, header, fd, link, closed)?,
        };
        Ok(Self {
            device,
            memory,
            events: Mutex::new((0..header.slots).map(|_| None).collect()),
            refuses_events: AtomicBool::new(false),
        })
    }

    fn import(
        device: &Device,
        header: &DeviceHeader,
        fd: Option<BorrowedFd<'_>>,
        link: Arc<Connection>,
        closed: Arc<AtomicBool>,
    ) -> Result<Memory, CudaError> {
        let (memory, mode) = match (header.kind, fd) {
            (TwinKind::None, _) => return Ok(Memory::None),
            (TwinKind::Vmm, Some(fd)) => {
                let len = usize::try_from(header.device_len)
                    .map_err(|_| CudaError::Corrupt("its size"))?;
                let memory = ForeignMemory::import_vmm(device, fd.as_fd(), len);
                (
                    memory.map_err(refused("importing its descriptor"))?,
                    Mode::Vmm,
                )
            }
            (TwinKind::Vmm, None) => {
                return Err(CudaError::Corrupt("it came without its descriptor"));
            }
            (TwinKind::Legacy | TwinKind::Foreign, _) => {
                let open = |handle: &IpcHandle| {
                    ForeignMemory::open_legacy(device, handle)
                        .map_err(refused("opening its handle"))
                };
                if header.kind == TwinKind::Foreign {
                    // Memory that other code allocated must not be written, so the canary is in another allocation of that
                    // process.
                    let canary = open(&header.canary_handle)?;
                    check_size(&canary, header.canary_at, size_of::<Canary>() as u64)?;
                    check_canary(device, canary.ptr() + header.canary_at, &header.canary)?;
                }
                (open(&header.handle)?, Mode::Legacy)
            }
        };
        fault::point(Point::TwinImported);
        check_size(&memory, header.device_offset, header.device_len)?;
        let ptr = memory.ptr() + header.device_offset;
        if header.kind != TwinKind::Foreign {
            check_canary(device, ptr + header.canary_at, &header.canary)?;
        }
        count(&COUNTERS.imports);
        Ok(Memory::Foreign {
            ptr,
            mode,
            _memory: memory,
            _keep: Keep { link, closed },
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn is_same_process(&self) -> bool {
        matches!(self.memory, Memory::Same(_))
    }

    /// How the memory was imported.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match &self.memory {
            Memory::Foreign { mode, .. } => Some(*mode),
            Memory::Same(twin) if twin.ptr().is_some() => Some(if !twin.is_vmm() {
                Mode::Legacy
            } else {
                Mode::Vmm
            }),
            _ => None,
        }
    }

    /// As text, for statistics.
    pub(crate) fn outcome(&self) -> &'static str {
        match (&self.memory, self.mode()) {
            (Memory::Same(_), _) => "same process",
            (_, Some(Mode::Legacy)) => "legacy",
            (_, Some(_)) => "vmm",
            (_, None) => "events",
        }
    }

    /// The first byte of the memory, if there is any.
    pub(crate) fn ptr(&self) -> Option<u64> {
        match &self.memory {
            Memory::Foreign { ptr, .. } => Some(*ptr),
            Memory::Same(twin) => twin.ptr(),
            Memory::None => None,
        }
    }

    /// How the end of the producer's work in a slot is detected. `is_lost`: whether the producer is gone.
    pub(crate) fn completion(
        &self,
        header: &DeviceHeader,
        slot: u32,
        is_lost: impl Fn() -> bool,
    ) -> Result<Completion, CudaError> {
        let handle = header
            .events
            .get(slot as usize)
            .ok_or(CudaError::Corrupt("a slot lies outside its region"))?;
        if *handle == [0; 64] || self.is_same_process() {
            return Ok(Completion::Published);
        }
        let mut events = lock(&self.events);
        let place = events.get_mut(slot as usize).ok_or(CudaError::Gone)?;
        if let Some(event) = place {
            return Ok(Completion::Event(event.clone()));
        }
        if self.refuses_events.load(Ordering::Relaxed) {
            return Ok(Completion::Mark);
        }
        let event = match Event::open(&self.device, handle) {
            // Events of an ended process can no longer be opened.
            Err(CudaError::Driver { .. }) if is_lost() => return Err(CudaError::ExporterGone),
            // Also if events run out, which the driver reports as a lack of memory.
            Err(
                CudaError::Driver { .. }
                | CudaError::DriverTooOld { .. }
                | CudaError::OutOfMemory { .. },
            ) => {
                self.refuses_events.store(true, Ordering::Relaxed);
                return Ok(Completion::Mark);
            }
            event => Arc::new(event?),
        };
        count(&COUNTERS.events_opened);
        fault::point(Point::EventOpened);
        *place = Some(event.clone());
        Ok(Completion::Event(event))
    }

    /// Makes a stream wait for the producer's device work in a slot. `is_lost`: whether the producer is gone. `false`: the end
    /// can only be read in the slot's word, so the stream does not wait.
    pub(crate) fn wait(
        &self,
        header: &DeviceHeader,
        slot: u32,
        stream: Stream,
        is_lost: impl Fn() -> bool,
    ) -> Result<bool, CudaError> {
        if let Memory::Same(twin) = &self.memory {
            return twin.wait(slot, stream).map(|()| true);
        }
        match self.completion(header, slot, &is_lost)? {
            Completion::Published => Ok(true),
            Completion::Mark => Ok(false),
            // A stream that waits for an event that never happens would hang forever.
            Completion::Event(_) if is_lost() => self.is_done(header, slot, || true).map(|_| true),
            Completion::Event(event) => event.wait_on(stream).map(|()| true),
        }
    }

    /// Whether the producer's device work in a slot has ended, according to its event. `is_lost`: as for [`wait`](Self::wait).
    pub(crate) fn is_done(
        &self,
        header: &DeviceHeader,
        slot: u32,
        is_lost: impl Fn() -> bool,
    ) -> Result<bool, CudaError> {
        if let Memory::Same(twin) = &self.memory {
            return twin.is_done(slot);
        }
        // Before the check, because a lost producer does nothing more.
        let lost = is_lost();
        let check = || match self.completion(header, slot, || lost)? {
            Completion::Event(event) => event.has_happened(),
            Completion::Published => Ok(true),
            Completion::Mark => Ok(false),
        };
        match check() {
            Ok(false) | Err(CudaError::Driver { .. }) if lost => Err(CudaError::ExporterGone),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xmem_shm::testing::device_header as sample;

    /// A consumer that has left holds a frame, and opens its memory afterwards.
    #[test]
    fn close_waits_for_memory_that_can_still_be_opened() {
        let header = |kind| DeviceHeader { kind, ..sample() };
        for kind in [TwinKind::Legacy, TwinKind::Foreign] {
            let imports = Imports::default();
            let closed = imports.closing(&header(kind)).unwrap();
            assert!(!closed.load(Ordering::Acquire));
            drop(imports);
            assert!(closed.load(Ordering::Acquire), "it cannot be opened");
        }
        for kind in [TwinKind::Vmm, TwinKind::None] {
            assert!(Imports::default().closing(&header(kind)).is_none());
        }
    }
}
