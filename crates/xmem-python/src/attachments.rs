// SPDX-License-Identifier: MPL-2.0

//! Parses metadata from Python that are published with a frame.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyString};
use xmem_core::Text;

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
