// SPDX-License-Identifier: MPL-2.0

//! The end of a lease in the order of a stream, and of what else waits for one.
//!
//! By default a host function ends it. It runs on a thread of the driver and may not call the driver, so it only gives up
//! the lease; what goes with that is freed by the reaper's thread. Leases that wait for their host function are listed: in
//! a context that is in error no host function runs any more, and then they end because nothing else does.
#![allow(unsafe_code)] // calls of the driver, and a function that it calls

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock};

use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::fork::ProcessId;

use super::device::Device;
use super::error::CudaError;
use super::hand_over;
use super::stream::Stream;
use super::{SUSPICIOUS, reaper, result};
use crate::lease::ReadLease;

/// Something that ends when a device says so.
struct Pending {
    what: What,
    device: Device,
    /// Of the stream that it waits for ([`Device::with_context_of`]).
    context: usize,
}

enum What {
    Lease(ReadLease),
    /// The device ends it itself.
    Handed(hand_over::Lease),
    /// Not a lease, but what waits for a device all the same.
    Job(Box<dyn FnOnce() + Send>),
}

static PENDING: LazyLock<Mutex<HashMap<u64, Pending>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(1);

fn pending() -> MutexGuard<'static, HashMap<u64, Pending>> {
    // Nobody calls the driver while this is locked: host functions take it.
    lock(&PENDING)
}

/// The process that the list is of.
static MADE_IN: OnceLock<ProcessId> = OnceLock::new();

fn list(what: What, device: &Device) -> u64 {
    MADE_IN.get_or_init(ProcessId::current);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let entry = Pending {
        what,
        device: device.clone(),
        context: device.context().addr(),
    };
    pending().insert(number, entry);
    number
}

/// Ends a lease. On any thread, also on the driver's.
fn end(pending: Pending) {
    match pending.what {
        // Hooks run with the producer's own lease, and those are others' code.
        What::Lease(lease) if lease.is_local() => reaper::LEASES.later(move || drop(lease)),
        What::Lease(lease) => drop(lease),
        What::Handed(handed) => handed.end(),
        What::Job(job) => {
            reaper::later(job);
            return;
        }
    }
    fault::point(Point::ReleaseRan);
}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is the driver's, where nobody may call the driver.
pub(crate) fn is_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

fn as_host_function(call: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    // A panic must not go through the driver.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    IN_HOST_FUNCTION.set(false);
}

unsafe extern "C" fn ended(data: *mut c_void) {
    let number = data as usize as u64;
    let found = pending().remove(&number);
    if let Some(found) = found {
        as_host_function(|| end(found));
    }
}

fn launch(number: u64, device: &Device, stream: Stream) -> Result<(), CudaError> {
    let data = number as usize as *mut c_void;
    let launched = device.with_context_of(stream, |context| {
        waits_in(number, context);
        // SAFETY: the stream is alive (`Stream::from_raw`); the function takes any number.
        unsafe { result::launch_host(stream.raw(), Some(ended), data) }
    });
    fault::point(Point::ReleaseEnqueued);
    launched
}

/// Ends a lease when the stream gets there and the caller's own handle is gone. On failure only that handle is left.
pub(super) fn by_host_function(
    lease: &ReadLease,
    device: &Device,
    stream: Stream,
) -> Result<(), CudaError> {
    // In a forked child the list may be locked by a thread that is not there.
    device.check_process()?;
    let number = list(What::Lease(lease.clone()), device);
    match launch(number, device, stream) {
        Ok(()) => {
            watch();
            Ok(())
        }
        Err(error) => match pending().remove(&number) {
            Some(_) => Err(error),
            // It was ended with its context.
            None => Ok(()),
        },
    }
}

/// Has something done when the stream gets there.
pub(super) fn when_done(job: Box<dyn FnOnce() + Send>, device: &Device, stream: Stream) {
    if device.check_process().is_err() {
        // A forked child, in which nothing of this works: it is the parent's.
        return std::mem::forget(job);
    }
    let number = list(What::Job(job), device);
    let Err(error) = launch(number, device, stream) else {
        return watch();
    };
    let Some(refused) = pending().remove(&number) else {
        // It was done with its context.
        return;
    };
    match stream.synchronize(device) {
        // In a context that is in error nothing runs any more.
        Ok(()) | Err(CudaError::ContextInError { .. }) => end(refused),
        Err(_) => {
            log::error!("something is not done, since its stream cannot be waited for: {error}");
            std::mem::forget(refused);
        }
    }
}

/// Keeps what a lease needs that a device is going to end.
pub(super) fn list_handed(handed: hand_over::Lease, device: &Device) -> u64 {
    let number = list(What::Handed(handed), device);
    watch();
    number
}

