// SPDX-License-Identifier: MPL-2.0

//! The producer's state of a pool. [`Guard`] has the operations under the lock.

pub(super) mod access;
pub(super) mod consumer;
pub(super) mod event;
pub(super) mod guard;
pub(super) mod history;
pub(super) mod lookup;
pub(super) mod plan;
mod reach;
pub(super) mod regions;
pub(super) mod retain;
pub(super) mod retired;
pub(super) mod settings;
mod share;
pub(super) mod slots;
pub(super) mod stats;
pub(super) mod wait;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use xmem_shm::abi::layout::{Control, Shape};
use xmem_shm::abi::named::Sticky;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::{inside, lock};
use xmem_shm::os::clock::monotonic_ns;
use xmem_shm::os::fork::ProcessId;
use xmem_shm::protocol::lease::SlotWord;
use xmem_shm::sync::{AtomicU64, Ordering};

use crate::cancel::Notifier;
use crate::delivery::Delivery;
use crate::error::{Forked, StickyError};
use event::{Command, Commands};
use guard::Guard;
use guard::State;
use history::Span;
use lookup::StickyLog;
use regions::Cold;
use retain::run_hook;
use settings::Settings;

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) copied: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) scarce: AtomicU64,
    cut_off: AtomicU64,
    timed_out: AtomicU64,
}

/// The background checks of devices that are running.
#[derive(Debug, Default)]
pub(super) struct DeviceChecks {
    /// A thread checks whether devices can still finish published frames.
    pub(super) watches: AtomicBool,
    /// Consumers need marks on frames whose work has ended on the device.
    pub(super) marks_wanted: AtomicBool,
    /// A thread sets these marks.
    pub(super) marks: AtomicBool,
}

/// A pool in its producer.
pub(super) struct Pool {
    name: String,
    socket_path: PathBuf,
    shm_prefix: String,
    settings: Settings,
    control: Control,
    control_fd: OwnedFd,
    process: ProcessId,
    /// The creation time on CLOCK_MONOTONIC.
    made_at: i64,
    commands: Arc<Commands>,
    /// Notified when consumers release something, join or leave.
    notifier: Arc<Notifier>,
    counters: Counters,
    /// Set under the lock.
    closed: AtomicBool,
    /// The number of waits that ended because there was room.
    waits_ended: AtomicU64,
    device_checks: DeviceChecks,
    state: Mutex<State>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Runs the hooks that did not run when the pool was closed.
        if self.is_of_this_process() {
            let state = inside(&mut self.state);
            state.slots.take_releases().for_each(run_hook);
            // Returns upstream's memory at the latest now.
            state
                .regions
                .retired
                .take_borrowed()
                .into_iter()
                .for_each(run_hook);
        }
    }
}

