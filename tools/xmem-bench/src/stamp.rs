// SPDX-License-Identifier: MPL-2.0

//! The content of a frame: the time, and with `touch` a byte in each page. It is the same for all transports.

use rustix::time::ClockId;

use crate::Error;
use crate::figures::{Meter, now};

/// The size of a memory page.
const PAGE: usize = 4096;

pub(crate) fn write(frame: &mut [u8], touch: bool) -> Result<(), Error> {
    if touch {
        for page in frame.chunks_mut(PAGE) {
            page[0] = page[0].wrapping_add(1);
        }
    }
    let stamp = frame
        .first_chunk_mut()
        .ok_or("a frame without room for the time")?;
    *stamp = now(ClockId::Monotonic).to_le_bytes();
    Ok(())
}

/// Counts a frame that does not contain the time. Returns whether this was the first frame.
pub(crate) fn read_without_time(frame: &[u8], touch: bool, meter: &Meter) -> bool {
    if touch {
        read_pages(frame);
    }
    meter.count()
}

/// Records the arrival after the stamp was read. Returns whether this was the first frame.
pub(crate) fn read(frame: &[u8], touch: bool, meter: &Meter) -> Result<bool, Error> {
    let stamp = frame.first_chunk().ok_or("a frame without a time")?;
    let stamp = std::hint::black_box(u64::from_le_bytes(*stamp));
    let arrival = now(ClockId::Monotonic);
    meter.arrived(arrival, arrival.saturating_sub(stamp));
    Ok(read_without_time(frame, touch, meter))
}

fn read_pages(frame: &[u8]) {
    let pages = frame.iter().step_by(PAGE);
    std::hint::black_box(pages.fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
}
