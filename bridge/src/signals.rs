// SPDX-License-Identifier: MPL-2.0

//! SIGINT and SIGTERM end the program, after the last line of figures.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Signals(Arc<AtomicBool>);

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The second one ends the program at once.
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
            std::thread::sleep(LOOK);
        }
    }
}
