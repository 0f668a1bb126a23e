// SPDX-License-Identifier: MPL-2.0

//! A frame on a device, for a process that reads it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use xmem_cuda::counts::{COUNTERS, count};
use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::event::{done_by, until_done};
use xmem_cuda::reaper;
use xmem_cuda::reaper::CHECK_INTERVAL;
use xmem_cuda::rows::{Rows, To};
use xmem_cuda::stream::Stream;
use xmem_shm::abi::device_header::TwinKind;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::Deadline;

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
    /// The number of its memory.
    memory: u128,
}

/// A frame on a device that this process may read. It holds the frame like the [`ReadLease`] from which it was made.
///
/// The device may read the bytes in work that is queued on a stream after [`wait_on`](Self::wait_on). That work must have ended
/// when the frame is released; [`release_on`](Self::release_on) ensures that. Dropping it releases the frame at once.
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

/// A frame was not released, and is returned.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct FrameFailure {
    /// The frame.
    pub frame: Box<CudaFrame>,
    /// The reason.
    #[source]
    pub error: CudaError,
}

// No conversion to `CudaError`: the `?` of a caller would drop the frame, and end the lease while the device reads it.
impl FrameFailure {
    /// Releases the frame nevertheless, after the stream's work has ended. The CPU waits. Returns the error.
    ///
    /// On a stream that is being captured, except a thread's default stream, the frame is released after the capture; the
    /// stream must live until then. If a working context's stream cannot be waited for in another way, its work may continue;
    /// then the frame is kept until the process ends.
    pub fn release_after(self, stream: Stream) -> CudaError {
        let Self { frame, error } = self;
        match stream.synchronize(frame.device()) {
            // In a context that is in error no work runs any more.
            Ok(()) | Err(CudaError::ContextInError { .. }) => drop(frame),
            // Only its own thread can use a thread's default stream.
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

/// Releases a frame when its stream is no longer being captured.
fn release_after_capture(frame: Box<CudaFrame>, stream: Stream) {
    let mut frame = Some(frame);
    reaper::DRIVER.every(CHECK_INTERVAL, move || {
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
    /// The frame on its device. Its memory is imported with the first frame in it.
    ///
    /// # Errors
    ///
    /// [`CudaError::NotOnDevice`] if it is in host memory, and others of [`CudaError`].
    pub fn cuda(&self) -> Result<CudaFrame, CudaError> {
        CudaFrame::new(self.clone())
    }

    /// Like [`cuda`](Self::cuda), and consumes this handle.
    ///
    /// # Errors
    ///
    /// As [`cuda`](Self::cuda). The handle is dropped then.
    pub fn into_cuda(self) -> Result<CudaFrame, CudaError> {
        CudaFrame::new(self)
    }
}

/// Imports the region of a held frame, and reports the outcome to its producer.
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
                Ok(import) => leases.link().report_device(true, import.outcome()),
                Err(error) => leases.link().report_device(false, &error.to_string()),
            },
        )?;
    Ok(import)
}

/// The leases of a handle. The producer's own references have none.
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
                        why: "it is in parts, which the producer's own lease does not know: use those".into(),
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
                // The bounds were checked when the frame was received (`ReadLease::new`).
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
        // While the producer lives, because its events cannot be opened afterwards.
        frame.waits.iter().for_each(Wait::prepare);
        Ok(frame)
    }

    /// A frame whose parts are in other regions. The events of each region report the end of the work on its part.
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
                // Such a part has no bytes. It represents the event of a slot.
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
                        why: "its parts are on several devices".into(),
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

