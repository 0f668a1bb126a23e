// SPDX-License-Identifier: MPL-2.0

//! The extension module of the Python package `xmem`.
//!
//! Users import the package `python/xmem`, which wraps it and contains the parts that are easier to write in Python, such as
//! asyncio.

mod about;
mod addresses;
mod array;
mod base;
mod buffer_pool;
mod caps;
mod channel;
mod consumer;
mod detached;
mod device;
mod dmabuf;
mod dtype;
mod errors;
mod event;
mod fork;
mod frame;
mod interfaces;
mod keeper;
mod layout;
mod number;
mod open_buffer;
mod own_slot;
mod plane;
mod pools;
mod producer;
mod publisher;
mod reaper;
mod signals;
mod slot;
mod timed_mutex;
mod wanted;
mod writable;

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

/// Locks a mutex, also if a thread panicked while it held the lock: what it guards is always valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// Threads share only atomics and values with their own locks. No such lock is held while Python code runs.
#[pymodule(gil_used = false)]
mod _xmem {
    use pyo3::exceptions::PyImportError;
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::{
        addresses::{address_of, is_shared},
        base::Base,
        buffer_pool::{BufferGuard, BufferPool, Reader},
        channel::frames::{bytes_of, frame_of, known_of, place_of, plane_of},
        channel::memory::Room,
        channel::{Block, ChannelEnd, DeviceBlock, Incoming, RefLease},
        consumer::Consumer,
        device::ReleaseWord,
        dmabuf::Dmabuf,
        event::Event,
        frame::Frame,
        interfaces::buffer::View,
        plane::Plane,
        pools::{_remove_left, PoolEntry, pools, query, whereabouts},
        producer::Producer,
        signals::check_timeout,
        writable::WritableFrame,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        if !crate::reaper::is_of_this_interpreter(module.py()) {
            return Err(PyImportError::new_err(
                "xmem works only in the main interpreter of a process: use it there, or in a process of its own",
            ));
        }
        let end_reaper = wrap_pyfunction!(crate::reaper::end, module)?;
        let atexit = module.py().import("atexit")?;
        atexit.call_method1("register", (end_reaper,))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
