// SPDX-License-Identifier: MPL-2.0

//! A pool's producer, shared by the class `Producer` and its frames.

use std::ops::Deref;
use std::sync::Mutex;
use std::time::Duration;

use pyo3::prelude::*;
use xmem_core::{Delivery, Producer, Wait, WaitError};

use crate::detached::Detached;
use crate::errors::{IntoPyResult, Kind};
use crate::lock;
use crate::signals::{self, Deadline};

#[derive(Debug)]
pub(crate) struct Publisher {
    producer: Detached<Producer>,
    /// Held between a change of the caps and the publication of their first frame.
    publishing: Mutex<()>,
}

impl Deref for Publisher {
    type Target = Producer;

    fn deref(&self) -> &Producer {
        &self.producer
    }
}

impl Publisher {
    pub(crate) fn new(producer: Producer) -> Self {
        Self {
            producer: Detached::new(producer),
            publishing: Mutex::default(),
        }
    }

    /// Waits until consumers have room for another frame. Does not wait in a live pool.
    pub(crate) fn wait_for_room(&self, py: Python<'_>, deadline: Deadline) -> PyResult<()> {
        if self.delivery() == Delivery::Live {
            return Ok(());
        }
        let looked = self.producer.wait_for_room(Wait::up_to(Duration::ZERO));
        let waited = match looked {
            Err(WaitError::Timeout) if !deadline.is_over() => {
                signals::wait_apart(py, deadline, |wait| self.producer.wait_for_room(wait))?
            }
            looked => looked,
        };
        match waited {
            Err(WaitError::Timeout) => Err(self.no_room()),
            waited => waited.into_py_result(),
        }
    }

    fn no_room(&self) -> PyErr {
        let behind = self.held_up_by();
        let behind = if behind.is_empty() {
            "a consumer".to_owned()
        } else {
            behind.join(", ")
        };
        Kind::Timeout.error(format!(
            "no room for a frame before the timeout: still waiting for {behind} to receive earlier frames of the lossless \
             pool {:?}",
            self.pool()
        ))
    }

    /// Publishes a frame with these caps, without the interpreter.
    pub(crate) fn publish_with<T>(
        &self,
        caps: &str,
        publish: impl FnOnce() -> PyResult<T>,
    ) -> PyResult<T> {
        let _publishing = lock(&self.publishing);
        self.producer.set_caps(caps).into_py_result()?;
        publish()
    }
}
