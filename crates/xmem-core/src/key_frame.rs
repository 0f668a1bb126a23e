// SPDX-License-Identifier: MPL-2.0

//! Key frames of encoded streams.
//!
//! A frame with [`FrameFlags::DELTA_UNIT`] refers to earlier frames. A reader that misses one of them waits for the next key frame,
//! and requests one from the producer with [`ConsumerHandle::request`](crate::ConsumerHandle::request).

use std::time::{Duration, Instant};

use crate::{FrameFlags, FrameMeta};

/// The time after which a key frame is requested again.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// A stream of these begins with a unit without the flag DELTA_UNIT, also if it contains only audio.
const AUDIO_CONTAINERS: [&str; 3] = ["audio/ogg", "audio/webm", "audio/x-matroska"];

/// Whether frames with these caps may refer to other frames. `caps` is GStreamer's text, or only the media type.
///
/// Raw frames, tensors and pictures never refer to other frames, even if they have the flag DELTA_UNIT, because GstVideoEncoder sets
/// this flag on each frame that the encoder does not mark as a sync point, and encoders of pictures, such as pngenc, mark none. The
/// same applies to encoded audio: asfdemux marks no frame of it. mpegtsmux marks no packet of a stream without video, which the
/// `streamheader` in the caps shows.
pub fn is_needed(caps: &str) -> bool {
    let end = caps.find([',', ';', '(']).unwrap_or(caps.len());
    let name = caps.get(..end).unwrap_or_default().trim();
    let is_audio = name.starts_with("audio/") && !AUDIO_CONTAINERS.contains(&name);
    let is_single = is_audio
        || name.ends_with("/x-raw")
        || name.starts_with("image/")
        || name.starts_with("other/tensor")
        || name == "application/x-yuv4mpeg"
        || (name == "video/mpegts" && is_without_video(caps));
    !name.is_empty() && !is_single
}

/// Whether the header of an MPEG transport stream lists streams, none of which is video.
fn is_without_video(caps: &str) -> bool {
    let header = caps.split_once("streamheader=(buffer)<");
    let header = header.and_then(|(_, rest)| rest.split_once('>'));
    let Some((packets, _)) = header else {
        return false;
    };
    let packets = packets.split(',').filter_map(from_hex);
    // One table for each programme.
    let tables = packets.filter_map(|packet| streams_of(&packet));
    let streams: Vec<bool> = tables.flatten().collect();
    !streams.is_empty() && !streams.contains(&true)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim().as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.chunks_exact(2).map(byte).collect();
    bytes.filter(|bytes| bytes.len() * 2 == digits.len())
}

/// Whether each stream may be video, by a packet that has a whole table of streams (PMT, ISO/IEC 13818-1). `None`: it has none.
fn streams_of(packet: &[u8]) -> Option<Vec<bool>> {
    const SYNC: u8 = 0x47;
    const TABLE: u8 = 2;
    let number =
        |bytes: &[u8]| Some(usize::from(u16::from_be_bytes(bytes.try_into().ok()?)) & 0xfff);
    // With m2ts-mode, a time precedes the packet.
    let packet = match packet {
        [SYNC, ..] => packet,
        _ => packet.get(4..)?,
    };
    // An adaptation field may precede the payload, and the end of another table the beginning of this one.
    let payload = match (packet.get(3)? >> 4) & 3 {
        1 => packet.get(4..)?,
        3 => packet.get(5 + usize::from(*packet.get(4)?)..)?,
        _ => return None,
    };
    let table = payload.get(1 + usize::from(*payload.first()?)..)?;
    if *packet.first()? != SYNC || *table.first()? != TABLE {
        return None;
    }
    let table = table.get(..3 + number(table.get(1..3)?)?)?;
    let about_all = number(table.get(10..12)?)?;
    // A checksum is at the end.
    let mut rest = table.get(12 + about_all..table.len().checked_sub(4)?)?;
    let mut streams = Vec::new();
    while !rest.is_empty() {
        let about = number(rest.get(3..5)?)?;
        let descriptors = rest.get(5..5 + about)?;
        streams.push(may_be_video(*rest.first()?, descriptors));
        rest = rest.get(5 + about..)?;
    }
    Some(streams)
}

