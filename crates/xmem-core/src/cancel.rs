// SPDX-License-Identifier: MPL-2.0

//! Waiting inside a process, and calling a wait off from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use xmem_shm::lock::lock;

/// Something that a thread sleeps on.
pub(crate) trait Wake: Send + Sync {
    fn wake(&self);
}

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    sleepers: Mutex<Vec<Weak<dyn Wake>>>,
}

/// Calls off the waits that were given it, from any thread, until it is [reset](Self::reset).
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
    /// A canceller that calls nothing off yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls off the waits that go on now, and those that come, at once.
    ///
    /// Not for a signal handler: it takes a lock, which the thread that the signal interrupts may have. Let a thread wait for the
    /// signal and call this, as the example `xmem-consumer` does.
    pub fn cancel(&self) {
        // SeqCst: a sleeper that looked at this before we looked at whether it sleeps has to be woken.
        self.0.cancelled.store(true, Ordering::SeqCst);
        let sleepers = self.sleepers().clone();
        for sleeper in sleepers.iter().filter_map(Weak::upgrade) {
            sleeper.wake();
        }
    }

    /// Lets waits happen again.
    pub fn reset(&self) {
        self.0.cancelled.store(false, Ordering::SeqCst);
    }

    /// Whether waits are called off.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    fn sleepers(&self) -> std::sync::MutexGuard<'_, Vec<Weak<dyn Wake>>> {
        lock(&self.0.sleepers)
    }

    /// Has this sleeper woken by [`cancel`](Self::cancel), until the registration is dropped.
    pub(crate) fn register(&self, sleeper: Weak<dyn Wake>) -> Registration {
        let mut sleepers = self.sleepers();
        sleepers.retain(|s| s.strong_count() > 0);
        sleepers.push(sleeper.clone());
        Registration {
            canceller: self.clone(),
            sleeper,
        }
    }
}

pub(crate) struct Registration {
    canceller: Canceller,
    sleeper: Weak<dyn Wake>,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registration")
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut sleepers = self.canceller.sleepers();
        if let Some(at) = sleepers.iter().position(|s| s.ptr_eq(&self.sleeper)) {
            sleepers.swap_remove(at);
        }
    }
}

/// A bell that threads of this process wait for.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    /// How often it rang. Look for what is waited for after this, and pass it to `wait`.
    pub(crate) fn rings(&self) -> u64 {
        *lock(&self.rings)
    }

    pub(crate) fn ring(&self) {
        *lock(&self.rings) += 1;
        self.rung.notify_all();
    }

    /// Waits until it rang more often than `rings`, at most for `timeout`.
    pub(crate) fn wait(&self, rings: u64, timeout: Duration) {
        let now = lock(&self.rings);
        let _ = self
            .rung
            .wait_timeout_while(now, timeout, |now| *now == rings)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

impl Wake for Bell {
    fn wake(&self) {
        self.ring();
    }
}
