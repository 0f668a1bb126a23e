// SPDX-License-Identifier: MPL-2.0

//! Replaces the other modules of this folder in a build without CUDA. No region of this process is on a device, and the device
//! memory of other processes is not opened.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use xmem_shm::abi::device_header::DeviceHeader;
use xmem_shm::os::mapping::Mapping;

use crate::region::Ticket;

/// Has no values.
#[derive(Debug, Clone)]
pub(crate) enum Device {}

/// Has no values.
#[derive(Debug)]
pub(crate) enum Owned {}

impl Owned {
    pub(crate) fn header(&self) -> &DeviceHeader {
        match *self {}
    }

    pub(in crate::region) fn mapping(&self) -> &Mapping {
        match *self {}
    }

    pub(in crate::region) fn twin_len(&self) -> usize {
        match *self {}
    }

    pub(in crate::region) fn ends_with_producer(&self) -> bool {
        match *self {}
    }

    pub(in crate::region) fn describe(&self) -> Option<String> {
        match *self {}
    }

    pub(in crate::region) fn ticket(&self) -> Ticket<BorrowedFd<'_>> {
        match *self {}
    }
}

#[derive(Debug, Default)]
pub(crate) struct Imports();

impl Imports {
    pub(crate) fn closing(&self, _header: &DeviceHeader) -> Option<Arc<AtomicBool>> {
        None
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pinned();

/// Calls `is_over` until it returns true. A build without CUDA never waits.
pub(crate) fn until(mut is_over: impl FnMut() -> bool + Send + 'static) {
    is_over();
}
