// SPDX-License-Identifier: MPL-2.0

//! Drops values on another thread.
//!
//! Freeing a buffer may wait for a device. Threads that other code depends on must not wait for that.

use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type Job = Box<dyn Send>;

/// Drops a value on a background thread. A forked child has no such thread and leaks the value.
pub(crate) fn drop_later(value: impl Send + 'static) {
    static JOBS: LazyLock<Option<Sender<Job>>> = LazyLock::new(|| {
        let (sender, jobs) = channel::<Job>();
        let run = move || jobs.into_iter().for_each(drop);
        let thread = thread::Builder::new().name("xmem-later".into());
        thread.spawn(run).ok().map(|_| sender)
    });
    let unsent = match &*JOBS {
        Some(jobs) => jobs.send(Box::new(value)).map_err(|error| error.0),
        None => Err(Box::new(value) as Job),
    };
    // There is no thread: drop it here.
    drop(unsent);
}
