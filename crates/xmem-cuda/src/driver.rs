// SPDX-License-Identifier: MPL-2.0

//! The driver, if there is one. It is loaded once, and each function is looked up by name.
//!
//! The types are from cudarc. Its calls are not used: they panic if a driver lacks a function, and return an enum, which is
//! undefined behaviour if a newer driver returns an unknown value. Its search for the library is not used either: it begins
//! with `libcuda.so`, which may be the toolkit's stub library, with which no call works.
#![allow(unsafe_code)] // loads a library at run time

use std::error::Error;
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use libloading::Library;
use xmem_shm::os::fork::ProcessId;

use crate::error::{CudaError, OUT_OF_MEMORY, is_fatal};
use crate::result::Table;

/// The name that the CUDA runtime, PyTorch and GStreamer use too.
const LIBRARY: &str = "libcuda.so.1";

/// An initialised driver.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The functions.
    pub(crate) table: Table,
    process: ProcessId,
}

static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();

impl Driver {
    /// The driver of this process. Never panics.
    pub(crate) fn get() -> Result<&'static Self, CudaError> {
        let driver = DRIVER
            .get_or_init(Self::load)
            .as_ref()
            .map_err(Clone::clone)?;
        if driver.process.is_current() {
            Ok(driver)
        } else {
            Err(CudaError::Forked)
        }
    }

    fn load() -> Result<Self, CudaError> {
        let process = ProcessId::current();
        // SAFETY: loading the library runs the initialisers of the installed driver.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|error| CudaError::NoDriver {
            // The source of the error is the loader's message: "libcuda.so.1: cannot open shared object file: ...".
            reason: error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string),
        })?;
        // Never unloaded, because its threads may be running.
        let driver = Self {
            table: Table::load(Box::leak(Box::new(library))),
            process,
        };
        let init = driver
            .table
            .init
            .ok_or(CudaError::DriverTooOld { symbol: "cuInit" })?;
        // SAFETY: `cuInit` has this signature, and 0 is the only valid value for its flags.
        match unsafe { init(0) } {
            0 => Ok(driver),
            code => Err(CudaError::NoDriver {
                reason: format!("cuInit returned {}", driver.table.name_of(code)),
            }),
        }
    }
}

impl Table {
    /// The driver's name of an error.
    pub fn name_of(&self, code: u32) -> String {
        let mut name: *const c_char = std::ptr::null();
        let found = self.error_name.is_some_and(|error_name| {
            // SAFETY: `cuGetErrorName` has this signature, and the pointer is to a variable for the result.
            unsafe { error_name(code, &raw mut name) == 0 }
        });
        if !found || name.is_null() {
            return format!("error {code}");
        }
        // SAFETY: the driver's names are static NUL-terminated strings.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    /// Converts the result of a call.
    pub fn check(&self, what: &'static str, code: u32) -> Result<(), CudaError> {
        match code {
            0 => Ok(()),
            OUT_OF_MEMORY => Err(CudaError::OutOfMemory { size: 0 }),
            code if is_fatal(code) => Err(CudaError::ContextInError {
                name: self.name_of(code),
            }),
            code => Err(CudaError::Driver {
                what,
                code,
                name: self.name_of(code),
            }),
        }
    }
}
