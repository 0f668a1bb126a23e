// SPDX-License-Identifier: MPL-2.0

//! Flow control: how much may be in flight, and how much has arrived. Neither side reads a clock: the caller passes the time.

mod pace;
mod receiver;
mod sender;

use std::ops::Range;
use std::time::Duration;

pub use receiver::{Receiver, Target};
pub use sender::Sender;

/// The size of Zenoh's queue, in batches.
const BATCHES: u64 = 16;
/// The size of a batch in positions, which count bytes of Zenoh's queue. It is a little less than Zenoh's smallest batch. Zenoh
/// makes batches that are multiples of half of a TCP segment: 65,160 bytes on Ethernet, 62,636 with jumbo frames, 49,152 on a
/// loopback interface.
const BATCH: u64 = 48_900;
/// The maximum number of bytes that Zenoh adds to a message. Zenoh may have to repeat the key.
const AROUND: u64 = 160;
/// The maximum number of positions in flight. With it, Zenoh drops nothing while the link works.
///
/// It is two batches less than the queue, because one more batch is used if the window begins inside a batch, and one more since
/// Zenoh may begin a batch at another position.
pub const WINDOW: u64 = (BATCHES - 2) * BATCH;
/// The number of positions after which the receiver sends a credit.
pub const CREDIT_EVERY: u64 = 2 * BATCH;
/// The longest time between two credits.
pub const CREDIT_TIME: Duration = Duration::from_millis(200);
/// The sender sends a probe after this time without progress, or without anything to send.
pub const PROBE_AFTER: Duration = Duration::from_secs(1);
/// The other side counts as disconnected after this time without a message.
pub const SILENCE: Duration = Duration::from_secs(3);
/// The sender gives up an item after this time without progress, although credits arrive.
pub const STUCK: Duration = Duration::from_secs(10);

/// The positions of a message of `len` bytes that is sent at `position`.
///
/// A message that does not fit into the rest of a batch begins the next batch, as in Zenoh's queue. Returns `None` if a position
/// overflows, which no real stream reaches.
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
        /// `begun` is the number of bytes in Zenoh's current batch when the window begins.
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
