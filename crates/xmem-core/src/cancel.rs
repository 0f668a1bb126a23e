// SPDX-License-Identifier: MPL-2.0

//! Waits inside a process, and their cancellation from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use xmem_shm::lock::lock;
use xmem_shm::os::fork::ProcessId;

/// A thread's wait that can be interrupted.
pub(crate) trait Wake: Send + Sync {
    fn wake(&self);
}

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    sleepers: Mutex<Vec<Weak<dyn Wake>>>,
}

/// Cancels waits that use this canceller, from any thread, until it is [reset](Self::reset).
///
/// ```
/// use xmem_core::{Canceller, ConnectError, Consumer};
/// let canceller = Canceller::new();
/// canceller.cancel();
/// let dir = tempfile::tempdir()?;
/// let pool = dir.path().join("none.sock");
/// let result = Consumer::builder(pool.to_str().unwrap()).canceller(&canceller).connect_wait(None);
/// assert!(matches!(result, Err(ConnectError::Cancelled)));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Canceller(Arc<Inner>);

impl std::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Canceller")
            .field(&self.is_cancelled())
            .finish()
    }
}

impl Canceller {
    /// A canceller that is not cancelled yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the waits in progress, and later ones at once.
    ///
    /// Not for a signal handler: it takes a lock, which the interrupted thread may hold. Let a thread wait for the signal
    /// and call this, as the example `xmem-consumer` does.
    pub fn cancel(&self) {
        // SeqCst: if a sleeper read the flag before this store, it was already registered, so `wake` finds it.
        self.0.cancelled.store(true, Ordering::SeqCst);
        let sleepers = self.sleepers().clone();
        for sleeper in sleepers.iter().filter_map(Weak::upgrade) {
            sleeper.wake();
        }
    }

    /// Allows waits again.
    pub fn reset(&self) {
        self.0.cancelled.store(false, Ordering::SeqCst);
    }

    /// Whether waits are cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    fn sleepers(&self) -> std::sync::MutexGuard<'_, Vec<Weak<dyn Wake>>> {
        lock(&self.0.sleepers)
    }

    /// Registers a sleeper that [`cancel`](Self::cancel) wakes, until the registration is dropped.
    pub(crate) fn register<W: Wake + 'static>(&self, sleeper: &Arc<W>) -> Registration {
        let sleeper: Weak<W> = Arc::downgrade(sleeper);
        let sleeper: Weak<dyn Wake> = sleeper;
        let mut sleepers = self.sleepers();
        sleepers.retain(|s| s.strong_count() > 0);
        sleepers.push(sleeper.clone());
        Registration {
            canceller: self.clone(),
            sleeper,
            process: ProcessId::current(),
        }
    }
}

/// How long a call may wait: [forever](Self::FOREVER) or [up to](Self::up_to) a time, [unless](Self::unless) it is cancelled.
///
/// ```
/// use std::time::Duration;
/// use xmem_core::{Canceller, Producer, Wait, WaitError};
/// # let dir = tempfile::tempdir()?;
/// # let pool = dir.path().join("p.sock");
/// # let pool = pool.to_str().unwrap();
/// let producer = Producer::builder(pool).build()?;
/// let result = producer.wait_for_consumers(1, Wait::up_to(Duration::from_millis(1)));
/// assert_eq!(result, Err(WaitError::Timeout));
/// let canceller = Canceller::new();
/// canceller.cancel();
/// let result = producer.wait_for_consumers(1, Wait::FOREVER.unless(&canceller));
/// assert_eq!(result, Err(WaitError::Cancelled));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Wait<'a> {
    timeout: Option<Duration>,
    canceller: Option<&'a Canceller>,
}

impl<'a> Wait<'a> {
    /// Without a timeout.
    pub const FOREVER: Self = Self {
        timeout: None,
        canceller: None,
    };

    /// At most for this time.
    pub fn up_to(timeout: Duration) -> Self {
        Some(timeout).into()
    }

    /// Until this canceller cancels it.
    pub fn unless(self, canceller: &'a Canceller) -> Self {
        Self {
            canceller: Some(canceller),
            ..self
        }
    }

    pub(crate) fn timeout(self) -> Option<Duration> {
        self.timeout
    }

    pub(crate) fn canceller(self) -> Option<&'a Canceller> {
        self.canceller
    }

    /// At most for this time, and no longer than before.
    pub(crate) fn at_most(self, time: Duration) -> Self {
        Self {
            timeout: Some(self.timeout.map_or(time, |timeout| timeout.min(time))),
            ..self
        }
    }
}

impl From<Option<Duration>> for Wait<'_> {
    /// `None`: forever.
    fn from(timeout: Option<Duration>) -> Self {
        Self {
            timeout,
            ..Self::FOREVER
        }
    }
}

pub(crate) struct Registration {
    canceller: Canceller,
    sleeper: Weak<dyn Wake>,
    process: ProcessId,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registration")
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A thread of the parent may have held the lock at the fork.
            return;
        }
        let mut sleepers = self.canceller.sleepers();
        if let Some(at) = sleepers.iter().position(|s| s.ptr_eq(&self.sleeper)) {
            sleepers.swap_remove(at);
        }
    }
}

/// Wakes threads of this process. It counts notifications, so that none is lost between a check and a wait.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Notifier {
    /// The number of notifications. Read it first, then check the condition, then pass the number to `wait`.
    pub(crate) fn count(&self) -> u64 {
        *lock(&self.count)
    }

    pub(crate) fn notify(&self) {
        *lock(&self.count) += 1;
        self.changed.notify_all();
    }

    /// Waits until there are more than `seen` notifications, at most for `timeout`.
    pub(crate) fn wait(&self, seen: u64, timeout: Duration) {
        let count = lock(&self.count);
        let _ = self
            .changed
            .wait_timeout_while(count, timeout, |count| *count == seen)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

impl Wake for Notifier {
    fn wake(&self) {
        self.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xmem_shm::testing::is_so_in_a_child_without;

    struct Sleeper;

    impl Wake for Sleeper {
        fn wake(&self) {}
    }

    #[test]
    fn a_forked_child_drops_a_registration_without_the_lock() {
        let canceller = Canceller::new();
        let mut registration = Some(canceller.register(&Arc::new(Sleeper)));
        let drops = || registration.take().is_some();
        assert!(is_so_in_a_child_without(|| canceller.sleepers(), drops));
    }
}
