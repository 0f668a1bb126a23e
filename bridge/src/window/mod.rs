// SPDX-License-Identifier: MPL-2.0

//! How much may be under way, and what arrived of it. Neither side reads a clock: the caller passes the time.

mod receiver;
mod sender;

use std::ops::Range;
use std::time::Duration;

pub use receiver::{Receiver, Target};
pub use sender::Sender;

/// Positions count room in Zenoh's queue, which has this many batches of this many bytes.
const BATCHES: u64 = 16;
/// A little less than the smallest batch has. Zenoh makes batches that are multiples of half of a TCP segment: 65,160 bytes on
/// Ethernet, 62,636 with jumbo frames, 49,152 on a loopback interface.
const BATCH: u64 = 48_900;
/// Zenoh's own bytes around a message, at most: it may have to repeat the key.
const AROUND: u64 = 160;
/// The most positions under way, so that Zenoh drops nothing while the link lives: 14 batches may begin inside of the first one
/// and end inside of the last one, and Zenoh may begin a batch elsewhere, which costs one more.
pub const WINDOW: u64 = (BATCHES - 2) * BATCH;
/// The positions after which the receiver repeats its credit.
pub const CREDIT_EVERY: u64 = 2 * BATCH;
/// How often the receiver repeats its credit at least.
pub const CREDIT_TIME: Duration = Duration::from_millis(200);
/// After this long without progress, or without anything to send, the sender sends a probe.
pub const PROBE_AFTER: Duration = Duration::from_secs(1);
/// After this long without a message the other side counts as gone.
pub const SILENCE: Duration = Duration::from_secs(3);
/// After this long without progress the sender gives up an item, although credits come.
pub const STUCK: Duration = Duration::from_secs(10);

/// The positions of a message of `len` bytes behind this position. A message that does not fit into what is left of a batch
/// begins the next one, as in Zenoh's queue. `None`: no stream is that long.
pub fn span(position: u64, len: usize) -> Option<Range<u64>> {
    let size = (len as u64).checked_add(AROUND)?;
    let left = BATCH - position % BATCH;
    let start = if size <= left {
        position
    } else {
        position.checked_add(left)?
    };
    Some(start..start.checked_add(size)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{CHUNK_HEAD, MAX_CHUNK};

    proptest! {
        /// Wherever Zenoh is in its present batch.
        #[test]
        fn the_window_fits_into_the_queue(
            batch in 49_152..=65_535u64, begun in 0..=49_152u64,
            lens in prop::collection::vec(prop_oneof![1..500usize, 1..=MAX_CHUNK + CHUNK_HEAD], 1..2000),
        ) {
            let (mut batches, mut filled, mut position) = (1, begun, 0);
            for len in lens {
                position = span(position, len).unwrap().end;
                if position > WINDOW {
                    break;
                }
                let size = len as u64 + AROUND;
                if filled + size > batch {
                    (batches, filled) = (batches + 1, 0);
                }
                filled += size;
            }
            prop_assert!(batches <= BATCHES, "{batches}");
        }
    }

    #[test]
    fn a_message_does_not_straddle_two_batches() {
        let size = MAX_CHUNK + CHUNK_HEAD;
        let end = size as u64 + AROUND;
        assert_eq!(span(0, size), Some(0..end));
        assert_eq!(span(end, size), Some(BATCH..BATCH + end));
        assert_eq!(span(end, 100), Some(end..end + 100 + AROUND));
        assert_eq!(span(u64::MAX, 100), None);
    }
}
