// SPDX-License-Identifier: MPL-2.0

//! The stream that the source makes: its sticky state, its caps, and what downstream can read.

use std::sync::{Arc, Mutex};

use xmem_core::Sticky;

use super::times::Course;
use crate::{
    cuda,
    frame::{Format, Memory},
    lock,
};

#[derive(Debug, Default)]
pub(super) struct Stream(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    sticky: Sticky,
    caps: Option<gst::Caps>,
    /// The application has a message that the caps are refused.
    reported_refusal: bool,
    /// Whether frames are handed on in the memory of a device. `None`: not known yet.
    on_device: Option<bool>,
    format: Arc<Format>,
    course: Course,
    /// Downstream can read a GstVideoMeta.
    video_meta: bool,
    /// The CUDA stream of downstream, if it names one.
    reader: Option<Arc<cuda::Stream>>,
}

impl State {
    /// Whether frames lie elsewhere than the present caps state.
    fn is_elsewhere(&self, on_device: Option<bool>) -> bool {
        let is_cuda = self.format.memory == Memory::Cuda;
        self.caps.is_some() && on_device.is_some_and(|on_device| on_device != is_cuda)
    }
}

impl Stream {
    pub(super) fn reset(&self) {
        let before = std::mem::take(&mut *lock(&self.0));
        drop(before);
    }

    pub(super) fn caps(&self) -> Option<gst::Caps> {
        lock(&self.0).caps.clone()
    }

    pub(super) fn set_caps(&self, caps: gst::Caps) {
        let mut state = lock(&self.0);
        state.format = Arc::new(Format::from_caps(&caps));
        state.caps = Some(caps);
        state.video_meta = false;
    }

    pub(super) fn format(&self) -> Arc<Format> {
        lock(&self.0).format.clone()
    }

    pub(super) fn course(&self) -> Course {
        lock(&self.0).course
    }

    /// Returns the course before.
    pub(super) fn replace_course(&self, course: Course) -> Course {
        std::mem::replace(&mut lock(&self.0).course, course)
    }

    /// Whether downstream finds the planes wherever they are. Memory other than the host's is never laid out anew.
    pub(super) fn takes_any_layout(&self) -> bool {
        let state = lock(&self.0);
        state.video_meta || state.format.memory != Memory::Any
    }

    pub(super) fn reader(&self) -> Option<Arc<cuda::Stream>> {
        lock(&self.0).reader.clone()
    }

    /// Notes what downstream answered to an allocation query.
    pub(super) fn set_downstream(&self, video_meta: bool, reader: Option<cuda::Stream>) {
        let mut state = lock(&self.0);
        state.video_meta = video_meta;
        state.reader = reader.map(Arc::new);
    }

    /// Whether the frames need no others to be decoded, whatever their flags. GstVideoEncoder marks as DELTA_UNIT what
    /// the encoder does not call a sync point, and encoders of pictures, such as pngenc, mark no frame as one.
    pub(super) fn has_only_key_frames(&self) -> bool {
        let caps = self.caps();
        let structure = caps.as_ref().and_then(|caps| caps.structure(0));
        structure.is_some_and(|structure| {
            let name = structure.name().as_str();
            name.ends_with("/x-raw")
                || name.starts_with("image/")
                || name == "application/x-yuv4mpeg"
        })
    }

    pub(super) fn is_elsewhere(&self, on_device: Option<bool>) -> bool {
        lock(&self.0).is_elsewhere(on_device)
    }

    /// Takes over the sticky state, and where frames are now handed on, if that is known. Returns the state before, whether the
    /// frames have moved, and where they are.
    pub(super) fn replace_sticky(
        &self,
        new: Sticky,
        on_device: Option<bool>,
    ) -> (Sticky, bool, Option<bool>) {
        let mut state = lock(&self.0);
        let moved = state.is_elsewhere(on_device);
        state.on_device = on_device.or(state.on_device);
        let before = std::mem::replace(&mut state.sticky, new);
        (before, moved, state.on_device)
    }

    /// Notes whether the application has a message that the caps are refused. Returns what was noted before.
    pub(super) fn note_refusal(&self, is_reported: bool) -> bool {
        std::mem::replace(&mut lock(&self.0).reported_refusal, is_reported)
    }
}
