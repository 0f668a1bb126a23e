// SPDX-License-Identifier: MPL-2.0

//! An entry of the ring: a frame's metadata, and where its slot lies.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::abi::meta::{FrameMeta, META_WORDS, MetaError};
use crate::protocol::ring::PAYLOAD_WORDS;

const PLACE_WORDS: usize = 5;
const _: () = assert!(PLACE_WORDS + META_WORDS == PAYLOAD_WORDS);

/// The words of an entry.
pub type EntryWords = [u64; PAYLOAD_WORDS];

/// An entry, with the metadata in whatever way: they are large, and not moved about more often than need be.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<M = Arc<FrameMeta>> {
    /// The region that the slot lies in.
    pub region: u32,
    /// First byte of the slot in its region.
    pub offset: u64,
    /// Size of the slot in bytes.
    pub len: u64,
    /// Where the attachments lie, counted from the slot's first byte, and their size in bytes: 0, there are none.
    pub attached: (u64, u64),
    pub meta: M,
}

impl<M: Borrow<FrameMeta>> Entry<M> {
    pub fn encode(&self) -> EntryWords {
        let mut words = [0; PAYLOAD_WORDS];
        let (attached_at, attached_len) = self.attached;
        words[..PLACE_WORDS].copy_from_slice(&[
            self.region.into(),
            self.offset,
            self.len,
            attached_at,
            attached_len,
        ]);
        words[PLACE_WORDS..].copy_from_slice(&self.meta.borrow().encode());
        words
    }
}

impl Entry {
    /// Decodes words that another process wrote. Only the form is checked here.
    pub fn decode(words: &EntryWords) -> Result<Self, MetaError> {
        let (place, meta) = words.split_at(PLACE_WORDS);
        let meta: &[u64; META_WORDS] = meta.try_into().map_err(|_| MetaError("wrong size"))?;
        Ok(Self {
            region: u32::try_from(place[0]).map_err(|_| MetaError("impossible region"))?,
            offset: place[1],
            len: place[2],
            attached: (place[3], place[4]),
            meta: Arc::new(FrameMeta::decode(meta)?),
        })
    }
}
