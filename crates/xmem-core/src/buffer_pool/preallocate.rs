// SPDX-License-Identifier: MPL-2.0

//! Buffers made before they are needed.

use super::error::WriteAccessError;
use crate::error::AcquireError;
use crate::producer::{Producer, WriteLease};

/// Acquires all buffers at once, so that they are distinct, and gives them back. A request that cannot succeed fails
/// before any memory of other sizes is given up for it.
pub(super) fn preallocate(
    producer: &Producer,
    count: usize,
    acquire: impl Fn() -> Result<WriteLease, AcquireError>,
) -> Result<Vec<u32>, WriteAccessError> {
    let before = producer.stats();
    let (most, held) = (before.max_slots, before.slots_held);
    // A forked child has no figures, and acquires nothing.
    if producer.is_of_this_process() && count > most.saturating_sub(held) as usize {
        return Err(WriteAccessError::Denied {
            reason: format!(
                "{count} buffers were asked for, and there may be {most} at most (max_buffers), of which {held} are in use"
            ),
        });
    }
    let leases: Result<Vec<_>, _> = (0..count).map(|_| acquire()).collect();
    if leases.is_err() && producer.stats().slots > before.slots {
        // Frees the buffers of the failed request.
        producer.collect();
    }
    Ok(leases?.iter().map(WriteLease::slot).collect())
}
