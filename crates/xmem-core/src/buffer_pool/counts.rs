// SPDX-License-Identifier: MPL-2.0

//! For how many readers buffers are, as far as this process said.

use std::collections::HashMap;

#[derive(Debug)]
struct Count {
    readers: u32,
    /// What the count is said of: an index is used again.
    generation: u32,
    /// This process writes it now.
    writing: bool,
}

/// By index: the newest buffer that this process wrote, or said a count of.
#[derive(Debug, Default)]
pub(super) struct Counts(HashMap<u32, Count>);

impl Counts {
    /// This process writes a buffer from here on. One that is edited is for as many readers as it was before.
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

    /// It is about to be published, for so many readers.
    pub(super) fn publish(&mut self, index: u32) -> u32 {
        let Some(count) = self.0.get_mut(&index) else {
            return 1;
        };
        count.writing = false;
        count.readers
    }

    /// It is about to be given back.
    pub(super) fn forget(&mut self, index: u32) {
        self.0.remove(&index);
    }

    /// `false`: this process does not write it.
    pub(super) fn set_of_written(&mut self, index: u32, readers: u32) -> bool {
        match self.0.get_mut(&index) {
            Some(count) if count.writing => {
                count.readers = readers;
                true
            }
            _ => false,
        }
    }

    /// Another count was said of what is published.
    pub(super) fn set_of_published(&mut self, index: u32, generation: u32, readers: u32) {
        // Not of one that another thread writes by now.
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
