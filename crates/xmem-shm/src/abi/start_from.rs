// SPDX-License-Identifier: MPL-2.0

//! The frame that a consumer starts with.

/// Which frame a consumer gets first.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StartFrom {
    /// The first that is published after it joined.
    #[default]
    Next = 0,
    /// The newest that there is.
    Newest = 1,
    /// The oldest that the producer keeps (its `history`).
    Oldest = 2,
}

impl StartFrom {
    /// The variant of this number in a message.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Next, Self::Newest, Self::Oldest]
            .into_iter()
            .find(|start| *start as u8 == code)
    }
}
