// SPDX-License-Identifier: MPL-2.0

//! Received frames.
#![allow(unsafe_code)] // functions and pointers of C

use std::ffi::{CString, c_char, c_int, c_void};
use std::ops::Deref;
use std::ptr;
use std::sync::{Arc, OnceLock};

use xmem_core::cuda::Stream;
use xmem_core::follow::Taken;
use xmem_core::{DmabufPlane, FrameInfo, FrameLayout, FrameMeta, ReadLease, Sticky, Storage, Text};

use crate::border::{Out, Sized0, call, needed};
use crate::device::Reads;
use crate::entries::Held;
use crate::error::{Code, Failure};
use crate::handles::{Table, give, too_many};
use crate::planes::{Outline, Piece, Pieces, Planes};

pub(crate) static FRAMES: Table<Handle> = Table::new("frame");

/// What is behind a handle.
pub(crate) enum Handle {
    First(Frame),
    /// The frame of another handle, which may have ended.
    Other(Held<Self>),
}

impl Deref for Handle {
    type Target = Frame;

    #[inline(always)]
    fn deref(&self) -> &Frame {
        match self {
            Self::First(frame) => frame,
            // That is the first.
            Self::Other(first) => first,
        }
    }
}

/// A time that is not known.
pub(crate) const NO_TIME: i64 = i64::MIN;

/// A frame, held in its slot or copied.
pub(crate) struct Frame {
    /// Before the bytes, because it may hold them longer.
    reads: Reads,
    bytes: Bytes,
    common: Arc<Common>,
    caps: OnceLock<CString>,
    /// Keeps their descriptors open.
    dmabuf: OnceLock<Vec<DmabufPlane>>,
}

/// What all frames with one layout have in common. Most frames have the layout of the frame before.
pub(crate) struct Common {
    layout: Arc<FrameLayout>,
    content_type: [c_char; 32],
    format: [c_char; 32],
    outline: Outline,
}

impl Common {
    #[cold]
    fn new(layout: &Arc<FrameLayout>) -> Arc<Self> {
        let video = layout.video.as_ref();
        Arc::new(Self {
            layout: layout.clone(),
            content_type: c_text(&layout.content_type),
            format: c_text(&video.map(|video| video.format).unwrap_or_default()),
            outline: Outline::new(video),
        })
    }
}

enum Bytes {
    Held(ReadLease),
    Copied(Box<Private>),
}

struct Private {
    bytes: Box<[u8]>,
    info: FrameInfo,
    meta: FrameMeta,
    sticky: Arc<Sticky>,
}

impl Frame {
    /// `last`: of the frame before. `None`: the frame is past the budget, and its bytes cannot be read here, so it cannot be copied.
    pub(crate) fn new(taken: Taken<'_>, last: &mut Option<Arc<Common>>) -> Option<Self> {
        let layout = match &taken {
            Taken::Kept(lease) => &lease.meta().layout,
            Taken::Lent(lease) => &lease.meta().layout,
        };
        let common = match last {
            Some(common) if Arc::ptr_eq(&common.layout, layout) => common,
            _ => last.insert(Common::new(layout)),
        };
        let common = common.clone();
        let bytes = match taken {
            Taken::Kept(lease) => Bytes::Held(lease),
            Taken::Lent(lease) => Bytes::Copied(Box::new(Private {
                bytes: lease.to_vec().ok()?.into(),
                info: *lease.info(),
                meta: lease.meta().clone(),
                sticky: lease.sticky().clone(),
            })),
        };
        Some(Self {
            reads: Reads::default(),
            bytes,
            common,
            caps: OnceLock::new(),
            dmabuf: OnceLock::new(),
        })
    }

    fn is_copied(&self) -> bool {
        matches!(self.bytes, Bytes::Copied(_))
    }

    pub(crate) fn meta(&self) -> &FrameMeta {
        match &self.bytes {
            Bytes::Held(lease) => lease.meta(),
            Bytes::Copied(copy) => &copy.meta,
        }
    }

