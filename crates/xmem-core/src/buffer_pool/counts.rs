// SPDX-License-Identifier: MPL-2.0

//! The number of readers that each buffer is kept for, as far as this process set it.

use std::collections::HashMap;

#[derive(Debug)]
struct Count {
    readers: u32,
    /// The generation that the count belongs to: an index is reused.
    generation: u32,
    /// This process writes it now.
    writing: bool,
}

/// By index: the newest buffer that this process wrote, or set a count of.
#[derive(Debug, Default)]
pub(super) struct Counts(HashMap<u32, Count>);

impl Counts {
    /// This process starts to write a buffer. An edited buffer keeps its count.
    pub(super) fn begin(&mut self, index: u32, generation: u32, edited: Option<u32>) {
        let before = |count: &&Count| Some(count.generation) == edited;
        let readers = self
            .0
            .get(&index)
            .filter(before)
            .map_or(1, |count| count.readers);
        self.0.insert(
            index,
            Count {
                readers,
                generation,
                writing: true,
            },
        );
    }

    /// The buffer is about to be published; returns its count.
    pub(super) fn publish(&mut self, index: u32) -> u32 {
        let Some(count) = self.0.get_mut(&index) else {
            return 1;
        };
        count.writing = false;
        count.readers
    }

    /// The buffer is about to be given back.
    pub(super) fn forget(&mut self, index: u32) {
        self.0.remove(&index);
    }

    /// Sets the count of a buffer that is being written. `false`: this process does not write it.
    pub(super) fn set_of_written(&mut self, index: u32, readers: u32) -> bool {
        match self.0.get_mut(&index) {
            Some(count) if count.writing => {
                count.readers = readers;
                true
            }
            _ => false,
        }
    }

    /// Sets the count of a published buffer.
    pub(super) fn set_of_published(&mut self, index: u32, generation: u32, readers: u32) {
        // Not if another thread writes the buffer by now.
        if !self.0.get(&index).is_some_and(|count| count.writing) {
            self.0.insert(
                index,
                Count {
                    readers,
                    generation,
                    writing: false,
                },
            );
        }
    }
}
