// SPDX-License-Identifier: MPL-2.0

//! The core computes the same planes of video formats as GStreamer.

use proptest::prelude::*;
use xmem_core::{VideoFormat, VideoLayout};

/// The difference, if there is one.
fn difference(format: &VideoFormat, width: u32, height: u32) -> Result<(), String> {
    let of_gst = gst_video::VideoFormat::from_string(format.name);
    let info = gst_video::VideoInfo::builder(of_gst, width, height).build();
    let info = info.map_err(|error| error.to_string())?;
    let layout = VideoLayout::new(format.name, width, height).map_err(|error| error.to_string())?;
    let n = info.n_planes() as usize;
    let offsets: Vec<_> = info.offset().iter().map(|offset| *offset as u64).collect();
    let equal = (
        layout.n_planes as usize,
        &layout.strides[..n],
        &layout.offsets[..n],
    ) == (n, info.stride(), &offsets);
    if !equal || layout.size() != Ok(info.size()) {
        return Err(format!(
            "{layout:?} of {:?} bytes, and {info:?}",
            layout.size()
        ));
    }
    let planes = layout.planes().map_err(|error| error.to_string())?;
    for (number, plane) in planes.enumerate() {
        let components: Vec<u32> = (0..info.n_components())
            .filter(|component| info.format_info().plane()[*component as usize] as usize == number)
            .collect();
        let first = components[0];
        if plane.rows != info.comp_height(first as u8) {
            return Err(format!("{plane:?} has rows of its own"));
        }
        let of_gst =
            u64::from(info.comp_width(first as u8)) * info.comp_pstride(first as u8) as u64;
        if plane.row_bytes() != of_gst || of_gst > layout.strides[number] as u64 {
            return Err(format!(
                "{plane:?} has {} bytes in a row, not {of_gst}",
                plane.row_bytes()
            ));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn each_format_has_gstreamers_layout(width in 1u32..5000, height in 1u32..3000) {
        gst::init().unwrap();
        for format in VideoFormat::all() {
            prop_assert_eq!(difference(format, width, height), Ok(()), "{}", format.name);
        }
    }
}