    fn info(&self) -> &FrameInfo {
        match &self.bytes {
            Bytes::Held(lease) => lease.info(),
            Bytes::Copied(copy) => &copy.info,
        }
    }

    fn sticky(&self) -> &Sticky {
        match &self.bytes {
            Bytes::Held(lease) => lease.sticky(),
            Bytes::Copied(copy) => &copy.sticky,
        }
    }

    /// The lease, if the bytes are on a device.
    fn on_device(&self) -> Option<&ReadLease> {
        match &self.bytes {
            Bytes::Held(lease) if lease.info().storage == Storage::Cuda => Some(lease),
            _ => None,
        }
    }

    /// The pieces of the payload in host memory, one after the other: one in its slot, or each of its parts.
    fn pieces(&self) -> Result<Pieces, Failure> {
        let unreadable = |text: String| Failure::new(Code::NotReadable, text);
        match &self.bytes {
            Bytes::Copied(copy) => Ok(Pieces::One([Piece::of(&copy.bytes)])),
            Bytes::Held(lease) if lease.parts().is_empty() => match lease.bytes() {
                Ok(bytes) => Ok(Pieces::One([Piece::of(bytes)])),
                Err(error) => Err(unreadable(error.to_string())),
            },
            Bytes::Held(lease) => {
                let parts = lease.parts().iter().map(|part| part.map());
                let pieces = parts.map(|part| part.map(Piece::of));
                let pieces: Result<_, _> = pieces.collect();
                pieces
                    .map(Pieces::Several)
                    .map_err(|error| unreadable(error.to_string()))
            }
        }
    }

    /// The pieces in the memory of the frame, and the number of its device. There, `stream` may read them.
    pub(crate) fn pieces_for(&self, stream: Stream) -> Result<(Pieces, Option<u32>), Failure> {
        match self.on_device() {
            Some(lease) => {
                let (pieces, device) = self.reads.give_to(lease, stream)?;
                Ok((Pieces::Several(pieces), Some(device)))
            }
            None => Ok((self.pieces()?, None)),
        }
    }

    /// The planes in DMA buffers, as long as this frame exists.
    pub(crate) fn dmabuf_planes(&self) -> Result<&[DmabufPlane], Failure> {
        let Bytes::Held(lease) = &self.bytes else {
            let text = "this frame is past the budget and was copied to private memory: release frames earlier, or raise max_held";
            return Err(Failure::new(Code::NotReadable, text));
        };
        if let Some(planes) = self.dmabuf.get() {
            return Ok(planes);
        }
        let planes = lease.dmabuf_planes()?;
        Ok(self.dmabuf.get_or_init(|| planes))
    }

    /// Without addresses, if the bytes are on a device.
    fn describe(&self) -> Result<impl FnOnce(&mut Description), Failure> {
        match self.on_device() {
            Some(lease) => self.describe_at(&[], Some(self.reads.device(lease)?)),
            None => self.describe_at(&self.pieces()?, None),
        }
    }

    pub(crate) fn describe_on(
        &self,
        stream: Stream,
    ) -> Result<impl FnOnce(&mut Description), Failure> {
        let (pieces, device) = self.pieces_for(stream)?;
        if device.is_none() {
            let text = "this frame is in host memory: use xmem_frame_get";
            return Err(Failure::new(Code::Argument, text));
        }
        self.describe_at(&pieces, device)
    }

