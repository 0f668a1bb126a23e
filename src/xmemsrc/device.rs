// SPDX-License-Identifier: MPL-2.0

//! Frames in the memory of CUDA devices: as GstCudaMemory in place, or copied once to host memory.

use std::sync::Arc;
use std::time::Duration;

use gst::prelude::*;
use xmem_core::cuda::{CudaError, CudaFrame, Device, PrivateMemory, Rows};
use xmem_core::{FrameMeta, ReadLease};

use super::{
    base::CAT,
    buffer::{self, Converter, InvalidFrame, Outcome, Placement},
    run::{SourceContext, Started},
    settings::{Settings, XmemSrcCudaWait},
    times::BufferTimes,
};
use crate::buffers::planes::{self, Planes};
use crate::cuda::{self, CudaContext, Layout, MemoryCache, Stream};

/// Why a frame cannot be used.
enum Failure {
    /// Its producer ended before the frame was complete. Another producer may follow.
    Lost(CudaError),
    Cuda(CudaError),
    Invalid(InvalidFrame),
    /// A resource or a property of the frame is missing.
    Missing(String),
    /// The element is being stopped.
    Cancelled,
}

impl From<InvalidFrame> for Failure {
    fn from(invalid: InvalidFrame) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::ExporterGone | CudaError::Unfinished => Self::Lost(error),
            error => Self::Cuda(error),
        }
    }
}

fn missing(what: &str) -> Failure {
    Failure::Missing(what.to_owned())
}

/// Converts a frame on a device to a buffer. `over_budget`: the frame is copied, because it cannot be held.
#[inline(never)]
pub(super) fn receive(
    source: SourceContext<'_>,
    started: &mut Started,
    lease: &ReadLease,
    times: BufferTimes,
    over_budget: bool,
) -> Result<Outcome, gst::FlowError> {
    let made = if source.settings.download {
        download(source, lease).map(|memory| (memory, lease.meta().clone(), Placement::Downloaded))
    } else {
        on_device(source, started, lease, over_budget)
    };
    match made {
        Ok((memory, meta, placement)) => {
            let converter = Converter::new(source, started.stream_mut(), times);
            buffer::outcome(source, converter.finish([memory], &meta, placement))
        }
        Err(failure) => fail(source, failure),
    }
}

fn fail(source: SourceContext<'_>, failure: Failure) -> Result<Outcome, gst::FlowError> {
    let text = match failure {
        Failure::Lost(error) => {
            gst::warning!(CAT, obj = source.element, "A frame is not whole: {error}");
            return Ok(Outcome::Dropped);
        }
        Failure::Cuda(error) => error.to_string(),
        Failure::Invalid(InvalidFrame(reason)) => {
            format!("the producer's description of it is invalid: {reason}")
        }
        Failure::Missing(what) => what,
        Failure::Cancelled => return Ok(Outcome::Cancelled),
    };
    gst::element_error!(
        source.element,
        gst::ResourceError::Read,
        ("Cannot use a frame on a CUDA device: {text}")
    );
    Err(gst::FlowError::Error)
}

/// The frame as GstCudaMemory, with its metadata. Work on the memory's stream waits for the producer's work.
fn on_device(
    source: SourceContext<'_>,
    started: &mut Started,
    lease: &ReadLease,
    over_budget: bool,
) -> Result<(gst::Memory, FrameMeta, Placement), Failure> {
    let frame = lease.cuda()?;
    if frame.parts().len() != 1 {
        return Err(missing(
            "it is in several parts; download=true reads such frames",
        ));
    }
    check_device(source.settings, &frame)?;
    let format = started.stream().format().clone();
    let Some(info) = &format.video else {
        return Err(missing(
            "it is not raw video, and GStreamer knows nothing else on CUDA devices; download=true reads any frame",
        ));
    };
    // Without a layout, the frame has the layout that its caps imply, as in host memory.
    let layout = lease.meta().layout.video;
    let layout = layout.unwrap_or_else(|| planes::of_info(info));
    let planes = Planes::check(&layout, frame.len(), info);
    let planes = planes.map_err(|reason| InvalidFrame(reason.to_owned()))?;
    let cache = cache_for(source, started, frame.device(), info)?;
    let mut meta = lease.meta().clone();
    meta.layout_mut().video = Some(planes::of_info(cache.layout().info()));
    let in_place = cache
        .layout()
        .is_of(planes.offsets(), planes.strides(), frame.len());
    if in_place && !over_budget {
        match source.settings.cuda_wait {
            XmemSrcCudaWait::Device => frame.wait_on(cache.stream().handle())?,
            XmemSrcCudaWait::Cpu => wait_for(source, &frame)?,
        }
        let reader = started.stream().reader();
        let memory = cache.readable(frame, reader, source.tally);
        let memory = memory.ok_or_else(|| missing("libgstcuda does not take its layout"))?;
        return Ok((memory, meta, Placement::InPlace));
    }
    wait_for(source, &frame)?;
    let memory = copy(&frame, &planes, &cache, started.stream().reader())?;
    Ok((
        memory,
        meta,
        if over_budget {
            Placement::OverBudget
        } else {
            Placement::Layout
        },
    ))
}

