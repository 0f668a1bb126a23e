// SPDX-License-Identifier: MPL-2.0

//! Room in a lossless pool: its consumers are at most a few frames behind.

use std::time::Duration;

use pyo3::prelude::*;
use xmem_core::{Canceller, Delivery, Producer, WaitError};

use crate::errors::{IntoPyErr, Kind};
use crate::signals::{self, Deadline};

/// Waits until consumers have room for one more frame; not in a live pool.
pub(crate) fn wait_for_room(
    py: Python<'_>,
    producer: &Producer,
    deadline: Deadline,
) -> PyResult<()> {
    if producer.delivery() == Delivery::Live {
        return Ok(());
    }
    let looked = producer.wait_for_room_timeout(Some(Duration::ZERO), &Canceller::new());
    let waited = match looked {
        Err(WaitError::Timeout) if !deadline.is_over() => signals::wait_apart(py, |cancel| {
            producer.wait_for_room_timeout(deadline.timeout(), cancel)
        })?,
        looked => looked,
    };
    match waited {
        Err(WaitError::Timeout) => Err(no_room(producer)),
        waited => waited.map_err(IntoPyErr::into_py_err),
    }
}

fn no_room(producer: &Producer) -> PyErr {
    let behind = producer.held_up_by();
    let behind = if behind.is_empty() {
        "a consumer".to_owned()
    } else {
        behind.join(", ")
    };
    Kind::Timeout.error(format!(
        "no room for a frame in the time that was given: {behind} takes none from the lossless pool {:?}",
        producer.pool()
    ))
}
