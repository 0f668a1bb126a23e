// SPDX-License-Identifier: MPL-2.0

//! A frame on a device, for the process that reads it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use xmem_cuda::counts::{COUNTERS, count};
use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::event::{done_by, until_done};
use xmem_cuda::reaper;
use xmem_cuda::reaper::LOOK;
use xmem_cuda::rows::{Rows, To};
use xmem_cuda::stream::Stream;
use xmem_shm::abi::device_header::TwinKind;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::Deadline;

use super::hand_over::{self, HandedOver};
use super::release;
use super::wait::Wait;
use crate::consumer::leases::Leases;
use crate::frame::hold::{Hold, Memory};
use crate::frame::lease::ReadLease;
use crate::region::RegionView;
use crate::region::device::import::Import;
use crate::region::device::mode::Mode;

/// Bytes on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DevicePart {
    ptr: u64,
    len: usize,
    /// The name of its memory.
    memory: u128,
}

/// A frame on a device, as one process may read it. It holds the frame like the [`ReadLease`] that it was made of.
///
/// The device may read the bytes in work that is put on a stream behind [`wait_on`](Self::wait_on). It has to be done with them
/// when the frame is released, which [`release_on`](Self::release_on) ensures. Merely dropped, the frame is released at once.
pub struct CudaFrame {
    lease: ReadLease,
    device: Device,
    mode: Option<Mode>,
    is_same_process: bool,
    parts: Vec<DevicePart>,
    waits: Vec<Wait>,
}

impl fmt::Debug for CudaFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaFrame")
            .field("lease", &self.lease)
            .field("device", &self.device)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// A frame was not released; it is still there.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct FrameFailure {
    /// The frame.
    pub frame: Box<CudaFrame>,
    /// Why.
    #[source]
    pub error: CudaError,
}

// No conversion to `CudaError`: the `?` of a caller would drop the frame, and end the lease while the device reads it.
impl FrameFailure {
    /// Releases the frame nevertheless, when the stream is done; the CPU waits for that. Returns why it came to this. On a
    /// stream that is being captured, a thread's default one excepted, the frame is released after the capture, until when the
    /// stream has to live. A stream that cannot be waited for otherwise, in a context that works, may read on: then the frame is
    /// kept for as long as the process runs.
    pub fn release_after(self, stream: Stream) -> CudaError {
        let Self { frame, error } = self;
        match stream.synchronize(frame.device()) {
            // In a context that is in error nothing reads any more.
            Ok(()) | Err(CudaError::ContextInError { .. }) => drop(frame),
            // A thread's default stream can be used only by that thread.
            Err(CudaError::Captured) if stream != Stream::PER_THREAD => {
                release_after_capture(frame, stream);
            }
            Err(error) => {
                log::error!("a frame stays held, since its stream cannot be waited for: {error}");
                std::mem::forget(frame);
            }
        }
        error
    }
}

/// Releases a frame when its stream is not being captured any more.
fn release_after_capture(frame: Box<CudaFrame>, stream: Stream) {
    let mut frame = Some(frame);
    reaper::DRIVER.every(LOOK, move || {
        let Some(waits) = frame.take() else {
            return true;
        };
        match waits.release_on(stream) {
            Ok(()) => true,
            Err(failure) if failure.error == CudaError::Captured => {
                frame = Some(failure.frame);
                false
            }
            Err(failure) => {
                failure.release_after(stream);
                true
            }
        }
    });
}

impl ReadLease {
    /// The frame as it lies on its device; its memory is imported when the first frame of it comes.
    ///
    /// # Errors
    ///
    /// [`CudaError::NotOnDevice`] if it lies in host memory, and others of [`CudaError`].
    pub fn cuda(&self) -> Result<CudaFrame, CudaError> {
        CudaFrame::new(self.clone())
    }

    /// The same, in place of this handle.
    ///
    /// # Errors
    ///
    /// As [`cuda`](Self::cuda); the handle is gone then.
    pub fn into_cuda(self) -> Result<CudaFrame, CudaError> {
        CudaFrame::new(self)
    }
}

/// Imports the region of a frame that is held, and reports to its producer how that went.
fn import(view: &RegionView, leases: &Leases) -> Result<Arc<Import>, CudaError> {
    let cuda = view.cuda().ok_or(CudaError::NotOnDevice)?;
    if !leases.is_of_this_process() {
        return Err(CudaError::Forked);
    }
    let import =
        cuda.imports.get(
            cuda.header(),
            cuda.twin_fd(),
            leases.link(),
            |outcome| match outcome {
                Ok(import) => leases.device_half().report(true, import.outcome()),
                Err(error) => leases.device_half().report(false, &error.to_string()),
            },
        )?;
    Ok(import)
}