/// Waits until the producer's work on a frame has ended, or the element is being stopped.
fn wait_for(source: SourceContext<'_>, frame: &CudaFrame) -> Result<(), Failure> {
    /// The interval at which the wait checks for a stop.
    const SLICE: Duration = Duration::from_millis(100);
    while !frame.synchronize_for(SLICE)? {
        if source.canceller.is_cancelled() {
            return Err(Failure::Cancelled);
        }
    }
    Ok(())
}

/// Copies the frame to host memory. The CPU waits for the device.
fn download(source: SourceContext<'_>, lease: &ReadLease) -> Result<gst::Memory, Failure> {
    let frame = lease.cuda()?;
    wait_for(source, &frame)?;
    let size = frame.parts().map(|(_, len)| len).sum();
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(size)
        .map_err(|_| Failure::Missing(format!("there is no host memory for {size} bytes")))?;
    bytes.resize(size, 0);
    frame.download(&mut bytes)?;
    Ok(gst::Memory::from_mut_slice(bytes))
}

/// The cache of GstCudaMemory for frames of this format on this device.
fn cache_for(
    source: SourceContext<'_>,
    started: &mut Started,
    device: &Device,
    info: &gst_video::VideoInfo,
) -> Result<Arc<MemoryCache>, Failure> {
    let known = started
        .cache()
        .filter(|(cache, _)| cache.device() == device);
    if let Some((cache, of)) = known
        && of == info
    {
        return Ok(cache.clone());
    }
    let (context, stream) = match known {
        Some((cache, _)) => (cache.context().clone(), cache.stream().clone()),
        None => context_and_stream(source, device)?,
    };
    let layout = Layout::new(info, &context);
    let layout = layout
        .map_err(|error| Failure::Missing(format!("{error}; download=true takes any frame")))?;
    let cache = MemoryCache::new(context, device.clone(), stream, layout);
    gst::debug!(
        CAT,
        obj = source.element,
        "Frames on device {}: {:?}",
        device.ordinal(),
        cache.layout()
    );
    started.set_cache((cache.clone(), info.clone()));
    Ok(cache)
}

fn context_and_stream(
    source: SourceContext<'_>,
    device: &Device,
) -> Result<(CudaContext, Arc<Stream>), Failure> {
    let context = cuda::shared(source.element.upcast_ref(), Some(device.ordinal()));
    let context = context.ok_or_else(|| missing("there is no GstCudaContext of its device"))?;
    // A new stream for each producer: the previous one may wait for work of a killed process, and that wait never ends.
    let stream = Stream::new(&context).ok_or_else(|| missing("no CUDA stream can be made"))?;
    Ok((context, Arc::new(stream)))
}

fn check_device(settings: &Settings, frame: &CudaFrame) -> Result<(), Failure> {
    let ordinal = frame.device().ordinal();
    match settings.cuda_device() {
        Some(wanted) if wanted != ordinal => Err(Failure::Missing(format!(
            "it is on device {ordinal}, but cuda-device-id is {wanted}"
        ))),
        _ => Ok(()),
    }
}

/// Copies the frame to private memory of its device, in the layout that GStreamer's elements expect. The CPU waits for the
/// copy.
fn copy(
    frame: &CudaFrame,
    planes: &Planes,
    cache: &Arc<MemoryCache>,
    reader: Option<&Arc<Stream>>,
) -> Result<gst::Memory, Failure> {
    let mut rows = Vec::new();
    let places = planes.offsets().iter().zip(planes.strides());
    for (plane, (offset, stride)) in cache.layout().planes().zip(places) {
        rows.push(Rows {
            from: *offset,
            from_pitch: usize::try_from(*stride)
                .map_err(|_| missing("its rows run upwards; download=true takes such frames"))?,
            to: plane.offset,
            to_pitch: plane.pitch,
            width: plane.width,
            height: plane.height,
        });
    }
    let private = PrivateMemory::new(frame.device(), cache.layout().info().size())?;
    frame.copy_rows_to(&private, &rows)?;
    cache
        .wrap_private(private, reader)
        .ok_or_else(|| missing("libgstcuda does not take its layout"))
}
