// SPDX-License-Identifier: MPL-2.0

//! The layout of the pool's buffers, from its configuration.

use gst_video::VideoBufferPoolConfig;

/// The layout of all buffers of the pool.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Size of the memory in bytes.
    pub(super) size: usize,
    pub(super) params: gst::AllocationParams,
    /// The number of buffers that upstream holds at one time.
    pub(super) min: u32,
    /// The planes, if buffers get a GstVideoMeta.
    pub(super) video: Option<(gst_video::VideoInfo, Option<gst_video::VideoAlignment>)>,
}

impl Layout {
    /// Reads the configuration, and writes the resulting values back. `None`: it is invalid.
    pub(super) fn negotiate(config: &mut gst::BufferPoolConfigRef) -> Option<Self> {
        let (caps, size, min, max) = config.params()?;
        let (allocator, mut params) = config.allocator().unwrap_or_default();
        let mut size = size;
        let info = caps
            .as_ref()
            .and_then(|caps| gst_video::VideoInfo::from_caps(caps).ok());
        let mut video = None;
        // Encoded formats have no planes.
        if let Some(mut info) = info.filter(|info| info.format() != gst_video::VideoFormat::Encoded)
        {
            let with_meta = config.has_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
            let mut alignment = config
                .has_option(gst_video::BUFFER_POOL_OPTION_VIDEO_ALIGNMENT)
                .then(|| config.video_alignment())
                .flatten()
                // Without the meta, elements would not find the planes.
                .filter(|_| with_meta);
            if let Some(alignment) = &mut alignment {
                info.align(alignment).ok()?;
                // The rows are aligned only if the memory is aligned too.
                let mask = alignment
                    .stride_align()
                    .iter()
                    .fold(params.align(), |all, align| all | *align as usize);
                params.set_align(mask);
                config.set_video_alignment(alignment);
            }
            size = size.max(u32::try_from(info.size()).ok()?);
            video = with_meta.then_some((info, alignment));
        }
        config.set_params(caps.as_ref(), size, min, max);
        config.set_allocator(allocator.as_ref(), Some(&params));
        Some(Self {
            size: size as usize,
            params,
            min,
            video,
        })
    }

    /// Adds the GstVideoMeta of this layout to a buffer.
    pub(super) fn describe(&self, buffer: &mut gst::BufferRef) -> Result<(), gst::glib::BoolError> {
        let Some((info, alignment)) = &self.video else {
            return Ok(());
        };
        let mut meta =
            gst_video::VideoMeta::add_from_info(buffer, gst_video::VideoFrameFlags::empty(), info)?;
        match alignment {
            Some(alignment) => meta.set_alignment(alignment),
            None => Ok(()),
        }
    }
}
