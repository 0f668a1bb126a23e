// SPDX-License-Identifier: MPL-2.0

//! Frames in the memory of CUDA devices: as GstCudaMemory where they lie, or in host memory with one copy.

use std::sync::Arc;

use gst::prelude::*;
use gst::subclass::prelude::*;
use xmem_core::cuda::{CudaError, CudaFrame};
use xmem_core::{FrameMeta, ReadLease};

use super::{
    delivery::{Nonsense, Way},
    frames::Received,
    imp::{CAT, Started, Stop, XmemSrc, lock},
    settings::Settings,
};
use crate::cuda::{self, Home, Layout, Stream};
use crate::frame::Format;
use crate::planes::Planes;

/// Where frames of one connection become GstCudaMemory.
#[derive(Debug)]
pub(super) struct OnDevice {
    home: Arc<Home>,
    /// What the home was made for.
    meta: Option<xmem_core::VideoLayout>,
    size: usize,
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

impl XmemSrc {
    /// A frame on a device as a buffer. `over_budget`: it is copied, as it cannot be held.
    pub(super) fn receive_device(
        &self,
        started: &mut Started,
        lease: &ReadLease,
        over_budget: bool,
    ) -> Result<Received, Stop> {
        let times = self.stamp(started, lease.meta());
        let memory = if started.settings.download {
            download(lease).map(|memory| (memory, Way::Downloaded))
        } else {
            self.wrapped(started, lease)
                .and_then(|memory| match over_budget {
                    false => Ok((memory, Way::InPlace)),
                    true => cuda::copy(&memory)
                        .map(|copy| (copy, Way::OverBudget))
                        .ok_or_else(|| {
                            Wrong::Missing("there is no room on the device for a copy".into())
                        }),
                })
        };
        match memory {
            Ok((memory, way)) => self.convert(times, |converter| {
                converter.around(memory, lease.meta(), way)
            }),
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
        };
        gst::element_imp_error!(
            self,
            gst::ResourceError::Read,
            ["Cannot use a frame on a CUDA device: {text}"]
        );
        Err(Stop::Flow(gst::FlowError::Error))
    }

    /// The frame where it lies. What is put on the memory's stream waits for its producer's work.
    fn wrapped(&self, started: &mut Started, lease: &ReadLease) -> Result<gst::Memory, Wrong> {
        let frame = lease.cuda()?;
        if frame.pieces().len() != 1 {
            return Err(Wrong::Missing(
                "it lies in several pieces; download=true takes such frames".into(),
            ));
        }
        check_device(&started.settings, &frame)?;
        let format = lock(&self.stream).format.clone();
        let on_device = match started.on_device.take() {
            Some(known)
                if known.is_for(lease.meta(), frame.len(), &format)
                    && known.home.device() == frame.device() =>
            {
                known
            }
            other => self.on_device(other, &frame, lease.meta(), format)?,
        };
        let home = started.on_device.insert(on_device).home.clone();
        frame.wait_on(home.stream())?;
        home.readable(frame, &self.tally)
            .ok_or_else(|| Wrong::Missing("libgstcuda does not take its layout".into()))
    }

    /// `before`: what was made for frames of another layout.
    fn on_device(
        &self,
        before: Option<OnDevice>,
        frame: &CudaFrame,
        meta: &FrameMeta,
        format: Arc<Format>,
    ) -> Result<OnDevice, Wrong> {
        let Some(info) = &format.video else {
            return Err(Wrong::Missing(
                "it is no raw video, and GStreamer knows nothing else on CUDA devices; download=true takes any frame".into(),
            ));
        };
        let nonsense = |reason: &str| Nonsense(reason.to_owned());
        let info = match &meta.video {
            Some(layout) => Planes::check(layout, frame.len(), info)
                .map_err(nonsense)?
                .to_info(info, frame.len())
                .map_err(|error| Nonsense(error.to_string()))?,
            // As in host memory, it is that of the caps then.
            None if frame.len() >= info.size() => info.clone(),
            None => return Err(nonsense("it is smaller than its caps say").into()),
        };
        let context = match before {
            Some(before) if before.home.device() == frame.device() => {
                Some(before.home.context().clone())
            }
            _ => cuda::shared(self.obj().upcast_ref(), Some(frame.device().ordinal())),
        };
        let context = context
            .ok_or_else(|| Wrong::Missing("there is no GstCudaContext of its device".into()))?;
        // A new one: what the last one waited for may never come, if its producer was killed.
        let stream = Stream::new(&context)
            .ok_or_else(|| Wrong::Missing("no CUDA stream can be made".into()))?;
        let home = Home::new(
            context,
            frame.device().clone(),
            Some(stream),
            Layout::of(info),
        );
        gst::debug!(CAT, imp = self, "Frames on a device: {home:?}");
        Ok(OnDevice {
            home,
            meta: meta.video,
            size: frame.len(),
            format,
        })
    }
}

impl OnDevice {
    fn is_for(&self, meta: &FrameMeta, size: usize, format: &Arc<Format>) -> bool {
        meta.video == self.meta && size == self.size && Arc::ptr_eq(format, &self.format)
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

/// The frame in host memory. The CPU waits for the device.
fn download(lease: &ReadLease) -> Result<gst::Memory, Wrong> {
    let frame = lease.cuda()?;
    let size = frame.pieces().map(|(_, len)| len).sum();
    let mut bytes = vec![0; size];
    frame.download(&mut bytes)?;
    Ok(gst::Memory::from_mut_slice(bytes))
}
