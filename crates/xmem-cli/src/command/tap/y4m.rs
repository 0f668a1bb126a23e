// SPDX-License-Identifier: MPL-2.0

//! Y4M has no padding between rows, but y4menc of GStreamer 1.22 writes that of its buffers.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

use xmem_core::VideoLayout;

use crate::Error;
use crate::child::{self, END_TIMEOUT};
use crate::launch::{TOOL, not_started};

/// The formats that y4menc gets, with their names in Y4M. Their rows are padded to four bytes.
pub(super) const FORMATS: [(&str, &str); 3] = [("I420", "420"), ("Y42B", "422"), ("Y444", "444")];

/// Whether y4menc writes padding. A frame with 2 x 2 pixels has six bytes without it.
pub(super) fn has_padding() -> Result<bool, Error> {
    let mut command = child::dependent(TOOL);
    let words = "--quiet videotestsrc pattern=black num-buffers=1 ! video/x-raw,format=I420,width=2,height=2 ! y4menc ! fdsink";
    let ended = child::run(command.args(words.split(' ')), 2 * END_TIMEOUT).map_err(not_started)?;
    let frame = ended
        .as_ref()
        .and_then(|it| it.stdout.split_once("FRAME\n"));
    // Without a frame there is no y4menc: the pipeline of the pool fails, too, and names the reason.
    Ok(frame.is_some_and(|(_, bytes)| bytes.chars().count() > 6))
}

/// Copies a stream without its padding, until it ends.
pub(super) fn copy(from: impl Read, to: impl Write) -> io::Result<()> {
    let (mut from, mut to) = (BufReader::new(from), BufWriter::new(to));
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    let layout = layout(&line).ok_or(io::ErrorKind::InvalidData)?;
    let planes = layout.planes().map_err(io::Error::other)?;
    let planes: Vec<_> = planes.zip(layout.offsets).zip(layout.strides).collect();
    let mut frame = vec![0; layout.size().map_err(io::Error::other)?];
    to.write_all(&line)?;
    loop {
        line.clear();
        // The header of a frame.
        if from.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        to.write_all(&line)?;
        from.read_exact(&mut frame)?;
        for ((plane, offset), stride) in &planes {
            let rows = frame[*offset as usize..].chunks(*stride as usize);
            for row in rows.take(plane.rows as usize) {
                to.write_all(&row[..plane.row_bytes() as usize])?;
            }
        }
        to.flush()?;
    }
}

/// The layout of the frames behind a header.
fn layout(header: &[u8]) -> Option<VideoLayout> {
    let header = str::from_utf8(header).ok()?;
    let value = |key| {
        header
            .split_whitespace()
            .find_map(|word| word.strip_prefix(key))
    };
    let (format, _) = FORMATS.iter().find(|(_, name)| value('C') == Some(name))?;
    let size = |key| value(key)?.parse().ok();
    VideoLayout::new(format, size('W')?, size('H')?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_removed() {
        let header = b"YUV4MPEG2 C420 W5 H3 Ip F30:1 A1:1\n";
        // Rows of 8 and 4 bytes, and a row of padding behind three rows.
        let luma = [1, 2, 3, 4, 5, 0, 0, 0].repeat(3).into_iter().chain([0; 8]);
        let chroma = [6, 7, 8, 0].repeat(4);
        let frame: Vec<u8> = luma.chain(chroma).collect();
        let stream = [&header[..], b"FRAME\n", &frame, b"FRAME\n", &frame].concat();
        let mut out = Vec::new();
        copy(&stream[..], &mut out).unwrap();
        let packed = [[1, 2, 3, 4, 5].repeat(3), [6, 7, 8].repeat(4)].concat();
        let expected = [&header[..], b"FRAME\n", &packed, b"FRAME\n", &packed].concat();
        assert_eq!(out, expected);
        let cut = &stream[..stream.len() - 1];
        assert!(copy(cut, &mut Vec::new()).is_err());
        for header in [
            "",
            "YUV4MPEG2\n",
            "YUV4MPEG2 C411 W8 H8\n",
            "YUV4MPEG2 C420 W0 H8\n",
        ] {
            assert!(copy(header.as_bytes(), &mut Vec::new()).is_err());
        }
    }
}
