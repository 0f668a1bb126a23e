// SPDX-License-Identifier: MPL-2.0

//! The extension module of the Python package `xmem`.
//!
//! `python/xmem` is what users import; it adds to the classes here what is easier said in Python, such as asyncio.

mod about;
mod addresses;
mod array;
mod array_interface;
mod attachments;
mod base;
mod bell;
mod buffer;
mod buffer_pool;
mod caps;
mod channel;
mod consumer;
mod cuda_interface;
mod detached;
mod device;
mod dlpack;
mod dtype;
mod errors;
mod event;
mod format;
mod frame;
mod layout;
mod lock;
mod number;
mod per_process;
mod pools;
mod producer;
mod room;
mod seat;
mod signals;
mod slot;
mod wanted;
mod writable;

use pyo3::prelude::*;

// Whatever threads share is atomic or has a lock of its own, none of which is held while Python's code runs.
#[pymodule(gil_used = false)]
mod _xmem {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::addresses::{address_of, is_shared};
    #[pymodule_export]
    use crate::array::Plane;
    #[pymodule_export]
    use crate::base::Base;
    #[pymodule_export]
    use crate::buffer_pool::{BufferGuard, BufferPool};
    #[pymodule_export]
    use crate::channel::frames::{bytes_of, frame_of, known_of, place_of, plane_of};
    #[pymodule_export]
    use crate::channel::memory::Room;
    #[pymodule_export]
    use crate::channel::{Block, ChannelEnd, DeviceBlock, Incoming, RefLease};
    #[pymodule_export]
    use crate::consumer::Consumer;
    #[pymodule_export]
    use crate::event::Event;
    #[pymodule_export]
    use crate::frame::Frame;
    #[pymodule_export]
    use crate::pools::{PoolEntry, pools, query, whereabouts};
    #[pymodule_export]
    use crate::producer::Producer;
    #[pymodule_export]
    use crate::signals::check_timeout;
    #[pymodule_export]
    use crate::writable::WritableFrame;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
