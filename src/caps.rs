// SPDX-License-Identifier: MPL-2.0

//! What caps say of memory. Where that on CUDA devices is offered, and how its feature is put on caps and taken off.

/// GstCudaMemory.
pub(crate) const CUDA_MEMORY: &str = "memory:CUDAMemory";

/// Whether caps are of memory on CUDA devices.
pub(crate) fn is_cuda(caps: &gst::CapsRef) -> bool {
    caps.features(0)
        .is_some_and(|features| features.contains(CUDA_MEMORY))
}

/// Whether caps are of other memory than the host's.
pub(crate) fn is_elsewhere(caps: &gst::CapsRef) -> bool {
    let host = gst::CAPS_FEATURE_MEMORY_SYSTEM_MEMORY;
    caps.features(0).is_some_and(|features| {
        let mut names = features.iter();
        names.any(|name| name.starts_with("memory:") && *name != *host)
    })
}

/// Whether CUDA memory can be taken and given here.
pub(crate) fn has_cuda() -> bool {
    #[cfg(feature = "cuda")]
    return crate::cuda::is_offered();
    #[cfg(not(feature = "cuda"))]
    false
}

/// What of the caps can be taken here.
pub(crate) fn possible(caps: gst::Caps) -> gst::Caps {
    // Most caps are without, and whether there is a device is not looked for then.
    let needs_cuda = |features: &gst::CapsFeaturesRef| features.contains(CUDA_MEMORY);
    if !caps
        .iter_with_features()
        .any(|(_, features)| needs_cuda(features))
        || has_cuda()
    {
        return caps;
    }
    caps.iter_with_features()
        .filter(|(_, features)| !needs_cuda(features))
        .map(|(structure, features)| (structure.to_owned(), features.to_owned()))
        .collect()
}

/// The caps with the feature, in place of any other memory; or without, and without any other memory.
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
    fn the_feature_is_put_on_and_taken_off() {
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
    fn without_a_device_only_host_memory_is_left() {
        let both = caps("video/x-raw(memory:CUDAMemory), format=NV12; video/x-raw, format=NV12");
        let left = possible(both.clone());
        if has_cuda() {
            assert_eq!(left, both);
        } else {
            assert_eq!(left, caps("video/x-raw, format=NV12"));
        }
        let any = gst::Caps::new_any();
        assert_eq!(possible(any.clone()), any);
    }
}
