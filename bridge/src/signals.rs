// SPDX-License-Identifier: MPL-2.0

//! SIGINT and SIGTERM. The first signal ends the program after it has printed the last figures.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Signals(Arc<AtomicBool>);

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // A second signal ends the process immediately, with exit code 1.
            flag::register_conditional_shutdown(signal, 1, came.clone())?;
            flag::register(signal, came.clone())?;
        }
        Ok(Self(came))
    }

    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn wait(&self) {
        while !self.came() {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
