// SPDX-License-Identifier: MPL-2.0

//! Metadata of frames and events.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use xmem_core::{FrameInfo, FrameMeta, ReadLease, Sticky};

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
