// SPDX-License-Identifier: MPL-2.0

//! Which frames a consumer gets: what happens when it is slow, and which one is the first.

/// What happens when a consumer is slower than the producer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// The producer goes on; the newest frames are kept, and a slow consumer misses the others.
    #[default]
    Live,
    /// The producer waits until every connected consumer took each frame, or is gone.
    Lossless,
}

impl Delivery {
    /// As the control memory has it.
    pub(crate) fn of(lossless: bool) -> Self {
        if lossless { Self::Lossless } else { Self::Live }
    }
}

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
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Next, Self::Newest, Self::Oldest]
            .into_iter()
            .find(|start| *start as u8 == code)
    }
}
