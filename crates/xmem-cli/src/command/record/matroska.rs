// SPDX-License-Identifier: MPL-2.0

//! Matroska as a stream: reads frames from the tool, and writes elements of clips.

use std::io::{self, ErrorKind, Read};

const EBML: u32 = 0x1a45_dfa3;
const SEGMENT: u32 = 0x1853_8067;
const TRACKS: u32 = 0x1654_ae6b;
pub(super) const CLUSTER: u32 = 0x1f43_b675;
const TIMESTAMP: u32 = 0xe7;
const SIMPLE_BLOCK: u32 = 0xa3;
const BLOCK_GROUP: u32 = 0xa0;
const BLOCK: u32 = 0xa1;

/// The mark of a key frame in the flags of a simple block.
const KEY: u8 = 0x80;
/// The codec of which each frame is a key frame.
const JPEG: &[u8] = b"V_MJPEG";
/// The tool begins a cluster at each key frame. It begins another one when the times in a cluster would exceed 16 bits: that one is
/// this long after the one before, or longer. A millisecond is for rounding.
const LONGEST_CLUSTER: i64 = i16::MAX as i64 - 1;
/// The largest element that is no frame.
const MAX_HEADER: u64 = 16 << 20;

/// An encoded frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Its time in milliseconds.
    pub(super) time: i64,
    pub(super) is_key: bool,
    pub(super) bytes: Vec<u8>,
}

/// Reads what matroskamux writes with `streamable=true min-cluster-duration=0` for one track.
pub(super) struct Stream<R> {
    input: R,
    /// The elements of a file's beginning that describe the track.
    ebml: Vec<u8>,
    tracks: Vec<u8>,
    /// Each frame is a key frame.
    is_jpeg: bool,
    /// The time of the cluster, and whether a frame of it was read. `None`: there was no cluster.
    cluster: Option<i64>,
    has_begun: bool,
    /// Whether the first frame of the cluster is a key frame.
    begins_with_key: bool,
}

