// SPDX-License-Identifier: MPL-2.0

//! The budget of a consumer, and the setting that limits it.

use std::fmt;

/// The limit because of which a consumer's budget is not larger.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BudgetLimit {
    /// The consumer asked for no more.
    #[default]
    Asked,
    /// `ProducerBuilder::max_held`.
    MaxHeld,
    /// `ProducerBuilder::max_slots`, shared with the other consumers.
    MaxSlots,
    /// `ProducerBuilder::max_bytes`, shared with the other consumers.
    MaxBytes,
}

/// The name of the producer's property to raise, as in `xmemsink`; empty for [`BudgetLimit::Asked`].
impl fmt::Display for BudgetLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Asked => "",
            Self::MaxHeld => "max-held",
            Self::MaxSlots => "max-slots",
            Self::MaxBytes => "max-bytes",
        })
    }
}

/// The largest possible budget of a consumer of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The largest number of slots that one consumer may hold at a time.
    pub most: u32,
    /// The setting that limits the number.
    pub limit: BudgetLimit,
}

const BYTES: u64 = 2;
const SLOTS: u64 = 1;

impl Share {
    /// All requested budgets fit.
    pub const ALL: Self = Self {
        most: u32::MAX,
        limit: BudgetLimit::Asked,
    };

    /// The form in control memory. 0 is [`ALL`](Self::ALL), so that new memory has this value.
    pub(crate) fn word(self) -> u64 {
        let limit = match self.limit {
            BudgetLimit::Asked | BudgetLimit::MaxHeld => return 0,
            BudgetLimit::MaxSlots => SLOTS,
            BudgetLimit::MaxBytes => BYTES,
        };
        limit << 32 | u64::from(self.most)
    }

    /// The opposite of [`word`](Self::word). An unknown limit counts as `MaxSlots`.
    pub(crate) fn of_word(word: u64) -> Self {
        let limit = match word >> 32 {
            0 => return Self::ALL,
            BYTES => BudgetLimit::MaxBytes,
            _ => BudgetLimit::MaxSlots,
        };
        Self {
            most: word as u32,
            limit,
        }
    }
}
