// SPDX-License-Identifier: MPL-2.0

//! Waiting for a producer, and saying so when it takes long.

use std::time::{Duration, Instant};

use gst::subclass::prelude::*;
use xmem_core::{ConnectError, Consumer, ConsumerBuilder};

use super::imp::{CAT, XmemSrc};

/// After this long the user should hear of it.
const SAY_AFTER: Duration = Duration::from_secs(2);

/// Why there is no producer.
pub(super) enum Unconnected {
    /// Waiting was called off.
    Cancelled,
    /// None came in time.
    TimedOut(ConnectError),
    /// There is one, and it will not do.
    Failed(ConnectError),
}

impl XmemSrc {
    /// Waits until there is a producer. `timeout`: `None` = for ever.
    pub(super) fn connect(
        &self,
        builder: &ConsumerBuilder,
        pool: &str,
        timeout: Option<Duration>,
    ) -> Result<Consumer, Unconnected> {
        let begin = Instant::now();
        let left = || timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
        let mut said = false;
        loop {
            let wait = match left() {
                left if said => left,
                Some(left) => Some(left.min(SAY_AFTER)),
                None => Some(SAY_AFTER),
            };
            match builder.connect_wait(wait) {
                Ok(consumer) => return Ok(consumer),
                Err(ConnectError::Cancelled) => return Err(Unconnected::Cancelled),
                Err(error @ (ConnectError::NotFound { .. } | ConnectError::NoAnswer { .. })) => {
                    if left().is_some_and(|left| left.is_zero()) {
                        return Err(Unconnected::TimedOut(error));
                    }
                    if begin.elapsed() < SAY_AFTER {
                        // It gave up before its time; it must not make this a busy loop.
                        std::thread::sleep(Duration::from_millis(10));
                    } else if !said {
                        said = true;
                        self.say_waiting(builder, pool, &error);
                    }
                }
                Err(error) => return Err(Unconnected::Failed(error)),
            }
        }
    }

    fn say_waiting(&self, builder: &ConsumerBuilder, pool: &str, error: &ConnectError) {
        let path = match builder.socket_path() {
            Ok(path) => path,
            Err(error) => {
                gst::warning!(CAT, imp = self, "{error}");
                return;
            }
        };
        let seen: Vec<_> = xmem_core::pools()
            .into_iter()
            .filter(|pool| pool.live)
            .map(|pool| pool.name)
            .collect();
        let seen = if seen.is_empty() {
            "none".to_owned()
        } else {
            seen.join(", ")
        };
        let directory = xmem_core::runtime_dir();
        let directory = directory.display();
        let elsewhere: Vec<_> = xmem_core::other_runtime_dirs_with(pool)
            .into_iter()
            .map(|directory| directory.display().to_string())
            .collect();
        let elsewhere = if elsewhere.is_empty() {
            String::new()
        } else {
            format!(
                ". A pool of that name is in {}: set XMEM_RUNTIME_DIR to the same directory on both sides",
                elsewhere.join(", ")
            )
        };
        gst::element_imp_warning!(
            self,
            gst::ResourceError::NotFound,
            (
                "Waiting for a producer of pool {pool:?} at {}",
                path.display()
            ),
            ["{error}. Pools in {directory}: {seen}{elsewhere}"]
        );
    }
}
