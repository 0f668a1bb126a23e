// SPDX-License-Identifier: MPL-2.0

//! The stream and memory for copies of frames on their device.

use std::sync::{Arc, Mutex};

use xmem_core::cuda::{self, CudaError, Device};

use super::context::CudaContext;
use super::layout::Layout;
use super::stream::Stream;
use crate::lock;

/// Keeps the means of the last copy, since the next one mostly needs the same.
#[derive(Debug, Default)]
pub(crate) struct Copier(Mutex<Option<Ready>>);

/// The stream and memory for copies of frames of one device and one layout.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    device: Device,
    /// For memory that has no stream.
    stream: Arc<Stream>,
    /// The layout that it was made for.
    info: gst_video::VideoInfo,
    layout: Layout,
}

impl Copier {
    /// For frames on a device whose planes lie as `info` has them.
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
        // Not that of the memory: the CUDA elements of consumers expect the library's own layout.
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
    /// The stream for memory that has none.
    pub(crate) fn stream(&self) -> cuda::Stream {
        self.stream.handle()
    }

    /// Where the planes of a copy lie.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}