impl<R: Read> Stream<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            ebml: Vec::new(),
            tracks: Vec::new(),
            is_jpeg: false,
            cluster: None,
            has_begun: false,
            begins_with_key: false,
        }
    }

    /// The elements that describe the track, which come before the first frame.
    pub(super) fn header(&self) -> Header {
        Header {
            ebml: self.ebml.clone(),
            tracks: self.tracks.clone(),
        }
    }

    /// The next frame. `None` at the end, also within an element.
    pub(super) fn next(&mut self) -> io::Result<Option<Frame>> {
        match self.read_frame() {
            Ok(frame) => Ok(Some(frame)),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_frame(&mut self) -> io::Result<Frame> {
        loop {
            let (id, _) = self.number(true)?;
            let id = id as u32;
            let (size, _) = self.number(false)?;
            match id {
                // What they contain comes next.
                SEGMENT | BLOCK_GROUP => {}
                CLUSTER => self.has_begun = false,
                EBML => self.ebml = element(EBML, &self.bytes(size)?),
                TRACKS => {
                    self.tracks = element(TRACKS, &self.bytes(size)?);
                    self.is_jpeg = self.tracks.windows(JPEG.len()).any(|it| it == JPEG);
                }
                TIMESTAMP => {
                    let bytes = self.bytes(size)?;
                    let time = bytes
                        .iter()
                        .fold(0, |time, byte| time << 8 | i64::from(*byte));
                    let before = self.cluster.replace(time);
                    self.begins_with_key = before.is_none_or(|it| time - it < LONGEST_CLUSTER);
                }
                SIMPLE_BLOCK | BLOCK => return self.frame(id, size),
                _ => self.skip(size)?,
            }
        }
    }

    fn frame(&mut self, id: u32, size: u64) -> io::Result<Frame> {
        let (_, track) = self.number(false)?;
        let mut head = [0; 3];
        self.input.read_exact(&mut head)?;
        let size = size.checked_sub(track + 3).ok_or(ErrorKind::InvalidData)?;
        // matroskamux does not say of a frame in a group whether it is a key frame.
        let is_key = match id {
            SIMPLE_BLOCK => head[2] & KEY != 0,
            _ => self.is_jpeg || !self.has_begun && self.begins_with_key,
        };
        self.has_begun = true;
        let cluster = self.cluster.ok_or(ErrorKind::InvalidData)?;
        let time = cluster + i64::from(i16::from_be_bytes([head[0], head[1]]));
        let bytes = self.exactly(size)?;
        Ok(Frame {
            time,
            is_key,
            bytes,
        })
    }

    /// A number of one to eight bytes, and its length. The leading zeros of its first byte tell the length.
    fn number(&mut self, with_mark: bool) -> io::Result<(u64, u64)> {
        let mut first = [0];
        self.input.read_exact(&mut first)?;
        let zeros = first[0].leading_zeros();
        if zeros > 7 {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut rest = [0; 7];
        let rest = &mut rest[..zeros as usize];
        self.input.read_exact(rest)?;
        let mark = 0x80 >> zeros;
        let first = if with_mark { first[0] } else { first[0] ^ mark };
        let number = rest.iter().fold(u64::from(first), |number, byte| {
            number << 8 | u64::from(*byte)
        });
        Ok((number, u64::from(zeros) + 1))
    }

    fn bytes(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > MAX_HEADER {
            return Err(ErrorKind::InvalidData.into());
        }
        self.exactly(size)
    }

    fn exactly(&mut self, size: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(size).read_to_end(&mut bytes)?;
        match read as u64 == size {
            true => Ok(bytes),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    fn skip(&mut self, size: u64) -> io::Result<()> {
        io::copy(&mut (&mut self.input).take(size), &mut io::sink())?;
        Ok(())
    }
}

/// What a file of the stream begins with.
#[derive(Debug, Clone, Default)]
pub(super) struct Header {
    ebml: Vec<u8>,
    tracks: Vec<u8>,
}

/// The size of an element that is not complete yet. A player reads it to the end of the file.
const UNKNOWN: u64 = (1 << 56) - 1;
const SEEK_HEAD: u32 = 0x114d_9b74;
const CUES: u32 = 0x1c53_bb6b;
const VOID: u32 = 0xec;

impl Header {
    /// The beginning of a file whose segment has no size yet, and the positions of what is written at its end.
    pub(super) fn begin(&self) -> (Vec<u8>, Positions) {
        let mut bytes = self.ebml.clone();
        bytes.extend(id(SEGMENT));
        let segment = bytes.len() as u64;
        bytes.extend(sized(UNKNOWN));
        let seek_head = bytes.len() as u64;
        // Room for it: a name of one byte and a size of eight come before what a void contains.
        bytes.extend(element(VOID, &vec![0; self::seek_head(0).len() - 9]));
        let name = concat!("xmem ", env!("CARGO_PKG_VERSION"));
        let info = [
            element(0x2a_d7b1, &1_000_000_u32.to_be_bytes()), // nanoseconds for each unit of time
            element(0x4d80, name.as_bytes()),
            element(0x5741, name.as_bytes()),
            element(0x4489, &0_f64.to_be_bytes()), // the duration, which is last
        ];
        bytes.extend(element(0x1549_a966, &info.concat()));
        let duration = bytes.len() as u64 - 8;
        bytes.extend(&self.tracks);
        let positions = Positions {
            segment,
            seek_head,
            duration,
        };
        (bytes, positions)
    }
}

/// Positions in a file whose content is known when the file is complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct Positions {
    /// The size of the segment, which has eight bytes.
    segment: u64,
    seek_head: u64,
    duration: u64,
}

impl Positions {
    /// A position in the file as one in the segment.
    pub(super) fn in_segment(&self, position: u64) -> u64 {
        position - self.segment - 8
    }

    /// What to write where when the file has `end` bytes.
    pub(super) fn complete(
        &self,
        end: u64,
        duration: i64,
        cues: Option<u64>,
    ) -> Vec<(u64, Vec<u8>)> {
        let duration = (duration as f64).to_be_bytes().to_vec();
        let mut writes = vec![
            (self.duration, duration),
            (self.segment, sized(self.in_segment(end)).to_vec()),
        ];
        writes.extend(cues.map(|cues| (self.seek_head, seek_head(self.in_segment(cues)))));
        writes
    }
}

/// The element that says where the cues are.
fn seek_head(cues: u64) -> Vec<u8> {
    let seek = [
        element(0x53ab, &CUES.to_be_bytes()),
        element(0x53ac, &cues.to_be_bytes()),
    ];
    element(SEEK_HEAD, &element(0x4dbb, &seek.concat()))
}

/// The beginning of a cluster without a size, and the position of the size in it.
pub(super) fn cluster(time: i64) -> (Vec<u8>, u64) {
    let mut bytes = id(CLUSTER);
    let position = bytes.len() as u64;
    bytes.extend(sized(UNKNOWN));
    bytes.extend(element(TIMESTAMP, &time.to_be_bytes()));
    (bytes, position)
}

/// The size of an element, in eight bytes.
pub(super) fn sized(size: u64) -> [u8; 8] {
    (size | 1 << 56).to_be_bytes()
}

/// A frame of the first track, with its time in the cluster.
pub(super) fn block(frame: &Frame, time: i16) -> Vec<u8> {
    let [high, low] = time.to_be_bytes();
    let flags = if frame.is_key { KEY } else { 0 };
    let mut bytes = id(SIMPLE_BLOCK);
    bytes.extend(sized(frame.bytes.len() as u64 + 4));
    bytes.extend([0x81, high, low, flags]);
    bytes.extend(&frame.bytes);
    bytes
}

/// The index of a file: the time of each cluster that begins with a key frame, and its position in the segment.
pub(super) fn cues(clusters: &[(i64, u64)]) -> Vec<u8> {
    let point = |(time, position): &(i64, u64)| {
        let place = [element(0xf7, &[1]), element(0xf1, &position.to_be_bytes())];
        let point = [
            element(0xb3, &time.to_be_bytes()),
            element(0xb7, &place.concat()),
        ];
        element(0xbb, &point.concat())
    };
    element(CUES, &clusters.iter().flat_map(point).collect::<Vec<u8>>())
}

fn element(name: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = id(name);
    bytes.extend(sized(content.len() as u64));
    bytes.extend(content);
    bytes
}

/// An identifier, which contains the mark of its length.
fn id(id: u32) -> Vec<u8> {
    let bytes = id.to_be_bytes();
    bytes[id.leading_zeros() as usize / 8..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the tool writes of frames at these times, each with its own duration.
    fn groups(codec: &str, clusters: &[(i64, &[i16])]) -> Vec<u8> {
        let group = |time: &i16| {
            let [high, low] = time.to_be_bytes();
            element(BLOCK_GROUP, &element(BLOCK, &[0x81, high, low, 0, 7]))
        };
        let mut bytes = element(TRACKS, codec.as_bytes());
        for (time, frames) in clusters {
            bytes.extend(cluster(*time).0);
            bytes.extend(frames.iter().flat_map(group));
        }
        bytes
    }

    fn key_frames(bytes: &[u8]) -> Vec<i64> {
        let mut stream = Stream::new(bytes);
        let frames = std::iter::from_fn(|| stream.next().unwrap());
        frames.filter(|it| it.is_key).map(|it| it.time).collect()
    }

    #[test]
    fn key_frames_are_found_without_marks() {
        let clusters: &[(i64, &[i16])] = &[
            (0, &[0, 40, 32_760]),
            // The times would not fit into the first one.
            (32_800, &[0, 40]),
            // Later than that by nearly as much.
            (65_200, &[0, 40]),
            (65_300, &[0]),
        ];
        let h264 = groups("V_MPEG4/ISO/AVC", clusters);
        assert_eq!(key_frames(&h264), [0, 65_200, 65_300]);
        // A stream need not begin at 0.
        let late = groups("V_MPEG4/ISO/AVC", &[(90_000, &[0, 40])]);
        assert_eq!(key_frames(&late), [90_000]);
        let jpeg = groups("V_MJPEG", &[(0, &[0]), (60_000, &[0]), (120_000, &[0])]);
        assert_eq!(key_frames(&jpeg), [0, 60_000, 120_000]);
    }
}