/// The leases that a handle is of. The producer's own references are of none.
fn leases(hold: &Hold) -> Result<Arc<Leases>, CudaError> {
    hold.holder().ok_or(CudaError::NotOnDevice)
}

impl CudaFrame {
    fn new(lease: ReadLease) -> Result<Self, CudaError> {
        let outside = || CudaError::Corrupt("a frame lies outside its memory");
        let (offset, size) = (lease.meta().offset, lease.meta().size);
        let len = usize::try_from(size).map_err(|_| outside())?;
        let hold = lease.hold();
        let slot = || {
            let header = hold.device_header().ok_or(CudaError::NotOnDevice)?;
            let slot = header.slot_at(hold.offset(), hold.len());
            Ok::<_, CudaError>((slot.ok_or_else(outside)?, header))
        };
        let mut frame = match hold.memory() {
            Memory::Own(region) => {
                if lease.has_unknown_parts() {
                    return Err(CudaError::NotImportable {
                        why: "it lies in parts, which the producer's own lease does not know: use those".into(),
                    });
                }
                let twin = &region.cuda().ok_or(CudaError::NotOnDevice)?.twin;
                let (slot, header) = slot()?;
                let start = twin.ptr().ok_or(CudaError::NotOnDevice)?
                    + u64::from(slot) * header.device_stride;
                Self {
                    device: twin.device().clone(),
                    mode: None,
                    is_same_process: true,
                    parts: vec![DevicePart {
                        ptr: start + offset,
                        len,
                        memory: twin.number(),
                    }],
                    waits: vec![Wait::Own {
                        region: region.clone(),
                        slot,
                    }],
                    lease,
                }
            }
            Memory::Received(view) if lease.parts().is_empty() => {
                let leases = leases(hold)?;
                let import = import(view, &leases)?;
                let (slot, header) = slot()?;
                let start =
                    import.ptr().ok_or_else(outside)? + u64::from(slot) * header.device_stride;
                // Its bounds were checked when it was received (`ReadLease::new`).
                let view = view.clone();
                Self {
                    device: import.device().clone(),
                    mode: import.mode(),
                    is_same_process: import.is_same_process(),
                    parts: vec![DevicePart {
                        ptr: start + offset,
                        len,
                        memory: header.number(),
                    }],
                    waits: vec![Wait::Slot {
                        import,
                        view,
                        slot,
                        leases,
                    }],
                    lease,
                }
            }
            Memory::Received(_) => Self::in_parts(lease)?,
        };
        frame.waits.retain(|wait| !wait.is_ready());
        // While the producer lives: its events cannot be opened any more when it is gone.
        frame.waits.iter().for_each(Wait::prepare);
        Ok(frame)
    }

    /// A frame whose parts lie in other regions. The events of each region show when its part is done.
    fn in_parts(lease: ReadLease) -> Result<Self, CudaError> {
        let outside = || CudaError::Corrupt("a part lies outside its memory");
        let mut parts = Vec::new();
        let mut waits = Vec::new();
        let mut memory: Option<Arc<Import>> = None;
        let hold = lease.hold();
        let own_leases = leases(hold)?;
        if let Memory::Received(view) = hold.memory()
            && let Some(header) = hold.device_header()
        {
            let slot = header.slot_at(hold.offset(), hold.len());
            waits.push(Wait::Slot {
                import: import(view, &own_leases)?,
                view: view.clone(),
                slot: slot.ok_or_else(outside)?,
                leases: own_leases.clone(),
            });
        }
        for part in lease.parts() {
            let view = part.view();
            let cuda = view.cuda().ok_or(CudaError::NotOnDevice)?;
            let header = cuda.header();
            let leases = match part.held_at_origin() {
                Some(hold) => leases(hold)?,
                None => own_leases.clone(),
            };
            let import = import(view, &leases)?;
            let slot = match header.kind {
                TwinKind::Foreign => None,
                // Such a part has no bytes: it stands for the event of a slot.
                TwinKind::None => Some(part.offset() as u64),
                TwinKind::Vmm | TwinKind::Legacy => {
                    (part.offset() as u64).checked_div(header.device_stride)
                }
            };
            if let Some(ptr) = import.ptr().filter(|_| header.kind != TwinKind::None) {
                parts.push(DevicePart {
                    ptr: ptr + part.offset() as u64,
                    len: part.len(),
                    memory: header.number(),
                });
                if memory
                    .as_ref()
                    .is_some_and(|other| other.device() != import.device())
                {
                    return Err(CudaError::NotImportable {
                        why: "its parts lie on several devices".into(),
                    });
                }
                memory = Some(import.clone());
            }
            if let Some(slot) = slot {
                let slot = u32::try_from(slot)
                    .ok()
                    .filter(|slot| *slot < header.slots)
                    .ok_or_else(outside)?;
                waits.push(Wait::Slot {
                    import,
                    view: view.clone(),
                    slot,
                    leases,
                });
            }
        }
        let memory = memory.ok_or(CudaError::NotOnDevice)?;
        Ok(Self {
            device: memory.device().clone(),
            mode: memory.mode(),
            is_same_process: memory.is_same_process(),
            parts,
            waits,
            lease,
        })
    }

