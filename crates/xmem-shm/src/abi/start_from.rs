// SPDX-License-Identifier: MPL-2.0

//! The first frame of a consumer.

/// The first frame that a consumer gets.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StartFrom {
    /// The first frame that is published after it joined.
    #[default]
    Next = 0,
    /// The newest existing frame.
    Newest = 1,
    /// The oldest frame that the producer keeps (its `history`).
    Oldest = 2,
}

impl StartFrom {
    /// The variant with this number in a message.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Next, Self::Newest, Self::Oldest]
            .into_iter()
            .find(|start| *start as u8 == code)
    }
}
