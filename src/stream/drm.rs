// SPDX-License-Identifier: MPL-2.0

//! Video in DMA buffers whose caps do not define the layout: `format=DMA_DRM`, in GStreamer since 1.24. Only the GstVideoMeta
//! of a frame can define it. If the rows are linear, the same frames can also be described by caps that all elements read.

use gst_video::{VideoFormat, VideoInfo, VideoInterlaceMode, VideoMeta};
use xmem_core::VideoLayout;

use crate::buffers::planes::Planes;

/// The name of the format. It is compared as text, because older versions of GStreamer do not know it and still forward such
/// frames.
const NAME: &str = "DMA_DRM";

/// The GStreamer format of a DRM format. `None`: the rows are not linear, or the format is not in the list.
fn linear_format(drm_format: &str) -> Option<&'static str> {
    let (name, modifier) = drm_format.split_once(':').unwrap_or((drm_format, "0x0"));
    let digits = modifier.strip_prefix("0x")?;
    let is_linear = u64::from_str_radix(digits, 16) == Ok(0);
    let code = u32::from_le_bytes(name.as_bytes().try_into().ok()?);
    let mut formats = xmem_core::VideoFormat::all().iter();
    let format = formats.find(|format| is_linear && format.drm_fourcc() == Some(code));
    format.map(|format| format.name)
}

/// Caps without `memory:DMABuf` for the same frames. `None`: the caps have another format than `DMA_DRM`, or their frames can
/// only be read with the help of a device.
pub(crate) fn readable(caps: &gst::Caps) -> Option<gst::Caps> {
    let structure = caps.structure(0)?;
    Drm::from_caps(structure)?;
    let format = linear_format(structure.get("drm-format").ok()?)?;
    let mut structure = structure.to_owned();
    structure.remove_field("drm-format");
    structure.set("format", format);
    let features = caps.features(0)?.iter();
    let others = features.filter(|name| *name != gst_allocators::CAPS_FEATURE_MEMORY_DMABUF);
    let mut readable = gst::Caps::builder_full();
    readable = readable.structure_with_features(structure, gst::CapsFeatures::new(others));
    Some(readable.build())
}

/// Whether the frame, whose caps have a [`readable`] form with this format, can be read with them. Only its GstVideoMeta has the
/// strides, which the driver chose.
pub(crate) fn is_readable(buffer: &gst::BufferRef, format: VideoFormat) -> bool {
    let meta = buffer.meta::<VideoMeta>();
    meta.is_some_and(|meta| meta.format() == format)
}

/// The properties that all frames with these caps share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drm {
    pub(crate) width: u32,
    pub(crate) height: u32,
    interlace_mode: VideoInterlaceMode,
}

impl Drm {
    /// `None`: the caps have another format.
    pub(crate) fn from_caps(structure: &gst::StructureRef) -> Option<Self> {
        if structure.get::<&str>("format").ok()? != NAME {
            return None;
        }
        let number = |name| u32::try_from(structure.get::<i32>(name).unwrap_or_default());
        let mode = structure.get::<&str>("interlace-mode");
        Some(Self {
            width: number("width").unwrap_or_default(),
            height: number("height").unwrap_or_default(),
            interlace_mode: mode.map_or(
                VideoInterlaceMode::Progressive,
                VideoInterlaceMode::from_string,
            ),
        })
    }