    fn describe_at<'a>(
        &'a self,
        pieces: &[Piece],
        device: Option<u32>,
    ) -> Result<impl FnOnce(&mut Description) + use<'a>, Failure> {
        let (meta, info, common) = (self.meta(), self.info(), &*self.common);
        let data = match pieces {
            [piece] => piece.start,
            _ => ptr::null(),
        };
        let places = match pieces {
            [] => None,
            pieces => Some(common.outline.places(pieces)?),
        };
        Ok(move |out: &mut Description| {
            out.data = data.cast();
            if let Some(places) = &places {
                out.n_planes = common.outline.fill(&mut out.planes, places);
            }
            (out.content_type, out.format) = (common.content_type, common.format);
            if let Some(video) = &common.layout.video {
                (out.width, out.height) = (video.width, video.height);
            }
            out.size = usize::try_from(meta.size).unwrap_or(usize::MAX);
            out.device = device.map_or(-1, u32::cast_signed);
            out.timestamp = meta.timestamp.unwrap_or(NO_TIME);
            out.pts = time(meta.pts);
            out.dts = time(meta.dts);
            out.duration = time(meta.duration);
            out.published_at = info.published_at;
            out.sequence = info.sequence;
            out.number = info.number();
            out.slot = info.slot;
            out.generation = info.generation;
            out.flags = meta.flags.bits();
            out.is_copied = self.is_copied().into();
        })
    }
}

fn time(time: Option<u64>) -> i64 {
    time.and_then(|it| i64::try_from(it).ok())
        .unwrap_or(NO_TIME)
}

/// A text with a zero byte behind it. The bytes behind a shorter text are zeros.
fn c_text<const N: usize, const M: usize>(text: &Text<N>) -> [c_char; M] {
    let mut out = [0; M];
    let last = M.saturating_sub(1);
    for (to, byte) in out.iter_mut().zip(text.as_bytes().iter().take(last)) {
        *to = *byte as c_char;
    }
    out
}

/// `xmem_frame_info` of xmem.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Description {
    struct_size: usize,
    data: *const c_void,
    size: usize,
    format: [c_char; 32],
    content_type: [c_char; 32],
    width: u32,
    height: u32,
    n_planes: u32,
    flags: u32,
    planes: Planes,
    timestamp: i64,
    pts: i64,
    dts: i64,
    duration: i64,
    published_at: i64,
    sequence: u64,
    number: u64,
    slot: u32,
    generation: u32,
    is_copied: u32,
    device: i32,
}

// SAFETY: numbers, arrays of them, and pointers that may be null.
unsafe impl Sized0 for Description {}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_frame_get(frame: u64, info: *mut Description) -> c_int {
    call(|| {
        let frame = FRAMES.get(frame)?;
        let describe = frame.describe()?;
        // SAFETY: xmem.h asks for a structure that begins with its size.
        unsafe { Description::fill(info, "info", describe) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_frame_caps(frame: u64, caps: *mut *const c_char) -> c_int {
    call(|| {
        let caps = Out::new(caps, "caps")?;
        let frame = FRAMES.get(frame)?;
        let text = frame.caps.get_or_init(|| {
            let text = frame.sticky().text("caps").unwrap_or_default();
            CString::new(text).unwrap_or_default()
        });
        // It lives as long as the frame's handle.
        caps.set(text.as_ptr());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_frame_attachment(
    frame: u64,
    name: *const c_char,
    data: *mut *const c_void,
    size: *mut usize,
) -> c_int {
    call(|| {
        let (data, size) = (Out::new(data, "data")?, Out::new(size, "size")?);
        // SAFETY: xmem.h asks for a text.
        let name = unsafe { needed(name, "name") }?;
        let frame = FRAMES.get(frame)?;
        let found = frame.meta().attachments.get(name);
        data.set(found.map_or(ptr::null(), |bytes| bytes.as_ptr().cast()));
        size.set(found.map_or(0, <[u8]>::len));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_frame_ref(frame: u64, other: *mut u64) -> c_int {
    give(other, "other", || {
        let held = FRAMES.get(frame)?;
        let first = match &*held {
            Handle::First(_) => held,
            Handle::Other(first) => first.again().ok_or_else(too_many)?,
        };
        FRAMES.add(Handle::Other(first))
    })
}

#[unsafe(no_mangle)]
extern "C" fn xmem_frame_release(frame: u64) -> c_int {
    call(|| FRAMES.remove(frame).map(drop))
}