/// A lease ends on a stream of this context.
pub(super) fn waits_in(number: u64, context: usize) {
    if let Some(entry) = pending().get_mut(&number) {
        entry.context = context;
    }
}

/// Whether a device has ended a lease that was handed over. Then its producer is told, if it wants to be.
pub(super) fn look_at_handed(number: u64) -> bool {
    let found = {
        let mut pending = pending();
        match pending.get(&number) {
            Some(Pending {
                what: What::Handed(handed),
                ..
            }) if !handed.is_over() => return false,
            _ => pending.remove(&number),
        }
    };
    if let Some(found) = found {
        end(found);
    }
    true
}

/// Ends a lease that was handed over, from here.
pub(super) fn end_handed(number: u64) {
    if !MADE_IN.get().is_some_and(|process| process.is_current()) {
        // Inherited through fork: the lease is the parent's.
        return;
    }
    let found = pending().remove(&number);
    if let Some(found) = found {
        end(found);
    }
}

/// Ends a lease that was handed over when the stream gets there, since the stream cannot do so itself.
pub(super) fn handed_by_host_function(number: u64, device: &Device, stream: Stream) {
    if let Err(error) = launch(number, device, stream) {
        // Who put work on that stream has to wait for it: nobody else can say when the device is done.
        log::error!(
            "a lease cannot be ended in the order of its stream ({error}): it ends with its connection"
        );
    }
}

/// Nothing runs in a context any more, so nobody reads what is leased for its streams. Those of other contexts may well run.
pub(super) fn context_failed(device: &Device, context: usize) {
    let ended: Vec<Pending> = {
        let mut pending = pending();
        pending
            .extract_if(|_, entry| entry.device == *device && entry.context == context)
            .map(|(_, entry)| entry)
            .collect()
    };
    if !ended.is_empty() {
        let (ordinal, count) = (device.ordinal(), ended.len());
        // Callers may have something locked, and the program's logger may call back.
        super::elsewhere(move || {
            log::warn!("CUDA device {ordinal}: {count} leases end with their context");
        });
    }
    ended.into_iter().for_each(end);
}

static WATCHED: AtomicBool = AtomicBool::new(false);

/// Looks now and then whether the contexts still work in which releases wait: in one that is in error they would for ever.
fn watch() {
    if WATCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    reaper::DRIVER.every(SUSPICIOUS, || {
        let mut contexts: Vec<(Device, usize)> = Vec::new();
        {
            let pending = pending();
            for entry in pending.values() {
                let context = (entry.device.clone(), entry.context);
                if !contexts.contains(&context) {
                    contexts.push(context);
                }
            }
            if contexts.is_empty() {
                // While it is locked: whoever lists one after this sees that nobody watches.
                WATCHED.store(false, Ordering::Release);
                return true;
            }
        }
        for (device, context) in contexts {
            if !device.may_end(context) {
                context_failed(&device, context);
            }
        }
        false
    });
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::{MADE_IN, as_host_function, end_handed, pending};
    use crate::region::{Backing, Region, RegionSettings, RegionView, Ticket};
    use xmem_shm::os::fork::ProcessId;
    use xmem_shm::testing::is_so_in_a_child_without;

    /// Says on which thread it is dropped.
    #[derive(Clone)]
    struct Tells(Sender<Option<String>>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self
                .0
                .send(std::thread::current().name().map(str::to_owned));
        }
    }

    #[test]
    fn what_was_made_of_a_region_goes_on_no_thread_of_the_driver() {
        let settings = RegionSettings {
            backing: Backing::Heap,
            shm_prefix: "",
            peers_may_write: false,
        };
        let region = Region::create(4096, settings).unwrap();
        let view = || {
            let Ticket::Heap(id) = region.ticket() else {
                panic!("no other kind was asked for");
            };
            RegionView::open(Ticket::Heap(id), 4096, false).unwrap()
        };
        let (say, hear) = channel();
        let used = view();
        used.derive(1, Tells(say.clone()));
        as_host_function(|| drop(used));
        assert_eq!(hear.recv().unwrap().as_deref(), Some("xmem-cuda-ends"));
        let used = view();
        used.derive(1, Tells(say));
        drop(used);
        assert_eq!(
            hear.recv().unwrap().as_deref(),
            std::thread::current().name()
        );
    }

    #[test]
    fn a_forked_child_waits_for_no_lock_that_another_thread_had() {
        MADE_IN.get_or_init(ProcessId::current);
        let ends = || {
            end_handed(1);
            true
        };
        assert!(is_so_in_a_child_without(pending, ends), "it hung");
    }
}
