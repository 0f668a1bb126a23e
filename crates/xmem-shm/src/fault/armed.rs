// SPDX-License-Identifier: MPL-2.0

//! The plans for the points of this process.
#![allow(unsafe_code)] // raise: sends a signal to this thread, so that it does not pass the point
#![allow(clippy::indexing_slicing)] // `ARRIVALS` has an entry for each point

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Point;

/// The fault at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Stop,
    /// The system call fails with this error. Has no effect at points without a system call.
    Fail(i32),
}

static ARMED: AtomicBool = AtomicBool::new(false);
static PLANS: Mutex<Vec<(Point, Range<u32>, Action)>> = Mutex::new(Vec::new());
static ARRIVALS: [AtomicU32; Point::ALL.len()] = [const { AtomicU32::new(0) }; Point::ALL.len()];
static CLOCK_OFFSET: AtomicI64 = AtomicI64::new(0);

/// Plans an action for these arrivals at a point. The next arrival is number 1.
pub fn arm(point: Point, arrivals: Range<u32>, action: Action) {
    let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    ARRIVALS[point as usize].store(0, Ordering::Relaxed);
    plans.push((point, arrivals, action));
    ARMED.store(true, Ordering::Release);
}

/// Drops all plans.
pub fn disarm() {
    let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    ARMED.store(false, Ordering::Release);
    plans.clear();
}

/// Whether a plan has remaining arrivals.
pub fn is_armed() -> bool {
    let plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    plans.iter().any(|(point, arrivals, _)| {
        ARRIVALS[*point as usize].load(Ordering::Relaxed) + 1 < arrivals.end
    })
}

/// How often this process has passed a point since a plan was made for it.
pub fn arrivals(point: Point) -> u32 {
    ARRIVALS[point as usize].load(Ordering::Relaxed)
}

/// Sets this process's clock ahead of the host's, in nanoseconds.
pub fn set_clock_offset(nanoseconds: i64) {
    CLOCK_OFFSET.store(nanoseconds, Ordering::Relaxed);
}

/// The offset of this process's clock from the host's, in nanoseconds.
pub fn clock_offset() -> i64 {
    CLOCK_OFFSET.load(Ordering::Relaxed)
}

fn action(point: Point) -> Option<Action> {
    if !ARMED.load(Ordering::Acquire) {
        return None;
    }
    let plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    if !plans.iter().any(|plan| plan.0 == point) {
        return None;
    }
    let arrival = ARRIVALS[point as usize].fetch_add(1, Ordering::Relaxed) + 1;
    let plan = plans
        .iter()
        .find(|plan| plan.0 == point && plan.1.contains(&arrival));
    plan.map(|plan| plan.2)
}

/// Called when the process passes a point.
pub fn point(point: Point) {
    let _ = call(point);
}

/// Called before a system call. A plan can make it fail.
pub fn call(call: Point) -> io::Result<()> {
    let signal = match action(call) {
        Some(Action::Kill) => libc::SIGKILL,
        Some(Action::Stop) => libc::SIGSTOP,
        Some(Action::Fail(errno)) => return Err(io::Error::from_raw_os_error(errno)),
        None => return Ok(()),
    };
    // SAFETY: the kernel handles both signals. No code of this process runs for them.
    unsafe { libc::raise(signal) };
    Ok(())
}