/// Without the slots, because the lock could be held.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .field("socket_path", &self.socket_path)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Pool {
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a pool, put together in one place"
    )]
    pub(super) fn new(
        name: String,
        socket_path: PathBuf,
        settings: Settings,
        control: Control,
        control_fd: OwnedFd,
        commands: Arc<Commands>,
        shm_prefix: String,
        sticky: StickyLog,
    ) -> Self {
        let state = State::new(&settings, sticky);
        Self {
            name,
            socket_path,
            shm_prefix,
            settings,
            control,
            control_fd,
            process: ProcessId::current(),
            made_at: monotonic_ns(),
            commands,
            notifier: Arc::default(),
            counters: Counters::default(),
            closed: AtomicBool::new(false),
            waits_ended: AtomicU64::new(0),
            device_checks: DeviceChecks::default(),
            state: Mutex::new(state),
        }
    }

    /// Locks the pool. `None` in a forked child, where the lock may be held forever by a thread that exists only in the parent.
    pub(super) fn lock(&self) -> Option<Guard<'_>> {
        self.is_of_this_process()
            .then(|| Guard::new(self, lock(&self.state)))
    }

    /// Locks the pool, with an error for the caller.
    pub(super) fn guard(&self) -> Result<Guard<'_>, Forked> {
        self.lock().ok_or(Forked)
    }

    /// Locks the pool on a thread of this library. A forked child has no such thread.
    pub(super) fn lock_on_own_thread(&self) -> Guard<'_> {
        Guard::new(self, lock(&self.state))
    }

    /// Whether the pool was not inherited through fork.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn socket_path(&self) -> &Path {
        &self.socket_path
    }

    pub(super) fn shm_prefix(&self) -> &str {
        &self.shm_prefix
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// The descriptor of control memory, for consumers.
    pub(super) fn control_fd(&self) -> BorrowedFd<'_> {
        self.control_fd.as_fd()
    }

    pub(super) fn commands(&self) -> &Commands {
        &self.commands
    }

    pub(super) fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn device_checks(&self) -> &DeviceChecks {
        &self.device_checks
    }

    pub(super) fn shape(&self) -> Shape {
        self.control.constants().shape
    }

    pub(super) fn lossless(&self) -> bool {
        self.settings.delivery == Delivery::Lossless
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Drops a reference of the producer.
    pub(super) fn dereference(&self, slot: u32) {
        if let Some(mut guard) = self.lock() {
            guard.dereference(slot);
            drop(guard);
            self.notice();
        }
    }

    /// Gives back a slot that was claimed and not published.
    pub(super) fn abandon(&self, slot: u32, word: SlotWord) {
        if let Some(mut guard) = self.lock() {
            guard.abandon(slot, word);
            drop(guard);
            self.notice();
        }
    }

    /// Notifies threads of this process that something may have become free.
    fn notice(&self) {
        if self.control.waiting().load(Ordering::Relaxed) != 0 {
            self.notifier.notify();
        }
    }

    /// Handles the slots that consumers have released.
    pub(super) fn process_releases(&self) {
        let mut guard = self.lock_on_own_thread();
        guard.finalize_watched();
        guard.forget_retired();
        drop(guard);
        self.notifier.notify();
    }

    /// Removes a consumer from the list. Its leases no longer protect frames.
    pub(super) fn remove_consumer(&self, id: u64) {
        let mut guard = self.lock_on_own_thread();
        guard.remove_consumer(id);
        guard.finalize_watched();
        guard.regions.forget_consumer(id);
        guard.forget_retired();
        guard.share_out();
        drop(guard);
        self.notifier.notify();
    }

    /// Removes all regions that are not needed. Returns how many were removed.
    pub(super) fn collect(&self) -> usize {
        let Some(mut guard) = self.lock() else {
            return 0;
        };
        // After `close`, the leases of consumers are on no list.
        if self.is_closed() {
            return 0;
        }
        guard.finalize_watched();
        guard.retire(Cold::NotInUse)
    }

    pub(super) fn set_sticky(&self, sticky: &Sticky) -> Result<u64, StickyError> {
        let mut guard = self.guard()?;
        let version = guard.sticky.push(sticky, self.control.head())?;
        drop(guard);
        self.commands.send(Command::PushSticky);
        Ok(version)
    }

    pub(super) fn set_eos(&self, eos: bool) {
        // Lossless consumers do not miss an end. The next frame removes it.
        if !eos && !self.end_is_seen() {
            return;
        }
        if let Some(mut guard) = self.lock() {
            self.control.set_eos_at(eos.then(|| self.control.head()));
            fault::point(Point::EosMarked);
            guard.wake_consumers();
        }
    }

    /// Whether no consumer of a lossless pool still has to get the end of the stream.
    pub(super) fn end_is_seen(&self) -> bool {
        if !self.lossless() || self.control.eos_at().is_none() {
            return true;
        }
        self.lock()
            .is_none_or(|guard| guard.consumers.most_behind(&self.control) == 0)
    }

    /// Closes the pool. Consumers keep the frames that they hold.
    pub(super) fn close(&self) {
        let Some(mut guard) = self.lock() else {
            return;
        };
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.control.set_closed();
        fault::point(Point::ClosedMarked);
        guard.trim_history(Span::Nothing);
        guard.wake_consumers();
        drop(guard);
        self.notifier.notify();
    }
}
