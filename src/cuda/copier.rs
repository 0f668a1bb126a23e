// SPDX-License-Identifier: MPL-2.0

//! The stream and memory layout for copies of frames on their device.

use std::sync::{Arc, Mutex};

use xmem_core::cuda::{self, CudaError, Device};

use super::context::CudaContext;
use super::layout::Layout;
use super::stream::Stream;
use crate::lock;

/// Caches the stream and layout of the last copy, because the next copy usually needs the same.
#[derive(Debug, Default)]
pub(crate) struct Copier(Mutex<Option<Ready>>);

/// The stream and memory layout for copies of frames of one device and one layout.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    device: Device,
    /// Used if a memory has no stream.
    stream: Arc<Stream>,
    /// The layout of the frames that are copied.
    info: gst_video::VideoInfo,
    layout: Layout,
}

impl Copier {
    /// For frames with the planes of `info` on a device.
    pub(crate) fn ready(
        &self,
        device: &Device,
        info: &gst_video::VideoInfo,
    ) -> Result<Ready, CudaError> {
        let known = lock(&self.0).clone();
        if let Some(known) = &known
            && known.device == *device
            && known.info == *info
        {
            return Ok(known.clone());
        }
        let no = |why: &str| CudaError::NotImportable {
            why: why.to_owned(),
        };
        let context = CudaContext::of_device(device).ok_or_else(|| no("there is no context"))?;
        let stream = match known.filter(|known| known.device == *device) {
            Some(known) => known.stream,
            None => Arc::new(Stream::new(&context).ok_or_else(|| no("no stream can be made"))?),
        };
        // Not the layout of the frame: the CUDA elements of consumers expect the library's layout.
        let layout = gst_video::VideoInfo::builder(info.format(), info.width(), info.height())
            .build()
            .and_then(|info| Layout::new(&info, &context))
            .map_err(|error| no(&error.to_string()))?;
        let ready = Ready {
            device: device.clone(),
            stream,
            info: info.clone(),
            layout,
        };
        *lock(&self.0) = Some(ready.clone());
        Ok(ready)
    }
}

impl Ready {
    /// The stream for memory without a stream.
    pub(crate) fn stream(&self) -> cuda::Stream {
        self.stream.handle()
    }

    /// The layout of a copy.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}
