// SPDX-License-Identifier: MPL-2.0

//! What is known of a frame or an event besides its bytes.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use xmem_core::{FrameMeta, ReadLease, Sticky};

#[derive(Debug)]
pub(crate) struct About {
    pub(crate) meta: FrameMeta,
    sticky: Arc<Sticky>,
    pub(crate) pool: String,
}

impl About {
    pub(crate) fn of(lease: &ReadLease) -> Arc<Self> {
        Arc::new(Self {
            meta: lease.meta().clone(),
            sticky: lease.sticky().clone(),
            pool: lease.pool().to_owned(),
        })
    }

    pub(crate) fn caps(&self) -> Option<&str> {
        self.sticky.text("caps")
    }

    pub(crate) fn attachments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, value) in self.meta.attachments.iter() {
            dict.set_item(name, PyBytes::new(py, value))?;
        }
        Ok(dict)
    }
}