    /// Checks a layout that another process wrote, for a payload of `size` bytes. `None`: this GStreamer cannot use it.
    pub(crate) fn check(
        self,
        layout: &VideoLayout,
        size: usize,
    ) -> Result<Option<Planes>, &'static str> {
        match VideoFormat::from_string(layout.format.as_str()) {
            // The producer's GStreamer may be newer than this one.
            VideoFormat::Unknown => Ok(None),
            // The format has no planes. GStreamer never writes such a layout.
            VideoFormat::Encoded => Err("the frame's format is not that of its caps"),
            format if layout.format.as_str() == NAME => {
                Planes::check_opaque(layout, size, format, self.width, self.height).map(Some)
            }
            format => {
                let info = VideoInfo::builder(format, self.width, self.height)
                    .interlace_mode(self.interlace_mode)
                    .build()
                    .map_err(|_| "there are no frames of the size in the caps")?;
                Planes::check(layout, size, &info).map(Some)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xmem_core::Text;

    const SIZE: usize = 64 * 96;

    fn drm(more: &str) -> Drm {
        gst::init().unwrap();
        let caps = format!("video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format=NV12{more}");
        let caps: gst::Caps = caps.parse().unwrap();
        Drm::from_caps(caps.structure(0).unwrap()).unwrap()
    }

    fn nv12() -> VideoLayout {
        VideoLayout {
            format: Text::new("NV12"),
            width: 64,
            height: 64,
            n_planes: 2,
            offsets: [0, 64 * 64, 0, 0],
            strides: [64, 64, 0, 0],
        }
    }

    #[test]
    fn linear_frames_have_caps_that_all_elements_read() {
        gst::init().unwrap();
        let of = |drm_format: &str, more: &str| -> Option<String> {
            let caps = format!(
                "video/x-raw(memory:DMABuf{more}), format=DMA_DRM, drm-format={drm_format}, width=64, height=64"
            );
            readable(&caps.parse().unwrap()).map(|caps| caps.to_string())
        };
        let plain = |format: &str, features: &str| {
            let caps = format!("video/x-raw{features}, format={format}, width=64, height=64");
            Some(caps.parse::<gst::Caps>().unwrap().to_string())
        };
        assert_eq!(of("YUYV", ""), plain("YUY2", ""));
        assert_eq!(of("NV12:0x0000000000000000", ""), plain("NV12", ""));
        assert_eq!(of("\"R8  \"", ""), plain("GRAY8", ""));
        let overlay = ", meta:GstVideoOverlayComposition";
        let features = "(meta:GstVideoOverlayComposition)";
        assert_eq!(of("XR24", overlay), plain("BGRx", features));
        for other in ["NV12:0x0100000000000002", "NV12:0", "NV12:", "XXXX", "R8"] {
            assert_eq!(of(&format!("\"{other}\""), ""), None, "{other}");
        }
        let caps = "video/x-raw(memory:DMABuf), format=NV12, width=64, height=64";
        assert_eq!(readable(&caps.parse().unwrap()), None);
        // Each name is known here, and no code occurs twice.
        let known = xmem_core::VideoFormat::all().iter();
        let known = known.filter_map(|format| Some((format.drm_fourcc()?, format.name)));
        let known: Vec<_> = known.collect();
        for (at, (code, format)) in known.iter().enumerate() {
            assert_ne!(
                VideoFormat::from_string(format),
                VideoFormat::Unknown,
                "{format}"
            );
            assert!(known[at + 1..].iter().all(|(other, _)| other != code));
        }
        assert_eq!(known.len(), 27);
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let drm = drm(", width=64, height=64");
        let check = |change: &dyn Fn(&mut VideoLayout)| {
            let mut layout = nv12();
            change(&mut layout);
            drm.check(&layout, SIZE)
        };
        let taken = check(&|_| ()).unwrap().unwrap();
        assert_eq!(taken.offsets(), [0, 64 * 64]);
        assert_eq!(taken.strides(), [64, 64]);
        assert!(check(&|l| l.offsets[1] += 1).is_err());
        assert!(check(&|l| l.strides[0] = 1 << 20).is_err());
        assert!(check(&|l| l.n_planes = 1).is_err());
        assert!(check(&|l| l.n_planes = u32::MAX).is_err());
        assert!(check(&|l| l.height = 32).is_err());
        assert!(check(&|l| l.width = u32::MAX).is_err());
        assert!(check(&|l| l.format = Text::new("I420")).is_err());
        assert!(check(&|l| l.format = Text::new("ENCODED")).is_err());
        for unknown in ["", "UNKNOWN", "YV13", "nv12"] {
            assert!(check(&|l| l.format = Text::new(unknown)).is_ok_and(|planes| planes.is_none()));
        }
    }

    /// If this GStreamer has the format, frames that only devices can read keep their offsets.
    #[test]
    fn planes_for_devices_only() {
        let drm = drm(", width=64, height=64");
        let mut layout = nv12();
        layout.format = Text::new(NAME);
        layout.strides = [i32::MAX, -1, 0, 0];
        let is_known = VideoFormat::from_string(NAME) != VideoFormat::Unknown;
        assert_eq!(is_known, gst::version() >= (1, 24, 0, 0));
        let taken = drm.check(&layout, SIZE).unwrap();
        assert_eq!(taken.is_some(), is_known);
        layout.offsets[1] = SIZE as u64;
        assert_eq!(drm.check(&layout, SIZE).is_err(), is_known);
        layout.offsets[1] = 0;
        layout.n_planes = u32::MAX;
        assert_eq!(drm.check(&layout, SIZE).is_err(), is_known);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for size in ["", ", width=0, height=64", ", width=-1, height=64"] {
            assert!(drm(size).check(&nv12(), SIZE).is_err(), "{size}");
        }
    }

    /// With one field in each buffer, the height in the caps is that of both fields.
    #[test]
    fn interlaced_fields_have_half_the_rows() {
        let mut layout = nv12();
        layout.offsets[1] = 64 * 32;
        let alternate = drm(", width=64, height=64, interlace-mode=alternate");
        assert!(alternate.check(&layout, SIZE / 2).is_ok());
        assert!(
            drm(", width=64, height=64")
                .check(&layout, SIZE / 2)
                .is_err()
        );
    }
}