/// Whether a stream of this type may be video.
fn may_be_video(kind: u8, descriptors: &[u8]) -> bool {
    match kind {
        // Private data, such as Opus, subtitles and KLV, but also these.
        6 => [b"AV01", b"VP09"]
            .iter()
            .any(|it| descriptors.windows(4).any(|at| at == *it)),
        // Sound of MPEG and AAC, sections, metadata, and the sound and subtitles of discs.
        3 | 4 | 5 | 0xf | 0x11 | 0x15 | 0x1c | 0x81..=0x8a | 0x90..=0x92 => false,
        _ => true,
    }
}

/// Stops frames that cannot be decoded. The gate is closed initially.
#[derive(Debug, Default)]
pub struct KeyFrameGate {
    is_open: bool,
    requested: Option<Instant>,
}

impl KeyFrameGate {
    /// Closes the gate. Call it after frames are lost, because frames that depend on them cannot be decoded.
    pub fn close(&mut self) {
        *self = Self::default();
    }

    /// Whether a key frame has passed since the gate was last closed.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether a frame may pass. A key frame opens the gate. A frame with [`FrameFlags::HEADER`] passes a closed gate, but opens it
    /// only if it is a key frame.
    #[inline]
    pub fn passes(&mut self, meta: &FrameMeta) -> bool {
        self.is_open |= !meta.flags.contains(FrameFlags::DELTA_UNIT);
        self.is_open || meta.flags.contains(FrameFlags::HEADER)
    }

    /// Whether to request a key frame now: once a second while the gate is closed.
    pub fn should_request(&mut self, now: Instant) -> bool {
        let is_recent = |at| now.saturating_duration_since(at) < REQUEST_INTERVAL;
        if self.is_open || self.requested.is_some_and(is_recent) {
            return false;
        }
        self.requested = Some(now);
        true
    }
}

/// A request for a key frame. xmemsink sends it to the encoder upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyFrame {
    /// Whether to send all headers with the key frame.
    pub all_headers: bool,
    /// The latest time for the key frame, on CLOCK_MONOTONIC. `None`: as soon as possible.
    pub at: Option<i64>,
}

impl KeyFrame {
    /// The name of the request.
    pub const NAME: &str = "force-key-unit";

    /// Requests a key frame as soon as possible, with all headers.
    pub const NOW: Self = Self {
        all_headers: true,
        at: None,
    };

    /// Encodes the data of the request.
    pub fn encode(self) -> [u8; 9] {
        let [a, b, c, d, e, f, g, h] = self.at.unwrap_or(0).to_le_bytes();
        [self.all_headers.into(), a, b, c, d, e, f, g, h]
    }