    /// First byte of the payload on the device; of its first part, if it lies in several.
    pub fn ptr(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.ptr)
    }

    /// Size of the payload in bytes; of its first part, if it lies in several.
    pub fn len(&self) -> usize {
        self.parts.first().map_or(0, |part| part.len)
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the payload lies, part by part: first byte on the device, and size in bytes.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (u64, usize)> {
        self.parts.iter().map(|part| (part.ptr, part.len))
    }

    /// Names the memory that the payload is in, at random; its first part's, if it lies in several. When memory is freed its
    /// address may name other memory, and this number changes.
    pub fn memory_number(&self) -> u128 {
        self.parts.first().map_or(0, |part| part.memory)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How this process came by the memory; `None`: it is its own producer's.
    pub fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Whether the frame's producer is in this process, so that its memory is used as it is.
    pub fn is_same_process(&self) -> bool {
        self.is_same_process
    }

    /// Whether the producer's work on the frame had ended when this was made, so that there is nothing to wait for.
    pub fn is_ready(&self) -> bool {
        self.waits.is_empty()
    }

    /// The lease.
    pub fn lease(&self) -> &ReadLease {
        &self.lease
    }

    /// Has a stream wait until the producer's work on the frame has ended. No CPU waits, unless the producer's events cannot be
    /// opened here, as in another PID namespace: then the CPU does, and that is counted.
    ///
    /// # Errors
    ///
    /// [`CudaError::ExporterGone`] if the producer is gone and that will not be known, [`CudaError::Unfinished`] if its
    /// context is in error: the frame is not to be used then.
    pub fn wait_on(&self, stream: Stream) -> Result<(), CudaError> {
        self.waits
            .iter()
            .try_for_each(|wait| wait.wait_on(stream))?;
        fault::point(Point::EventWaited);
        Ok(())
    }

    /// Waits until the producer's work on the frame has ended. The CPU waits; [`wait_on`](Self::wait_on) does without.
    ///
    /// # Errors
    ///
    /// As [`wait_on`](Self::wait_on), also if the producer goes while this waits.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        if self.waits.iter().all(Wait::is_ready) {
            return Ok(());
        }
        count(&COUNTERS.host_syncs);
        self.until_done()
    }

    /// As [`synchronize`](Self::synchronize), but not for longer than `time`. Returns whether the work has ended.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize).
    pub fn synchronize_for(&self, time: Duration) -> Result<bool, CudaError> {
        if self.waits.iter().all(Wait::is_ready) {
            return Ok(true);
        }
        count(&COUNTERS.host_syncs);
        let deadline = Deadline::after(Some(time));
        for wait in &self.waits {
            if !done_by(deadline, || wait.is_done())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// As [`synchronize`](Self::synchronize), for a caller that counts the wait as part of something else.
    pub(super) fn until_done(&self) -> Result<(), CudaError> {
        self.waits
            .iter()
            .try_for_each(|wait| until_done(|| wait.is_done()))
    }

    /// Copies the payload to host memory, from its beginning, as much as there is room for. Waits until the producer's work on
    /// the frame has ended, and for the copy: the CPU waits.
    ///
    /// # Errors
    ///
    /// [`CudaError::OutOfBounds`] if the payload has fewer bytes, and others as [`synchronize`](Self::synchronize).
    pub fn download(&self, to: &mut [u8]) -> Result<(), CudaError> {
        let mut rows = Vec::with_capacity(self.parts.len());
        let mut start = 0;
        for part in &self.parts {
            let len = part.len.min(to.len() - start);
            rows.push(Rows::plain(start, start, len));
            start += len;
        }
        if start < to.len() {
            return Err(CudaError::OutOfBounds);
        }
        self.download_rows(&rows, to)
    }

    /// The same with rows of bytes: those of each plane, for example. Where they are copied from is counted from the beginning
    /// of the payload, through its parts, if it lies in several; rows that are copied at once lie in one of them. It counts
    /// as one copy ([`counts`](xmem_cuda::counts::counts)).
    ///
    /// # Errors
    ///
    /// [`CudaError::OutOfBounds`], and others as [`synchronize`](Self::synchronize).
    pub fn download_rows(&self, rows: &[Rows], to: &mut [u8]) -> Result<(), CudaError> {
        let found = self.find(rows, to.len())?;
        count(&COUNTERS.copies);
        count(&COUNTERS.host_syncs);
        self.until_done()?;
        xmem_cuda::copy::rows_now(&self.device, To::Host(to.as_mut_ptr()), &found)
    }

    /// Rows to be copied into so many bytes, each with the address from which its first byte is counted.
    pub(super) fn find<'a>(
        &self,
        rows: &'a [Rows],
        to: usize,
    ) -> Result<Vec<(u64, &'a Rows)>, CudaError> {
        let find = |rows: &'a Rows| {
            rows.check_to(to)?;
            Ok((self.start_of(rows)?, rows))
        };
        rows.iter().map(find).collect()
    }

    /// Where the rows' first byte would be if the part that they lie in began with the payload.
    fn start_of(&self, rows: &Rows) -> Result<u64, CudaError> {
        let end = rows.read_end()?;
        let mut before = 0;
        for part in &self.parts {
            let after = before + part.len;
            if rows.from >= before && end <= after {
                return Ok(part.ptr.wrapping_sub(before as u64));
            }
            before = after;
        }
        Err(CudaError::OutOfBounds)
    }

    /// Releases the frame after all work that was put on the stream so far. If there are other handles to the lease, it ends
    /// with the last of them.
    ///
    /// # Errors
    ///
    /// If the driver refuses; the frame is given back, since the device may still read it:
    /// [`release_after`](FrameFailure::release_after) is for that.
    pub fn release_on(self, stream: Stream) -> Result<(), FrameFailure> {
        release::by_host_function(&self.lease, &self.device, stream).map_err(|error| FrameFailure {
            frame: Box::new(self),
            error,
        })
    }

    /// The same for work on several streams: the lease ends after the work on all of them.
    ///
    /// # Errors
    ///
    /// As [`release_on`](Self::release_on).
    pub fn release_on_all(self, streams: &[Stream]) -> Result<(), FrameFailure> {
        for stream in streams {
            if let Err(error) = release::by_host_function(&self.lease, &self.device, *stream) {
                let frame = Box::new(self);
                return Err(FrameFailure { frame, error });
            }
        }
        Ok(())
    }

    /// As [`release_on`](Self::release_on), but the device itself clears the lease's word, without a thread of the driver.
    /// Only with the last handle to the lease.
    ///
    /// # Errors
    ///
    /// [`CudaError::Shared`] if there are other handles, [`CudaError::Unsupported`] if the device cannot; the frame is
    /// given back.
    pub fn release_by_write_on(self, stream: Stream) -> Result<(), FrameFailure> {
        let device = self.device.clone();
        // Before it is handed over: from there on it cannot be given back.
        if let Err(error) = device.with_context_of(stream, |_| Ok(())) {
            let frame = Box::new(self);
            return Err(FrameFailure { frame, error });
        }
        hand_over::by_write(self.hand_over()?, &device, stream);
        Ok(())
    }

    /// Hands the lease over to the device: a kernel that is launched behind this ends it, by storing 0 to a word after a
    /// fence for the whole system. Until then the frame counts towards this consumer's budget. Only with the last handle to
    /// the lease; the address of the frame's bytes stays good until the kernel's store.
    ///
    /// # Errors
    ///
    /// As [`release_by_write_on`](Self::release_by_write_on).
    pub fn hand_over(mut self) -> Result<HandedOver, FrameFailure> {
        hand_over::hand_over(&mut self.lease, &self.device).map_err(|error| FrameFailure {
            frame: Box::new(self),
            error,
        })
    }
}
