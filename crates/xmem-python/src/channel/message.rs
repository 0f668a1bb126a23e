// SPDX-License-Identifier: MPL-2.0

//! The format of a message. Each number is checked, because another process wrote it.
//!
//! The first part begins with a table of the message's blocks. The pickle and the copied blocks follow. Blocks that were not
//! copied are in other parts. The byte order is native, because a message never leaves the host.

use xmem_core::FrameMeta;

use crate::about::MESSAGE;

/// The alignment of blocks in bytes: a cache line, which is also sufficient for vector instructions.
pub(super) const ALIGN: usize = 64;
/// The maximum number of blocks of a message.
const MAX_BLOCKS: usize = 1 << 20;
const MAGIC: [u8; 4] = *b"xmCH";
const VERSION: u8 = 3;
const HEAD: usize = 16;
const ROW: usize = 32;
/// Flags of a block.
const IN_ORDER: u32 = 1;
const ON_DEVICE: u32 = 2;

/// The kinds of frames in a channel's pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    /// Held by the references of the following message.
    Refs,
    /// Cancels the previous frames with references or arrays: no message follows.
    Void,
    /// Arrays on a device, of the following message. A message may have several such frames.
    Device,
}

/// The channel's part of a frame's metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) kind: Kind,
    /// The receiver. `None`: all.
    pub(super) to: Option<u64>,
    /// The sequence of the frame for its references.
    pub(super) refs: Option<u64>,
    /// The sequence of the first frame with its arrays on devices. These frames have it too, except the first. `None`: this is
    /// the first, or there is none.
    pub(super) device: Option<u64>,
    /// The index of this frame among them.
    pub(super) number: u32,
}

impl Label {
    pub(super) fn write(self, meta: &mut FrameMeta) {
        meta.layout_mut().content_type = MESSAGE.into();
        let mut to = Box::new([0; 64]);
        to[..4].copy_from_slice(&MAGIC);
        to[4] = VERSION;
        to[5] = match self.kind {
            Kind::Message => 0,
            Kind::Refs => 1,
            Kind::Void => 2,
            Kind::Device => 3,
        };
        to[6] = u8::from(self.to.is_some());
        to[7] = u8::from(self.refs.is_some());
        to[8..16].copy_from_slice(&self.to.unwrap_or(0).to_ne_bytes());
        to[16..24].copy_from_slice(&self.refs.unwrap_or(0).to_ne_bytes());
        to[24..32].copy_from_slice(&self.device.unwrap_or(0).to_ne_bytes());
        to[32] = u8::from(self.device.is_some());
        to[36..40].copy_from_slice(&self.number.to_ne_bytes());
        meta.reserved = Some(to);
    }

    /// `None`: the frame does not belong to a channel.
    pub(super) fn read(meta: &FrameMeta) -> Option<Self> {
        let from = meta.reserved.as_deref()?;
        if from[..4] != MAGIC || from[4] != VERSION || meta.layout.content_type.as_str() != MESSAGE
        {
            return None;
        }
        let word = |at: usize| u64::from_ne_bytes(from[at..at + 8].try_into().unwrap_or_default());
        Some(Self {
            kind: match from[5] {
                0 => Kind::Message,
                1 => Kind::Refs,
                2 => Kind::Void,
                3 => Kind::Device,
                _ => return None,
            },
            to: (from[6] != 0).then(|| word(8)),
            refs: (from[7] != 0).then(|| word(16)),
            device: (from[32] != 0).then(|| word(24)),
            number: u32::from_ne_bytes(from[36..40].try_into().unwrap_or_default()),
        })
    }
}

/// The place of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// The part of the message, or the number of the frame if the block is on a device.
    pub(super) part: u32,
    /// The block is in one of the separate frames on devices.
    pub(super) on_device: bool,
    /// The pickle reads the block in order, not by number.
    pub(super) in_order: bool,
    /// The offset in its part, or in the payload of its frame.
    pub(super) offset: usize,
    /// Size in bytes.
    pub(super) len: usize,
    /// The number of bytes that the sender omitted before it.
    pub(super) shift: usize,
}

/// The table of a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Table {
    pub(super) blocks: Vec<Place>,
    pub(super) pickle: Place,
}

/// The size of a table with this many blocks in bytes. The pickle follows it.
pub(super) fn table_len(blocks: usize) -> usize {
    HEAD + blocks * ROW
}

impl Table {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(table_len(self.blocks.len()));
        bytes.extend_from_slice(&(self.blocks.len() as u64).to_ne_bytes());
        bytes.extend_from_slice(&(self.pickle.len as u64).to_ne_bytes());
        for place in &self.blocks {
            bytes.extend_from_slice(&place.part.to_ne_bytes());
            let in_order = if place.in_order { IN_ORDER } else { 0 };
            let on_device = if place.on_device { ON_DEVICE } else { 0 };
            bytes.extend_from_slice(&(in_order | on_device).to_ne_bytes());
            for word in [place.offset, place.len, place.shift] {
                bytes.extend_from_slice(&(word as u64).to_ne_bytes());
            }
        }
        bytes
    }

    /// Decodes the table at the beginning of the first of these parts. `parts` has their sizes. `None`: the table does not
    /// match them. Blocks on devices are checked when they are used.
    pub(super) fn decode(bytes: &[u8], parts: &[usize]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes.get(at..at.checked_add(8)?)?;
            usize::try_from(u64::from_ne_bytes(word.try_into().ok()?)).ok()
        };
        let count = word(0)?;
        if count > MAX_BLOCKS {
            return None;
        }
        let inside = |place: Place| {
            let end = place.offset.checked_add(place.len)?;
            let is_there = place.on_device || end <= *parts.get(place.part as usize)?;
            is_there.then_some(place)
        };
        let pickle = inside(Place {
            offset: table_len(count),
            len: word(8)?,
            ..Place::default()
        })?;
        let block = |number: usize| {
            let at = table_len(number);
            let both = word(at)? as u64;
            let (low, high) = (both as u32, (both >> 32) as u32);
            let (part, flags) = if cfg!(target_endian = "little") {
                (low, high)
            } else {
                (high, low)
            };
            inside(Place {
                part,
                on_device: flags & ON_DEVICE != 0,
                in_order: flags & IN_ORDER != 0,
                offset: word(at + 8)?,
                len: word(at + 16)?,
                shift: word(at + 24)?,
            })
        };
        let blocks = (0..count).map(block).collect::<Option<_>>()?;
        Some(Self { blocks, pickle })
    }
}