    /// The first byte of the payload on the device; of the first part, if it has several.
    pub fn ptr(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.ptr)
    }

    /// The size of the payload in bytes; of the first part, if it has several.
    pub fn len(&self) -> usize {
        self.parts.first().map_or(0, |part| part.len)
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The places of the payload's parts: first byte on the device, and size in bytes.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (u64, usize)> {
        self.parts.iter().map(|part| (part.ptr, part.len))
    }

    /// A random number that identifies the memory of the payload; of the first part, if it has several. If memory is freed and
    /// the address is reused, the number changes.
    pub fn memory_number(&self) -> u128 {
        self.parts.first().map_or(0, |part| part.memory)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How this process opened the memory. `None`: the memory belongs to this process.
    pub fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Whether the frame's producer is in this process, so that its memory is used directly.
    pub fn is_same_process(&self) -> bool {
        self.is_same_process
    }

    /// Whether the producer's work on the frame had ended when this was made, so that nothing must be waited for.
    pub fn is_ready(&self) -> bool {
        self.waits.is_empty()
    }

    /// The lease.
    pub fn lease(&self) -> &ReadLease {
        &self.lease
    }

    /// Makes a stream wait until the producer's work on the frame has ended. No CPU waits, except if the producer's events
    /// cannot be opened here, as from another PID namespace. That is counted.
    ///
    /// # Errors
    ///
    /// [`CudaError::ExporterGone`] if the producer is gone and the end of its work will never be known,
    /// [`CudaError::Unfinished`] if its context is in error. The frame must not be used then.
    pub fn wait_on(&self, stream: Stream) -> Result<(), CudaError> {
        self.waits
            .iter()
            .try_for_each(|wait| wait.wait_on(stream))?;
        fault::point(Point::EventWaited);
        Ok(())
    }

    /// Waits on the CPU until the producer's work on the frame has ended. With [`wait_on`](Self::wait_on) no CPU waits.
    ///
    /// # Errors
    ///
    /// As [`wait_on`](Self::wait_on), also if the producer ends during the wait.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        if self.waits.iter().all(Wait::is_ready) {
            return Ok(());
        }
        count(&COUNTERS.host_syncs);
        self.until_done()
    }

    /// Like [`synchronize`](Self::synchronize), but at most `time`. Returns whether the work has ended.
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

    /// Like [`synchronize`](Self::synchronize), for a caller that counts the wait itself.
    pub(super) fn until_done(&self) -> Result<(), CudaError> {
        self.waits
            .iter()
            .try_for_each(|wait| until_done(|| wait.is_done()))
    }

    /// Copies the payload to host memory, from its beginning, until `to` is full. Waits on the CPU for the producer's work on
    /// the frame, and for the copy.
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

    /// Like [`download`](Self::download), for rows of bytes, such as those of each plane. Source offsets count from the
    /// beginning of the payload, over all of its parts. Rows that are copied together are in one part. It counts as one copy
    /// ([`counts`](xmem_cuda::counts::counts)).
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

    /// Checks rows that are copied into this many bytes. Returns each with the address from which its offsets count.
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

    /// The address from which the rows' offsets count: that of their part, minus the part's offset in the payload.
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

    /// Ends a lease when the stream reaches this point and the caller's handle is dropped. On an error only that handle is left.
    pub(super) fn end_on(&self, stream: Stream) -> Result<(), CudaError> {
        xmem_cuda::when::end(Box::new(self.lease.clone()), &self.device, stream)
    }

    /// Releases the frame after all present work on the stream. If the lease has other handles, it ends with the last of them.
    ///
    /// # Errors
    ///
    /// If the driver fails. The frame is returned, because the device may still read it: use
    /// [`release_after`](FrameFailure::release_after).
    pub fn release_on(self, stream: Stream) -> Result<(), FrameFailure> {
        self.end_on(stream).map_err(|error| FrameFailure {
            frame: Box::new(self),
            error,
        })
    }

    /// Like [`release_on`](Self::release_on), for several streams. The lease ends after the work on all of them.
    ///
    /// # Errors
    ///
    /// As [`release_on`](Self::release_on).
    pub fn release_on_all(self, streams: &[Stream]) -> Result<(), FrameFailure> {
        for stream in streams {
            if let Err(error) = self.end_on(*stream) {
                let frame = Box::new(self);
                return Err(FrameFailure { frame, error });
            }
        }
        Ok(())
    }
}
