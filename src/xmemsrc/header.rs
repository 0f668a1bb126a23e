// SPDX-License-Identifier: MPL-2.0

//! Sends the header of a stream (Matroska, Ogg, Vorbis and others) before the first frame. A consumer that joins late has missed
//! it, and demuxers and some parsers do not read it from the caps (`streamheader`), where muxers and encoders also put it.
//! multifdsink and tcpserversink do the same.

use gst::prelude::*;
use gst_base::prelude::*;

use super::{events, log::CAT, source::Source};
use crate::stream::caps;

/// Any stream, packed by gdppay. It has a header as containers do, but no muxer makes it.
const PACKED: &str = "application/x-gdp";

/// Formats whose encoders and demuxers also begin the stream with the header, and whose parsers may read it only there. Opus is not
/// one of them: some of its streams contain no header, and its decoders and parsers read the caps.
const ELEMENTARY: [&str; 7] = [
    "audio/x-vorbis",
    "audio/x-speex",
    "audio/x-flac",
    "audio/x-celt",
    "video/x-theora",
    "subtitle/x-kate",
    "application/x-kate",
];

/// The largest number of parts that is read. Real headers have fewer.
const MAX_PARTS: usize = 64;

/// The header of a stream, from its caps. The caps come from another process. An elementary stream that was received from its
/// beginning has what the producer sent.
fn of_caps(caps: &gst::CapsRef, has_joined_late: bool) -> Vec<gst::Buffer> {
    let Some(structure) = caps.structure(0) else {
        return Vec::new();
    };
    let name = structure.name().as_str();
    let is_missed = has_joined_late && ELEMENTARY.contains(&name);
    if !is_missed && name != PACKED && !caps::begins_with_header(caps) {
        return Vec::new();
    }
    let header = structure.get::<gst::Array>("streamheader");
    header.map_or_else(
        |_| Vec::new(),
        |parts| {
            let parts = parts.iter().take(MAX_PARTS);
            parts.filter_map(|part| part.get().ok()).collect()
        },
    )
}

fn is_same(one: &gst::BufferRef, other: &gst::BufferRef) -> bool {
    one.size() == other.size()
        && one.map_readable().is_ok_and(|one| {
            other
                .map_readable()
                .is_ok_and(|other| one.as_slice() == other.as_slice())
        })
}

/// Marks a buffer as the start of a new stream, for a demuxer that still reads the previous one. flvdemux reads the offset.
fn mark_start(buffer: &mut gst::Buffer) {
    let buffer = buffer.make_mut();
    buffer.set_flags(gst::BufferFlags::DISCONT);
    buffer.set_offset(0);
}

/// Sends the stream's header before its first frame, unless that frame begins with the header. The header does not count as a
/// frame.
#[cold]
pub(super) fn push(
    source: Source<'_>,
    first: &mut gst::Buffer,
    has_joined_late: bool,
) -> Result<(), gst::FlowError> {
    let header = source
        .stream
        .caps()
        .map(|caps| of_caps(&caps, has_joined_late));
    let header = header.unwrap_or_default();
    match header.first() {
        Some(begin) if is_same(begin, first) => mark_start(first),
        Some(_) => {
            gst::debug!(
                CAT,
                obj = source.element,
                "Sending the header that is in the caps"
            );
            events::push_segment(source);
            for (number, mut part) in (0..).zip(header) {
                part.make_mut().set_flags(gst::BufferFlags::HEADER);
                if number == 0 {
                    mark_start(&mut part);
                }
                source.element.src_pad().push(part)?;
            }
        }
        None => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(caps: &str) -> usize {
        gst::init().unwrap();
        let caps: gst::Caps = caps.parse().unwrap();
        of_caps(&caps, true).len()
    }

    #[test]
    fn only_formats_with_a_header_in_band_have_one() {
        let header = "streamheader=(buffer)<0102,03>";
        assert_eq!(parts(&format!("video/webm, {header}")), 2);
        assert_eq!(parts(&format!("audio/x-vorbis, {header}")), 2);
        let vorbis: gst::Caps = format!("audio/x-vorbis, {header}").parse().unwrap();
        assert_eq!(of_caps(&vorbis, false).len(), 0);
        assert_eq!(parts("video/webm"), 0);
        assert_eq!(parts(&format!("audio/x-opus, {header}")), 0);
        assert_eq!(parts("ANY"), 0);
        assert_eq!(parts("EMPTY"), 0);
    }

    #[test]
    fn an_invalid_header_is_ignored() {
        for value in [
            "(int)1",
            "(string)x",
            "(buffer)01",
            "(int)<1,2>",
            "(buffer){01}",
            "<>",
        ] {
            let caps = format!("video/webm, streamheader={value}");
            assert_eq!(parts(&caps), 0, "{caps}");
        }
        let many = vec!["00"; 1000].join(",");
        let caps = format!("video/webm, streamheader=(buffer)<{many}>");
        assert_eq!(parts(&caps), MAX_PARTS);
    }
}