    /// Decodes a request of a consumer. Returns `None` if it is another request, or invalid.
    pub fn decode(name: &str, data: &[u8]) -> Option<Self> {
        let (all_headers, at) = data.split_first().filter(|_| name == Self::NAME)?;
        let at = i64::from_le_bytes(at.try_into().ok()?);
        Some(Self {
            all_headers: *all_headers != 0,
            at: (at != 0).then_some(at),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(flags: FrameFlags) -> FrameMeta {
        FrameMeta::new(1).flags(flags)
    }

    #[test]
    fn only_a_key_frame_opens_the_gate() {
        let (delta, header) = (FrameFlags::DELTA_UNIT, FrameFlags::HEADER);
        let key = FrameFlags::default();
        let mut gate = KeyFrameGate::default();
        assert!(!gate.passes(&frame(delta)));
        assert!(gate.passes(&frame(delta | header)));
        assert!(!gate.passes(&frame(delta)) && !gate.is_open());
        assert!(gate.passes(&frame(key)) && gate.passes(&frame(delta)) && gate.is_open());
        gate.close();
        assert!(!gate.passes(&frame(delta)));
    }

    #[test]
    fn a_key_frame_is_requested_once_a_second() {
        let (mut gate, now) = (KeyFrameGate::default(), Instant::now());
        assert!(
            gate.should_request(now)
                && !gate.should_request(now)
                && gate.should_request(now + REQUEST_INTERVAL)
        );
        gate.close();
        assert!(gate.should_request(now), "another key frame is needed now");
        assert!(
            gate.passes(&frame(FrameFlags::default()))
                && !gate.should_request(now + 9 * REQUEST_INTERVAL)
        );
    }

    #[test]
    fn caps_tell_whether_key_frames_are_needed() {
        for (caps, expected) in [
            ("video/x-h264, stream-format=(string)byte-stream", true),
            ("audio/mpeg, mpegversion=4", false),
            ("audio/x-wma", false),
            ("audio/webm", true),
            ("video/x-raw,format=NV12", false),
            ("video/x-raw(memory:DMABuf), format=NV12", false),
            ("image/jpeg", false),
            ("other/tensors, num_tensors=(int)1", false),
            ("application/x-yuv4mpeg, y4mversion=2", false),
            ("", false),
        ] {
            assert_eq!(is_needed(caps), expected, "{caps}");
        }
    }

    #[test]
    fn a_transport_stream_without_video_needs_no_key_frame() {
        // From mpegtsmux of GStreamer 1.22, without stuffing.
        const PROGRAMS: &str = "474000100000b00d0001c100000001e020a2c32941";
        const OPUS: &str = "0002b01c0001c10000e041f00006e041f00a05044f7075737f0280019ff54cbf";
        const AAC: &str = "0002b0120001c10000e041f0000fe041f0000a4405c7";
        const H264: &str = "0002b0210001c10000e041f0001be041f00a050848444d56ff1b443f0fe042f0007\
                            6d666e7";
        let needed =
            |header: &str| is_needed(&format!("video/mpegts, streamheader=(buffer)<{header}>"));
        let packet = |table: &str| needed(&format!(" {PROGRAMS}, 47402010{table} "));
        assert!(!packet(OPUS) && !packet(AAC));
        assert!(packet(H264));
        assert!(packet(&format!("{AAC}, 47402010{H264}")));
        // AV1 and AAC.
        let av1 = "0002b01d0001c10000e041f00006e041f006050441563031\
                   0fe042f00000000000";
        assert!(packet(av1));
        // With an adaptation field, and with a time before the packet.
        assert!(!needed(&format!("474020300200ff{AAC}")));
        assert!(!needed(&format!("0011223347402010{AAC}")));
        for unknown in [
            "",
            PROGRAMS,
            "47",
            "4740203",
            "47402030",
            "474020",
            "xy",
            "47402010ff",
            "é",
        ] {
            assert!(needed(unknown), "{unknown}");
        }
        // Other processes write the caps.
        for len in 0..AAC.len() {
            assert!(packet(&AAC[..len]), "{len}");
        }
        assert!(is_needed("video/mpegts, systemstream=(boolean)true"));
    }

    #[test]
    fn requests_round_trip() {
        let later = KeyFrame {
            all_headers: false,
            at: Some(12_345_678_901),
        };
        for request in [KeyFrame::NOW, later] {
            let decoded = KeyFrame::decode(KeyFrame::NAME, &request.encode());
            assert_eq!(decoded, Some(request));
        }
        assert_eq!(KeyFrame::decode("other", &KeyFrame::NOW.encode()), None);
        for invalid in [&[][..], &[1], &[0; 8], &[0; 10]] {
            assert_eq!(KeyFrame::decode(KeyFrame::NAME, invalid), None);
        }
    }
}
