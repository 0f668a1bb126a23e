// SPDX-License-Identifier: MPL-2.0

//! Frames in the memory of CUDA devices: as GstCudaMemory where they lie, or in host memory with one copy.

use std::sync::Arc;
use std::time::Duration;

use gst::prelude::*;
use gst::subclass::prelude::*;
use xmem_core::cuda::{CudaError, CudaFrame, Device, PrivateMemory, Rows};
use xmem_core::{FrameMeta, ReadLease};

use super::{
    XmemSrcCudaWait,
    delivery::{Nonsense, Way},
    frames::Received,
    imp::{CAT, Started, Stop, XmemSrc},
    settings::Settings,
};
use crate::cuda::{self, CudaContext, Home, Layout, Stream};
use crate::frame::Format;
use crate::lock::lock;
use crate::planes::{self, Planes};

/// Where frames of one connection become GstCudaMemory.
#[derive(Debug)]
pub(super) struct OnDevice {
    home: Arc<Home>,
    /// What the home was made for.
    format: Arc<Format>,
}

/// What is wrong with a frame.
enum Wrong {
    /// Its producer went before it was whole. There may be another.
    Lost(CudaError),
    Cuda(CudaError),
    Nonsense(Nonsense),
    /// What has to be there for it is not.
    Missing(String),
    /// The element is to stop.
    Cancelled,
}

impl From<Nonsense> for Wrong {
    fn from(nonsense: Nonsense) -> Self {
        Self::Nonsense(nonsense)
    }
}

impl From<CudaError> for Wrong {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::ExporterGone | CudaError::Unfinished => Self::Lost(error),
            error => Self::Cuda(error),
        }
    }
}

fn missing(what: &str) -> Wrong {
    Wrong::Missing(what.to_owned())
}

impl XmemSrc {
    /// A frame on a device as a buffer. `over_budget`: it is copied, as it cannot be held.
    pub(super) fn receive_device(
        &self,
        started: &mut Started,
        lease: &ReadLease,
        over_budget: bool,
    ) -> Result<Received, Stop> {
        let times = self.stamp(started, lease.meta());
        let made = if started.settings.download {
            self.download(lease)
                .map(|memory| (memory, lease.meta().clone(), Way::Downloaded))
        } else {
            self.on_device(started, lease, over_budget)
        };
        match made {
            Ok((memory, meta, way)) => {
                self.convert(times, |converter| converter.around(memory, &meta, way))
            }
            Err(wrong) => self.wrong(wrong),
        }
    }

    fn wrong(&self, wrong: Wrong) -> Result<Received, Stop> {
        let text = match wrong {
            Wrong::Lost(error) => {
                gst::warning!(CAT, imp = self, "A frame is not whole: {error}");
                return Ok(Received::Dropped);
            }
            Wrong::Cuda(error) => error.to_string(),
            Wrong::Nonsense(Nonsense(reason)) => {
                format!("the producer describes a frame that cannot be: {reason}")
            }
            Wrong::Missing(what) => what,
            Wrong::Cancelled => return Ok(Received::CalledOff),
        };
        gst::element_imp_error!(
            self,
            gst::ResourceError::Read,
            ("Cannot use a frame on a CUDA device: {text}")
        );
        Err(Stop::Flow(gst::FlowError::Error))
    }

    /// The frame as GstCudaMemory, and what is known of it then. What is put on the memory's stream waits for its producer's
    /// work.
    fn on_device(
        &self,
        started: &mut Started,
        lease: &ReadLease,
        over_budget: bool,
    ) -> Result<(gst::Memory, FrameMeta, Way), Wrong> {
        let frame = lease.cuda()?;
        if frame.pieces().len() != 1 {
            return Err(missing(
                "it lies in several pieces; download=true takes such frames",
            ));
        }
        check_device(&started.settings, &frame)?;
        let format = lock(&self.stream).format.clone();
        let Some(info) = &format.video else {
            return Err(missing(
                "it is no raw video, and GStreamer knows nothing else on CUDA devices; download=true takes any frame",
            ));
        };
        // Without a layout it is that of the caps, as in host memory.
        let layout = lease.meta().video;
        let layout = layout.unwrap_or_else(|| planes::of_info(info));
        let planes = Planes::check(&layout, frame.len(), info);
        let planes = planes.map_err(|reason| Nonsense(reason.to_owned()))?;
        let home = self.home(started, frame.device(), &format, info)?;
        let mut meta = lease.meta().clone();
        meta.video = Some(planes::of_info(home.layout().info()));
        let as_it_is = home
            .layout()
            .is_of(planes.offsets(), planes.strides(), frame.len());
        if as_it_is && !over_budget {
            match started.settings.cuda_wait {
                XmemSrcCudaWait::Device => frame.wait_on(home.stream().handle())?,
                XmemSrcCudaWait::Cpu => self.wait_for(&frame)?,
            }
            let reader = lock(&self.stream).reader.clone();
            let memory = home.readable(frame, reader.as_ref(), &self.tally);
            let memory = memory.ok_or_else(|| missing("libgstcuda does not take its layout"))?;
            return Ok((memory, meta, Way::InPlace));
        }
        self.wait_for(&frame)?;
        let memory = copy(&frame, &planes, &home)?;
        Ok((
            memory,
            meta,
            if over_budget {
                Way::OverBudget
            } else {
                Way::Layout
            },
        ))
    }

