// SPDX-License-Identifier: MPL-2.0

//! Finding a producer, which may take long, leaving it, and losing it.

use std::{
    ffi::OsStr,
    time::{Duration, Instant},
};

use gst::subclass::prelude::*;
use xmem_core::{BudgetLimit, ConnectError, Consumer, ConsumerBuilder};

use super::{
    XmemSrcOnProducerLost, imp::XmemSrc, key_frame_gate::KeyFrameGate, log::CAT, messages,
    started::Started,
};
use crate::lock::lock;

/// After this long the user should hear of it.
const SAY_AFTER: Duration = Duration::from_secs(2);

/// Between two attempts that fail at once.
const PAUSE: Duration = Duration::from_millis(10);

/// Why there is no producer.
enum Unconnected {
    /// Waiting was called off.
    Cancelled,
    /// None came in time.
    TimedOut(ConnectError),
    /// There is one, and it will not do.
    Failed(ConnectError),
}

impl XmemSrc {
    pub(super) fn find_producer(&self, started: &mut Started) -> Result<Consumer, gst::FlowError> {
        let settings = &started.settings;
        let timeout = (settings.connection_timeout > 0)
            .then(|| Duration::from_nanos(settings.connection_timeout));
        match self.connect(started, timeout) {
            Ok(consumer) => {
                gst::info!(
                    CAT,
                    imp = self,
                    "Connected to process {}",
                    consumer.producer_pid()
                );
                let limit = consumer.budget_limit();
                if let Some(asked) = settings.asked_to_hold()
                    && limit != BudgetLimit::Asked
                {
                    gst::warning!(
                        CAT,
                        imp = self,
                        "Asked to hold {asked} slots, granted {}: raise {limit} on xmemsink",
                        consumer.budget()
                    );
                }
                lock(&self.counted).connection = Some(consumer.handle());
                if std::mem::replace(&mut started.was_connected, true) {
                    lock(&self.counted).figures.reconnects += 1;
                    messages::back(&self.obj(), &settings.pool, consumer.producer_pid());
                }
                started.sticky_version = None;
                // What goes on is the same stream, if some of it may be missing.
                if !consumer.has_resumed() {
                    started.next_sequence = None;
                    started.gate = KeyFrameGate::default();
                    started.header_is_due = true;
                    started.stamper.begin_producer(consumer.delivery());
                }
                #[cfg(feature = "cuda")]
                {
                    started.on_device = None;
                }
                Ok(consumer)
            }
            Err(Unconnected::Cancelled) => Err(gst::FlowError::Flushing),
            Err(Unconnected::TimedOut(error)) => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::NotFound,
                    ("No producer came in time: {error}")
                );
                Err(gst::FlowError::Error)
            }
            Err(Unconnected::Failed(error)) => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::OpenRead,
                    ("Cannot join the pool: {error}")
                );
                Err(gst::FlowError::Error)
            }
        }
    }

    /// Leaves a producer. Its figures stay.
    pub(super) fn part(&self, consumer: Consumer) {
        let (stats, device) = (consumer.stats(), consumer.device());
        let mut counted = lock(&self.counted);
        counted.figures.add(&stats, device);
        counted.connection = None;
        drop(counted);
        drop(consumer);
    }

    /// This source has ended. It begins anew if it is made to go on.
    pub(super) fn leave(&self) {
        let left = lock(&self.started).as_mut().map(|started| {
            started.was_connected = false;
            let start_from = started.settings.start_from();
            started.builder = started.builder.clone().start_from(start_from);
            (started.kept.take(), started.consumer.take())
        });
        let (kept, consumer) = left.unwrap_or_default();
        // It holds a slot.
        drop(kept);
        if let Some(consumer) = consumer {
            self.part(consumer);
        }
    }

    /// The producer went away without an end of stream.
    pub(super) fn lost(&self, started: &Started) -> Result<(), gst::FlowError> {
        match started.settings.on_producer_lost {
            XmemSrcOnProducerLost::Wait => {
                gst::info!(
                    CAT,
                    imp = self,
                    "The producer is gone, waiting for the next one"
                );
                Ok(())
            }
            XmemSrcOnProducerLost::Eos => {
                gst::info!(CAT, imp = self, "The producer is gone, ending the stream");
                Err(gst::FlowError::Eos)
            }
            XmemSrcOnProducerLost::Error => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::Read,
                    (
                        "The producer of pool {:?} is gone, and on-producer-lost=error",
                        started.settings.pool
                    )
                );
                Err(gst::FlowError::Error)
            }
        }
    }

    /// Waits until there is a producer. `timeout`: `None` = for ever.
    fn connect(
        &self,
        started: &Started,
        timeout: Option<Duration>,
    ) -> Result<Consumer, Unconnected> {
        let (builder, pool) = (&started.builder, &started.settings.pool);
        let may_come = |error: &ConnectError| match error {
            ConnectError::NotFound { .. } | ConnectError::NoAnswer { .. } => true,
            // What goes on is not ended by what passes; at the start that is better said at once.
            error => started.was_connected && error.is_shortage(),
        };
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
                Err(error) if may_come(&error) => {
                    if left().is_some_and(|left| left.is_zero()) {
                        return Err(Unconnected::TimedOut(error));
                    }
                    if begin.elapsed() >= SAY_AFTER && !said {
                        said = true;
                        self.say_waiting(builder, pool, &error);
                    }
                    // It may have given up before its time, and must not make this a busy loop.
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(Unconnected::Failed(error)),
            }
        }
    }

    fn say_waiting(&self, builder: &ConsumerBuilder, pool: &OsStr, error: &ConnectError) {
        let path = match builder.socket_path() {
            Ok(path) => path,
            Err(error) => {
                gst::warning!(CAT, imp = self, "{error}");
                return;
            }
        };
        gst::element_imp_warning!(
            self,
            gst::ResourceError::NotFound,
            (
                "Waiting for a producer of pool {pool:?} at {}: {error}; {}",
                path.display(),
                xmem_core::pools_in_words(pool)
            )
        );
    }
}
