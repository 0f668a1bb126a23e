// SPDX-License-Identifier: MPL-2.0

//! Metadata of frames and events: of those that were received, and from Python for those that are published.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyString};
use xmem_core::{FrameInfo, FrameMeta, ReadLease, Sticky, Text};

/// The key of the stream's caps in the sticky state.
const CAPS: &str = "caps";

/// The content type of the messages of a channel.
pub(crate) const MESSAGE: &str = "application/x-xmem-object";

#[derive(Debug)]
pub(crate) struct About {
    pub(crate) info: FrameInfo,
    pub(crate) meta: FrameMeta,
    sticky: Arc<Sticky>,
    pub(crate) pool: String,
}

impl About {
    pub(crate) fn of(lease: &ReadLease) -> Arc<Self> {
        Arc::new(Self {
            info: *lease.info(),
            meta: lease.meta().clone(),
            sticky: lease.sticky().clone(),
            pool: lease.pool().to_owned(),
        })
    }

    /// Of a frame that was received without a lease of its own.
    pub(crate) fn new(
        info: FrameInfo,
        meta: FrameMeta,
        caps: Option<String>,
        pool: String,
    ) -> Arc<Self> {
        let mut sticky = Sticky::new();
        if let Some(caps) = caps {
            sticky.set(CAPS, caps);
        }
        Arc::new(Self {
            info,
            meta,
            sticky: Arc::new(sticky),
            pool,
        })
    }

    pub(crate) fn caps(&self) -> Option<&str> {
        self.sticky.text(CAPS)
    }

    pub(crate) fn attachments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, value) in self.meta.attachments.iter() {
            dict.set_item(name, PyBytes::new(py, value))?;
        }
        Ok(dict)
    }
}

/// Bytes by name.
pub(crate) fn attachments(value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, Vec<u8>)>> {
    if value.is_none() {
        return Ok(Vec::new());
    }
    let wrong = |what: &Bound<'_, PyAny>, name: &str| match what.get_type().name() {
        Ok(kind) => PyTypeError::new_err(format!(
            "{name} cannot be of type {kind}: pass a dict of names (str) and their bytes"
        )),
        Err(error) => error,
    };
    let mapping = value
        .cast::<PyMapping>()
        .map_err(|_| wrong(value, "attachments"))?;
    let items = mapping.items()?;
    let item = |item: Bound<'_, PyAny>| {
        let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let text = name
            .cast::<PyString>()
            .map_err(|_| wrong(&name, "a name in attachments"))?;
        let text = text.to_str()?.to_owned();
        let bytes = value
            .extract::<Vec<u8>>()
            .map_err(|_| wrong(&value, &format!("attachments[{text:?}]")))?;
        Ok((text, bytes))
    };
    items.iter().map(item).collect()
}

/// A content type that is not truncated.
pub(crate) fn content_type(text: &str) -> PyResult<Text<32>> {
    whole("content_type", text)
}

/// The name of a producer that is not truncated.
pub(crate) fn producer(text: &str) -> PyResult<Text<32>> {
    whole("producer", text)
}

fn whole<const N: usize>(name: &str, text: &str) -> PyResult<Text<N>> {
    let stored = Text::new(text);
    if stored.as_str() == text {
        return Ok(stored);
    }
    Err(PyValueError::new_err(format!(
        "{name} is {text:?}: use at most {N} bytes, and no null byte"
    )))
}
