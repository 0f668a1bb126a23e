// SPDX-License-Identifier: MPL-2.0

//! Buffers that are made before they are needed.

use crate::error::{AcquireError, WriteAccessError};
use crate::producer::{Producer, WriteLease};

/// Has all of them at once, so that they are as many, and gives them back. What cannot be is refused before any memory of
/// other sizes is given up for it.
pub(super) fn preallocate(
    producer: &Producer,
    count: usize,
    acquire: impl Fn() -> Result<WriteLease, AcquireError>,
) -> Result<Vec<u32>, WriteAccessError> {
    let before = producer.stats();
    let (most, held) = (before.max_slots, before.slots_held);
    // A forked child knows no figures, and acquires nothing.
    if producer.is_of_this_process() && count > most.saturating_sub(held) as usize {
        return Err(WriteAccessError::Denied {
            reason: format!(
                "{count} buffers were asked for, and there may be {most} at most (max_buffers), of which {held} are in use"
            ),
        });
    }
    let leases: Result<Vec<_>, _> = (0..count).map(|_| acquire()).collect();
    if leases.is_err() && producer.stats().slots > before.slots {
        // What was made for nothing is not to stay.
        producer.collect();
    }
    Ok(leases?.iter().map(WriteLease::slot).collect())
}
