// SPDX-License-Identifier: MPL-2.0

//! The Python module `xmem`.

use pyo3::prelude::*;

/// Frames that other processes share, without a copy.
#[pymodule]
mod xmem {
    use std::path::PathBuf;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// A pool of the runtime directory.
    #[pyclass(frozen, get_all)]
    #[derive(Debug)]
    struct PoolEntry {
        /// Its name.
        name: String,
        /// Its socket.
        path: PathBuf,
        /// Whether it has a producer now.
        live: bool,
    }

    #[pymethods]
    impl PoolEntry {
        fn __repr__(&self) -> String {
            let live = if self.live { "live" } else { "stale" };
            format!("<xmem pool {:?}, {live}>", self.name)
        }
    }

    /// The pools of the runtime directory.
    #[pyfunction]
    fn pools(py: Python<'_>) -> Vec<PoolEntry> {
        // Looking at files and locks: other threads may run meanwhile.
        let entries = py.detach(xmem_core::pools);
        entries
            .into_iter()
            .map(|entry| PoolEntry {
                name: entry.name,
                path: entry.path,
                live: entry.live,
            })
            .collect()
    }
}
