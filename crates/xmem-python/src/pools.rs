// SPDX-License-Identifier: MPL-2.0

//! Lists pools, and returns their figures.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyType};
use xmem_core::discovery::remove_stale;
use xmem_core::{BudgetLimit, ConsumerStats, PoolStats, RemoveError};

use crate::errors::IntoPyResult;

/// The name of a pool, or the path of its socket, from a string or a path object.
pub(crate) fn pool_name(pool: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(name) = pool.cast::<PyString>() {
        return name.extract();
    }
    let os = pool.py().import("os")?;
    os.call_method1("fspath", (pool,))?.extract()
}

/// A pool in the runtime directory.
#[pyclass(frozen, get_all, module = "xmem")]
#[derive(Debug)]
pub(crate) struct PoolEntry {
    /// The name of the pool.
    name: String,
    /// The path of its socket.
    path: PathBuf,
    /// Whether it has a producer.
    live: bool,
}

#[pymethods]
impl PoolEntry {
    #[new]
    fn new(name: String, path: PathBuf, live: bool) -> Self {
        Self { name, path, live }
    }

    fn __reduce__<'a>(slf: &'a Bound<'_, Self>) -> (Bound<'a, PyType>, (&'a str, &'a Path, bool)) {
        let Self { name, path, live } = slf.get();
        (slf.get_type(), (name, path, *live))
    }

    fn __repr__(&self) -> String {
        let live = if self.live { "live" } else { "stale" };
        format!("<xmem pool {:?}, {live}>", self.name)
    }
}

/// The pools in the runtime directory.
#[pyfunction]
pub(crate) fn pools(py: Python<'_>) -> Vec<PoolEntry> {
    // This accesses files and sockets, so other threads may run meanwhile.
    let entries = py.detach(xmem_core::discovery::pools);
    entries
        .into_iter()
        .map(|entry| PoolEntry::new(entry.name, entry.path, entry.live))
        .collect()
}

/// The path where a pool is expected, and the existing pools, as text.
#[pyfunction(name = "_whereabouts")]
pub(crate) fn whereabouts(
    py: Python<'_>,
    #[pyo3(from_py_with = pool_name)] pool: String,
) -> PyResult<String> {
    let path = xmem_core::discovery::socket_path(&pool).into_py_result()?;
    let pools = py.detach(|| xmem_core::discovery::pools_in_words(&pool));
    Ok(format!("{pool:?} at {}; {pools}", path.display()))
}

/// How long, and how often, to check for the end of a process whose connection has ended.
const DYING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(10));

/// Removes the files of a process that was just killed. Its descriptors are closed one after another, so its lock may be held
/// slightly longer than its connection.
pub(crate) fn remove_left(pool: &Path) {
    let start = Instant::now();
    while let Err(RemoveError::Live { .. }) = remove_stale(pool) {
        if start.elapsed() > DYING.0 {
            return;
        }
        std::thread::sleep(DYING.1);
    }
}

/// Calls `remove_left` without the interpreter.
#[pyfunction]
pub(crate) fn _remove_left(py: Python<'_>, pool: PathBuf) {
    py.detach(|| remove_left(&pool));
}

/// Asks the producer of a pool for its statistics. Waits at most one second.
///
/// The keys are those of `xmem show --format json`, without time, format, up_ns and fps. Times are in nanoseconds here, too, but
/// their names do not end in _ns.
#[pyfunction]
pub(crate) fn query<'py>(
    py: Python<'py>,
    #[pyo3(from_py_with = pool_name)] pool: String,
) -> PyResult<Bound<'py, PyDict>> {
    let stats = py.detach(|| xmem_core::discovery::query(&pool));
    pool_stats(py, &stats.into_py_result()?)
}

/// The Python name of the producer's property that limits a budget.
pub(crate) fn property(limit: BudgetLimit) -> String {
    limit.to_string().replace('-', "_")
}

/// Copies fields of a struct into a dictionary.
macro_rules! set {
    ($dict:ident, $from:ident: $($field:ident),* $(,)?) => {
        $($dict.set_item(stringify!($field), &$from.$field)?;)*
    };
}

/// A pool's statistics as a dictionary.
pub(crate) fn pool_stats<'py>(py: Python<'py>, stats: &PoolStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    set!(dict, stats: pool, pid);
    dict.set_item("delivery", stats.delivery.to_string())?;
    set!(dict, stats: published, zero_copy, copied, dropped, scarce, slots, slots_held, unread, set_aside, set_aside_bytes, max_slots);
    dict.set_item("budget_limit", property(stats.budget_limit))?;
    set!(dict, stats: regions, bytes, devices, device_bytes, eos, cut_off, timed_out);
    let sticky = PyDict::new(py);
    for (key, value) in &stats.sticky {
        sticky.set_item(key, value)?;
    }
    dict.set_item("sticky", sticky)?;
    let consumers = stats.consumers.iter().map(|it| consumer_stats(py, it));
    let consumers = consumers.collect::<PyResult<Vec<_>>>()?;
    dict.set_item("consumers", PyList::new(py, consumers)?)?;
    Ok(dict)
}

fn consumer_stats<'py>(py: Python<'py>, stats: &ConsumerStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    set!(dict, stats: id, pid, uid, name, via, budget, held, received, missed, skipped, copied, dropped);
    dict.set_item("oldest_held_age", stats.oldest_held_age_ns)?;
    dict.set_item("latency", stats.latency_ns)?;
    dict.set_item("waited_for", stats.waited_for_ns)?;
    set!(dict, stats: device, leaving);
    Ok(dict)
}
