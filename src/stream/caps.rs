// SPDX-License-Identifier: MPL-2.0

//! Memory and formats in caps: when device memory is offered, how its feature is added and removed, and which format is
//! preferred.

use gst::glib;

use crate::cuda;

/// The caps feature of GstCudaMemory.
pub(crate) const CUDA_MEMORY: &str = "memory:CUDAMemory";

/// Whether caps require memory on CUDA devices.
pub(crate) fn is_cuda(caps: &gst::CapsRef) -> bool {
    caps.features(0)
        .is_some_and(|features| features.contains(CUDA_MEMORY))
}

/// Whether each frame can be shown alone: it was not encoded.
pub(crate) fn is_raw(caps: &gst::CapsRef) -> bool {
    caps.structure(0)
        .is_some_and(|structure| matches!(structure.name().as_str(), "video/x-raw" | "audio/x-raw"))
}

/// Registers the types of values in caps that GStreamer's libraries register at their first use. A process that has not used them
/// could not parse caps of another process, such as `multiview-flags=(GstVideoMultiviewFlagsSet)...` of nvh264dec.
pub(crate) fn register_types() {
    let info = gst_video::VideoInfo::builder(gst_video::VideoFormat::Gray8, 1, 1)
        .multiview_mode(gst_video::VideoMultiviewMode::Mono);
    let _ = info.build().and_then(|info| info.to_caps());
}

/// Whether caps require memory other than the host's.
pub(crate) fn excludes_host_memory(caps: &gst::CapsRef) -> bool {
    let host = gst::CAPS_FEATURE_MEMORY_SYSTEM_MEMORY;
    caps.features(0).is_some_and(|features| {
        let mut names = features.iter();
        names.any(|name| name.starts_with("memory:") && *name != *host)
    })
}

/// The part of the caps that is supported here.
pub(crate) fn supported(caps: gst::Caps) -> gst::Caps {
    // Most caps are without the feature. In that case no device is searched.
    if part(&caps, CUDA_MEMORY, true).next().is_none() || cuda::is_offered() {
        return caps;
    }
    part(&caps, CUDA_MEMORY, false).collect()
}

/// Puts caps with `memory:DMABuf` behind all others. An element that can give both shares the same memory with either, but few
/// programs read frames with that feature.
pub(crate) fn prefer_without_dmabuf(caps: gst::Caps) -> gst::Caps {
    if caps.is_any() {
        return caps;
    }
    let dmabuf = gst_allocators::CAPS_FEATURE_MEMORY_DMABUF;
    part(&caps, dmabuf, false)
        .chain(part(&caps, dmabuf, true))
        .collect()
}

/// The structures with this feature, or those without it.
fn part(
    caps: &gst::Caps,
    feature: &str,
    is_with: bool,
) -> impl Iterator<Item = (gst::Structure, gst::CapsFeatures)> {
    caps.iter_with_features()
        .filter(move |(_, features)| features.contains(feature) == is_with)
        .map(|(structure, features)| (structure.to_owned(), features.to_owned()))
}

/// Whether the buffers are parts of a container or packets, so that they do not correspond to frames.
pub(crate) fn is_container(caps: &gst::CapsRef) -> bool {
    let Some(structure) = caps.structure(0) else {
        return true;
    };
    let name = structure.name().as_str();
    name.starts_with("application/")
        || name.starts_with("multipart/")
        || [
            "video/mpegts",
            "video/quicktime",
            "video/x-msvideo",
            "audio/x-wav",
        ]
        .contains(&name)
        || structure.get("systemstream") == Ok(true)
        || begins_with_header(caps)
}

/// Containers that muxers make with a header, which is only in the caps (`streamheader`) and at the beginning of the stream.
const WITH_HEADER: [&str; 10] = [
    "application/ogg",
    "audio/ogg",
    "video/ogg",
    "audio/webm",
    "video/webm",
    "audio/x-matroska",
    "video/x-matroska",
    "video/x-matroska-3d",
    "video/x-flv",
    "video/x-ms-asf",
];

/// Whether it is a container whose header is in the caps.
pub(crate) fn begins_with_header(caps: &gst::CapsRef) -> bool {
    caps.structure(0)
        .is_some_and(|structure| WITH_HEADER.contains(&structure.name().as_str()))
}

/// Formats that most programs read, in order of preference.
const COMMON: [&str; 4] = ["NV12", "I420", "RGBA", "RGB"];

/// Puts a common format before each list of formats that begins with one of 16 bits for each component. Elements that can
/// produce any format, such as videotestsrc, begin their list with those, and use the first one that is accepted. Few programs
/// read it. Other lists keep their order, because it is the element's choice.
///
/// The common format gets a structure of its own. Queues and filters towards the source restore the source's order inside a
/// list, but keep the order of structures.
pub(crate) fn prefer_common_format(caps: gst::Caps) -> gst::Caps {
    if caps.is_any() {
        return caps;
    }
    let with_common = caps.iter_with_features().flat_map(|(structure, features)| {
        let common = common(structure).map(|common| {
            let mut first = structure.to_owned();
            first.set("format", common);
            first
        });
        let structures = common.into_iter().chain([structure.to_owned()]);
        structures.map(|structure| (structure, features.to_owned()))
    });
    with_common.collect()
}

