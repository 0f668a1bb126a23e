// SPDX-License-Identifier: MPL-2.0

//! Data for which an entry of the ring has no words: a layout that is not in the table, and bytes for the user.

use std::sync::Arc;

use crate::abi::entry::Entry;
use crate::abi::frame_layout::{FrameLayout, LAYOUT_WORDS, MetaError};
use crate::abi::limits::RESERVED_LEN;
use crate::abi::meta::{FrameMeta, Reserved};

/// The number of words of an extension.
pub const EXTENSION_WORDS: usize = LAYOUT_WORDS + RESERVED_LEN / 8;

/// An extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension {
    words: [u64; EXTENSION_WORDS],
}

impl Extension {
    /// The extension for the entry of this frame.
    pub fn of(meta: &FrameMeta) -> Self {
        let mut words = [0; EXTENSION_WORDS];
        if let Some((layout, reserved)) = words.split_first_chunk_mut() {
            *layout = meta.layout.encode();
            let bytes = meta.reserved.iter().flat_map(|bytes| bytes.as_chunks().0);
            for (word, bytes) in reserved.iter_mut().zip(bytes) {
                *word = u64::from_le_bytes(*bytes);
            }
        }
        Self { words }
    }

    /// An extension that another process wrote.
    pub fn of_words(words: [u64; EXTENSION_WORDS]) -> Self {
        Self { words }
    }

    /// The words of the extension.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The description of the frame of an entry whose layout is in this extension.
    pub fn describe(&self, entry: &Entry) -> Result<FrameMeta, MetaError> {
        let reserved = entry.has_reserved().then(|| self.reserved());
        Ok(entry.meta(Arc::new(self.layout()?), reserved))
    }

    fn layout(&self) -> Result<FrameLayout, MetaError> {
        match self.words.first_chunk() {
            Some(layout) => FrameLayout::decode(layout),
            None => Ok(FrameLayout::default()),
        }
    }

    /// The bytes that the user defines.
    pub fn reserved(&self) -> Box<Reserved> {
        let mut reserved = Box::new([0; RESERVED_LEN]);
        let words = self.words.iter().skip(LAYOUT_WORDS);
        for (bytes, word) in reserved.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_round_trip() {
        let reserved = std::array::from_fn(|at| at as u8);
        let mut meta = FrameMeta {
            reserved: Some(reserved.into()),
            ..FrameMeta::default()
        };
        meta.layout_mut().content_type = "a".into();
        let extension = Extension::of(&meta);
        assert_eq!(extension.layout().as_ref(), Ok(&*meta.layout));
        assert_eq!(*extension.reserved(), reserved);
        assert_eq!(Extension::of_words(extension.words), extension);
    }
}
