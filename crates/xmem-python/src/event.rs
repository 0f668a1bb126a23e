// SPDX-License-Identifier: MPL-2.0

//! Events between frames.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use xmem_core::{Attachments, FrameMeta, ReadLease, monotonic_ns};

use crate::about::About;
use crate::errors::not_pickled;

// The names that xmemsink and xmemsrc use (their `stream/event.rs`), so that pipelines and programs can exchange events.
const KIND: &str = "event";
const STRUCTURE: &str = "structure";
const GAP: &str = "gap";
const CUSTOM: &str = "custom-downstream";
/// Bytes for programs. Pipelines ignore them.
const DATA: &str = "data";

/// An event between two frames: a custom event of a GStreamer pipeline, a gap, or an event of a program.
///
/// Times are in nanoseconds. An event holds no slot.
#[pyclass(frozen, module = "xmem")]
#[derive(Debug)]
pub(crate) struct Event(Arc<About>);

impl Event {
    /// `None`: only the stream's sticky state changed, and the next frame or event has the new state.
    pub(crate) fn of(lease: &ReadLease) -> Option<Self> {
        (!lease.meta().attachments.is_empty()).then(|| Self(About::of(lease)))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.meta.attachments.text(name)
    }
}

/// An event to publish.
pub(crate) fn describe(
    name: &str,
    data: Vec<u8>,
    fields: &str,
    pts: Option<u64>,
    duration: Option<u64>,
    timestamp: Option<i64>,
) -> PyResult<FrameMeta> {
    let mut attachments = Attachments::new();
    if name == GAP {
        if pts.is_none() {
            return Err(PyValueError::new_err(
                "a gap needs pts, the start of the time without frames",
            ));
        }
        attachments.set(KIND, GAP);
    } else {
        if !is_name(name) {
            return Err(PyValueError::new_err(format!(
                "{name:?} isn't a valid event name: use a letter, then letters, digits and any of /-_.:+"
            )));
        }
        let separator = if fields.is_empty() { "" } else { ", " };
        attachments.set(KIND, CUSTOM);
        attachments.set(STRUCTURE, format!("{name}{separator}{fields};"));
    }
    if !data.is_empty() {
        attachments.set(DATA, data);
    }
    let mut meta = FrameMeta::default().attachments(attachments);
    (meta.pts, meta.duration) = (pts, duration);
    Ok(meta.timestamp(timestamp.unwrap_or_else(monotonic_ns)))
}

/// Whether GStreamer accepts this as the name of a structure.
fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name
            .chars()
            .all(|it| it.is_ascii_alphanumeric() || "/-_.:+".contains(it))
}

#[pymethods]
impl Event {
    /// The type of the GStreamer event, such as "custom-downstream" or "gap". Other programs may use other names.
    #[getter]
    fn kind(&self) -> &str {
        self.text(KIND).unwrap_or_default()
    }

    /// The name: "gap", or the name of the custom event's structure.
    #[getter]
    fn name(&self) -> &str {
        let structure = self.text(STRUCTURE).unwrap_or_default();
        let name = structure.split([',', ';']).next().unwrap_or_default();
        match name.trim() {
            "" => self.kind(),
            name => name,
        }
    }

    /// The structure of a custom event with all fields, as a string.
    #[getter]
    fn structure(&self) -> Option<&str> {
        self.text(STRUCTURE)
    }

    /// The data that a program sent with the event.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.meta.attachments.get(DATA).unwrap_or_default())
    }

    /// All attachments by name. The other properties are read from them.
    #[getter]
    fn attachments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.attachments(py)
    }

    /// The presentation time in the producer's pipeline.
    #[getter]
    fn pts(&self) -> Option<u64> {
        self.0.meta.pts
    }

    /// The duration of a gap.
    #[getter]
    fn duration(&self) -> Option<u64> {
        self.0.meta.duration
    }

    /// The presentation time on CLOCK_MONOTONIC (time.monotonic_ns()).
    #[getter]
    fn timestamp(&self) -> Option<i64> {
        self.0.meta.timestamp
    }

    /// The time of publishing on CLOCK_MONOTONIC.
    #[getter]
    fn published_at(&self) -> i64 {
        self.0.info.published_at
    }

    /// The number of the event in its pool. Frames and events are counted together.
    #[getter]
    fn sequence(&self) -> u64 {
        self.0.info.sequence
    }

    /// The name of the program that published it.
    #[getter]
    fn producer(&self) -> &str {
        self.0.meta.layout.producer.as_str()
    }

    /// The name of the pool that it was received from.
    #[getter]
    fn pool(&self) -> &str {
        &self.0.pool
    }

    /// The caps of the stream, as a string.
    #[getter]
    fn caps(&self) -> Option<&str> {
        self.0.caps()
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(not_pickled(
            slf,
            "it is part of the stream of its pool: send what you need of it, such as event.name and event.data",
        ))
    }

    fn __repr__(&self) -> String {
        let (name, pool) = (self.name(), &self.0.pool);
        format!("<xmem.Event {name:?} of {pool:?}, {}>", self.sequence())
    }
}