/// The common format for a list that begins with a format of 16 bits for each component.
fn common(structure: &gst::StructureRef) -> Option<&'static str> {
    let formats = structure.get::<gst::List>("format").ok()?;
    formats.first().filter(|first| has_16_bits(first))?;
    let mut common = COMMON.iter().copied();
    common.find(|common| {
        formats
            .iter()
            .any(|format| format.get::<&str>() == Ok(*common))
    })
}

/// Whether a video format has 16 bits for each component.
fn has_16_bits(format: &glib::SendValue) -> bool {
    let format = format.get::<&str>().map_or(
        gst_video::VideoFormat::Unknown,
        gst_video::VideoFormat::from_string,
    );
    format != gst_video::VideoFormat::Unknown
        && gst_video::VideoFormatInfo::from_format(format)
            .depth()
            .iter()
            .all(|bits| *bits == 16)
}

/// The caps with the CUDA feature in place of any other memory; or without it, and without any other memory.
pub(crate) fn on_device(mut caps: gst::Caps, is_on_device: bool) -> gst::Caps {
    if is_cuda(&caps) == is_on_device {
        return caps;
    }
    let kept = caps
        .features(0)
        .into_iter()
        .flat_map(|features| features.iter());
    let mut kept: Vec<_> = kept
        .filter(|name| !name.starts_with("memory:"))
        .map(ToString::to_string)
        .collect();
    if is_on_device {
        kept.push(CUDA_MEMORY.to_owned());
    }
    caps.make_mut()
        .set_features(0, Some(gst::CapsFeatures::new(kept)));
    caps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(text: &str) -> gst::Caps {
        gst::init().unwrap();
        text.parse().unwrap()
    }

    #[test]
    fn the_feature_is_added_and_removed() {
        let host = caps("video/x-raw, format=NV12, width=64, height=64");
        let device = caps("video/x-raw(memory:CUDAMemory), format=NV12, width=64, height=64");
        assert_eq!(on_device(host.clone(), true), device);
        assert_eq!(on_device(device.clone(), false), host);
        assert_eq!(on_device(device.clone(), true), device);
        let others =
            caps("video/x-raw(memory:CUDAMemory, meta:GstVideoOverlayComposition), format=NV12");
        let kept = on_device(others.clone(), false);
        assert_eq!(
            kept,
            caps("video/x-raw(meta:GstVideoOverlayComposition), format=NV12")
        );
        assert!(on_device(kept, true).is_strictly_equal(&others) || is_cuda(&others));
    }

    #[test]
    fn a_common_format_comes_before_a_list_that_begins_with_16_bits() {
        for (before, after) in [
            (
                "video/x-raw, format={ABGR64_LE, RGBA, P010_10LE, I420, NV12}",
                "video/x-raw, format=NV12; video/x-raw, format={ABGR64_LE, RGBA, P010_10LE, I420, NV12}",
            ),
            // This order is the element's choice.
            (
                "video/x-raw, format={P010_10LE, NV12}",
                "video/x-raw, format={P010_10LE, NV12}",
            ),
            (
                "video/x-raw, format={AYUV, RGB, NV12}; video/x-raw, format=ABGR64_LE",
                "video/x-raw, format={AYUV, RGB, NV12}; video/x-raw, format=ABGR64_LE",
            ),
            (
                "audio/x-raw, format={S16LE, S24LE}; image/jpeg",
                "audio/x-raw, format={S16LE, S24LE}; image/jpeg",
            ),
            ("ANY", "ANY"),
            ("EMPTY", "EMPTY"),
        ] {
            // Compared as text, because caps are equal in any order.
            let answer = prefer_common_format(caps(before));
            assert_eq!(answer.to_string(), caps(after).to_string());
        }
    }

    #[test]
    fn dma_buffers_come_last() {
        for (before, after) in [
            (
                "video/x-raw(memory:DMABuf), format=DMA_DRM; video/x-raw, format=YUY2; image/jpeg",
                "video/x-raw, format=YUY2; image/jpeg; video/x-raw(memory:DMABuf), format=DMA_DRM",
            ),
            (
                "video/x-raw(memory:DMABuf), format=DMA_DRM",
                "video/x-raw(memory:DMABuf), format=DMA_DRM",
            ),
            (
                "video/x-raw(ANY), format=NV12",
                "video/x-raw(ANY), format=NV12",
            ),
            ("ANY", "ANY"),
            ("EMPTY", "EMPTY"),
        ] {
            let answer = prefer_without_dmabuf(caps(before));
            assert_eq!(answer.to_string(), caps(after).to_string());
        }
    }

    #[test]
    fn without_a_device_only_host_memory_is_left() {
        let both = caps("video/x-raw(memory:CUDAMemory), format=NV12; video/x-raw, format=NV12");
        let left = supported(both.clone());
        if cuda::is_offered() {
            assert_eq!(left, both);
        } else {
            assert_eq!(left, caps("video/x-raw, format=NV12"));
        }
        let any = gst::Caps::new_any();
        assert_eq!(supported(any.clone()), any);
    }
}
