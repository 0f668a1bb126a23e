// SPDX-License-Identifier: MPL-2.0

//! Encodes and decodes the description of a frame. Attachments are not part of it: they follow the payload.

use xmem_core::{FrameFlags, FrameLayout, FrameMeta};

use super::bytes::{Malformed, Reader};

/// The bit for `reserved` in the mask of optional values.
const RESERVED: u8 = 1 << 7;

/// The optional values in the order in which they are sent. Signed values are sent in two's complement.
fn values(meta: &FrameMeta) -> [Option<u64>; 7] {
    [
        meta.timestamp.map(i64::cast_unsigned),
        meta.decode_timestamp.map(i64::cast_unsigned),
        meta.pts,
        meta.dts,
        meta.duration,
        meta.buffer_offset,
        meta.buffer_offset_end,
    ]
}

pub(super) fn encode(out: &mut Vec<u8>, meta: &FrameMeta) {
    out.extend(meta.size.to_le_bytes());
    out.extend(meta.flags.bits().to_le_bytes());
    for word in meta.layout.encode() {
        out.extend(word.to_le_bytes());
    }
    let values = values(meta);
    let bits = values.iter().enumerate();
    let mut mask = bits.fold(0, |mask, (bit, it)| mask | u8::from(it.is_some()) << bit);
    if meta.reserved.is_some() {
        mask |= RESERVED;
    }
    out.push(mask);
    for value in values.into_iter().flatten() {
        out.extend(value.to_le_bytes());
    }
    out.extend(meta.reserved.iter().flat_map(|reserved| reserved.iter()));
}

pub(super) fn decode(from: &mut Reader<'_>) -> Result<FrameMeta, Malformed> {
    let (size, flags) = (from.u64()?, from.u32()?);
    let mut words = FrameLayout::default().encode();
    for word in &mut words {
        *word = from.u64()?;
    }
    let layout = FrameLayout::decode(&words);
    let layout = layout.map_err(|error| Malformed(error.0))?;
    let planes = layout.video.iter().flat_map(|video| {
        let count = video.n_planes as usize;
        video.offsets.iter().take(count)
    });
    if planes.into_iter().any(|offset| *offset > size) {
        return Err(Malformed("a plane lies behind the frame's end"));
    }
    let mask = from.u8()?;
    let mut value = |bit: u8| (mask & 1 << bit != 0).then(|| from.u64()).transpose();
    let mut meta = FrameMeta::default()
        .layout(layout)
        .flags(FrameFlags::from_bits(flags));
    meta.size = size;
    meta.timestamp = value(0)?.map(u64::cast_signed);
    meta.decode_timestamp = value(1)?.map(u64::cast_signed);
    meta.pts = value(2)?;
    meta.dts = value(3)?;
    meta.duration = value(4)?;
    meta.buffer_offset = value(5)?;
    meta.buffer_offset_end = value(6)?;
    meta.reserved = (mask & RESERVED != 0)
        .then(|| from.array().map(Box::new))
        .transpose()?;
    Ok(meta)
}
