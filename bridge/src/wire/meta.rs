// SPDX-License-Identifier: MPL-2.0

//! Encodes and decodes the description of a frame. Attachments are not part of it: they follow the payload.

use xmem_core::{FrameFlags, FrameLayout, FrameMeta};

use super::bytes::{Field, Malformed, Reader};

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

impl Field for FrameMeta {
    fn put(&self, out: &mut Vec<u8>) {
        self.size.put(out);
        self.flags.bits().put(out);
        for word in self.layout.encode() {
            word.put(out);
        }
        let values = values(self);
        let bits = values.iter().enumerate();
        let mut mask = bits.fold(0, |mask, (bit, it)| mask | u8::from(it.is_some()) << bit);
        if self.reserved.is_some() {
            mask |= RESERVED;
        }
        mask.put(out);
        for value in values.into_iter().flatten() {
            value.put(out);
        }
        out.extend(self.reserved.iter().flat_map(|reserved| reserved.iter()));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (size, flags) = (from.get()?, from.get()?);
        let mut words = FrameLayout::default().encode();
        for word in &mut words {
            *word = from.get()?;
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
        let mask = from.get::<u8>()?;
        let mut value = |bit: u8| (mask & 1 << bit != 0).then(|| from.get()).transpose();
        let mut meta = Self::default()
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
}
