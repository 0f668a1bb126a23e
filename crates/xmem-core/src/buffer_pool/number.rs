// SPDX-License-Identifier: MPL-2.0

//! The number of a buffer, which processes send to each other: the process that wrote it, its slot, and a tag for the use of the slot.
//! And the names of the pools that these processes write.

use std::collections::HashSet;
use std::path::Path;

use xmem_shm::abi::meta::FrameMeta;

use crate::rendezvous::{lock_path, names_in, socket_path};

const SLOT_BITS: u32 = 12;
const TAG_BITS: u32 = 12;
const TAGS: u32 = (1 << TAG_BITS) - 1;

/// The maximum number of buffers of a process, limited by the bits for their numbers.
pub(super) const MAX_BUFFERS: u32 = 1 << SLOT_BITS;
/// The maximum number of writers. The next number is unused, so that `u32::MAX` is never a buffer.
pub(super) const MAX_WRITERS: u8 = u8::MAX;

/// The parts of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) writer: u8,
    pub(super) slot: u32,
    /// 0: any use of the slot.
    pub(super) tag: Tag,
}

/// The count of uses of a slot, modulo 4095. Never 0 for a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag(u32);

impl Tag {
    pub(super) const ANY: Self = Self(0);

    /// The tag of a slot's first use. It is random, so that it probably differs from that of an earlier process.
    pub(super) fn random() -> Self {
        Self((xmem_shm::os::random::u64() as u32 & TAGS).max(1))
    }

    pub(super) fn next(self) -> Self {
        Self(self.0 % TAGS + 1)
    }

    /// Whether a number with this tag refers to that use.
    pub(super) fn is_of(self, used: Self) -> bool {
        self == Self::ANY || self == used
    }

    /// Stores the tag in the metadata of a buffer that is published.
    pub(super) fn put(self, meta: &mut FrameMeta) {
        let reserved = meta.reserved.get_or_insert_with(|| Box::new([0; _]));
        if let Some(place) = reserved.first_chunk_mut() {
            *place = self.0.to_le_bytes();
        }
    }

    /// Removes the tag from metadata that another process may have written.
    pub(super) fn take(meta: &mut FrameMeta) -> Self {
        let reserved = meta.reserved.take();
        let tag = reserved.and_then(|bytes| bytes.first_chunk().copied());
        Self(u32::from_le_bytes(tag.unwrap_or_default()) & TAGS)
    }
}

impl Number {
    pub(super) fn pack(self) -> u32 {
        u32::from(self.writer) << (SLOT_BITS + TAG_BITS)
            | (self.slot % MAX_BUFFERS) << TAG_BITS
            | self.tag.0
    }

    /// `None`: the number is invalid.
    pub(super) fn unpack(number: u32) -> Option<Self> {
        let writer = (number >> (SLOT_BITS + TAG_BITS)) as u8;
        (writer < MAX_WRITERS).then_some(Self {
            writer,
            slot: number >> TAG_BITS & (MAX_BUFFERS - 1),
            tag: Tag(number & TAGS),
        })
    }

    /// The number of the slot, for any use.
    pub(super) fn of_slot(self) -> Self {
        Self {
            tag: Tag::ANY,
            ..self
        }
    }

    /// Whether a number refers to the same buffer.
    pub(super) fn means(self, other: Self) -> bool {
        self.of_slot() == other.of_slot() && self.tag.is_of(other.tag)
    }
}

/// The name of the pool with the buffers of one process.
pub(super) fn pool_of(name: &str, writer: u8) -> String {
    format!("{name}.b{writer:02x}")
}

/// The reverse of [`pool_of`].
pub(super) fn name_of(pool: &str) -> Option<&str> {
    let (name, writer) = pool.rsplit_once(".b")?;
    let number = u8::from_str_radix(writer, 16).ok()?;
    (number < MAX_WRITERS && pool_of(name, number) == pool).then_some(name)
}

/// The pools of a buffer pool's processes that have a socket or a lock. The process may have been killed.
pub(super) fn pools_with_files(name: &str) -> Vec<String> {
    let dir = socket_path(pool_of(name, 0)).unwrap_or_default();
    // All have the same directory, and one that cannot be read may still have the files.
    let names = dir.parent().and_then(|dir| names_in(dir).ok());
    let has_files = |pool: &String| {
        let has = |path: &Path| {
            let listed = |names: &HashSet<_>| path.file_name().is_some_and(|it| names.contains(it));
            names.as_ref().is_none_or(listed) && path.exists()
        };
        socket_path(pool).is_ok_and(|path| has(&path) || has(&lock_path(&path)))
    };
    let pools = (0..MAX_WRITERS).map(|writer| pool_of(name, writer));
    pools.filter(has_files).collect()
}

/// Whether the pool of a process has a socket. The process may have been killed.
pub(super) fn has_socket(pool: &str) -> bool {
    socket_path(pool).is_ok_and(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_round_trip() {
        for (writer, slot, tag) in [(0, 0, 0), (254, 4095, 4095), (1, 2, 3)] {
            let tag = Tag(tag);
            let number = Number { writer, slot, tag };
            assert_eq!(Number::unpack(number.pack()), Some(number));
        }
        assert_eq!(Number::unpack(u32::MAX), None);
    }

    #[test]
    fn tags_are_never_zero() {
        let mut tag = Tag::random();
        for _ in 0..=TAGS {
            let next = tag.next();
            assert!(next != tag && next != Tag::ANY && Tag::ANY.is_of(next) && !next.is_of(tag));
            tag = next;
        }
    }

    #[test]
    fn a_tag_round_trips_in_metadata() {
        let tag = Tag::random();
        let mut meta = FrameMeta::new(1);
        assert_eq!(Tag::take(&mut meta), Tag::ANY);
        tag.put(&mut meta);
        assert_eq!(Tag::take(&mut meta), tag);
        assert_eq!(meta, FrameMeta::new(1));
    }
}