    /// Waits until the producer's work on a frame has ended, unless the element is told to stop.
    fn wait_for(&self, frame: &CudaFrame) -> Result<(), Wrong> {
        /// How long a stop may have to wait.
        const SLICE: Duration = Duration::from_millis(100);
        while !frame.synchronize_for(SLICE)? {
            if self.canceller.is_cancelled() {
                return Err(Wrong::Cancelled);
            }
        }
        Ok(())
    }

    /// The frame in host memory. The CPU waits for the device.
    fn download(&self, lease: &ReadLease) -> Result<gst::Memory, Wrong> {
        let frame = lease.cuda()?;
        self.wait_for(&frame)?;
        let size = frame.pieces().map(|(_, len)| len).sum();
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(size)
            .map_err(|_| Wrong::Missing(format!("there is no host memory for {size} bytes")))?;
        bytes.resize(size, 0);
        frame.download(&mut bytes)?;
        Ok(gst::Memory::from_mut_slice(bytes))
    }

    /// Where frames of this format on this device become GstCudaMemory.
    fn home(
        &self,
        started: &mut Started,
        device: &Device,
        format: &Arc<Format>,
        info: &gst_video::VideoInfo,
    ) -> Result<Arc<Home>, Wrong> {
        let known = started
            .on_device
            .as_ref()
            .filter(|known| known.home.device() == device);
        if let Some(known) = known
            && Arc::ptr_eq(&known.format, format)
        {
            return Ok(known.home.clone());
        }
        let (context, stream) = match known {
            Some(known) => (known.home.context().clone(), known.home.stream().clone()),
            None => self.context_and_stream(device)?,
        };
        let layout = Layout::new(info, &context);
        let layout = layout
            .map_err(|error| Wrong::Missing(format!("{error}; download=true takes any frame")))?;
        let home = Home::new(context, device.clone(), stream, layout);
        gst::debug!(
            CAT,
            imp = self,
            "Frames on device {}: {:?}",
            device.ordinal(),
            home.layout()
        );
        started.on_device = Some(OnDevice {
            home: home.clone(),
            format: format.clone(),
        });
        Ok(home)
    }

    fn context_and_stream(&self, device: &Device) -> Result<(CudaContext, Arc<Stream>), Wrong> {
        let context = cuda::shared(self.obj().upcast_ref(), Some(device.ordinal()));
        let context = context.ok_or_else(|| missing("there is no GstCudaContext of its device"))?;
        // A new one for each producer: what the last one waits for may never come, if its producer was killed.
        let stream = Stream::new(&context).ok_or_else(|| missing("no CUDA stream can be made"))?;
        Ok((context, Arc::new(stream)))
    }
}

fn check_device(settings: &Settings, frame: &CudaFrame) -> Result<(), Wrong> {
    let ordinal = frame.device().ordinal();
    match settings.cuda_device() {
        Some(wanted) if wanted != ordinal => Err(Wrong::Missing(format!(
            "it lies on device {ordinal}, and cuda-device-id is {wanted}"
        ))),
        _ => Ok(()),
    }
}

/// A copy of the frame in private memory of its device, laid out as GStreamer's elements expect. The CPU waits for it.
fn copy(frame: &CudaFrame, planes: &Planes, home: &Arc<Home>) -> Result<gst::Memory, Wrong> {
    let mut rows = Vec::new();
    let places = planes.offsets().iter().zip(planes.strides());
    for (plane, (offset, stride)) in home.layout().planes().zip(places) {
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
    let private = PrivateMemory::new(frame.device(), home.layout().info().size())?;
    frame.copy_rows_to(&private, &rows)?;
    home.wrap_private(private)
        .ok_or_else(|| missing("libgstcuda does not take its layout"))
}
