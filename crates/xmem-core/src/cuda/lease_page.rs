// SPDX-License-Identifier: MPL-2.0

//! A lease page that devices can write.

use std::sync::Arc;

use xmem_cuda::device::Device;
use xmem_cuda::error::{CudaError, HOST_MEMORY_ALREADY_REGISTERED};
use xmem_cuda::host::{DEVICEMAP, Pages, Registered};
use xmem_shm::abi::layout::LeasePage;

use crate::consumer::leases::Leases;

/// A lease page that devices can write.
#[derive(Debug)]
pub(super) struct DeviceLeasePage(Registered<Page>);

#[derive(Debug)]
struct Page(Arc<LeasePage>);

impl Pages for Page {
    fn pages(&self) -> (*mut u8, usize) {
        self.0.memory()
    }
}

impl DeviceLeasePage {
    /// The registered page of a connection. Registered once, while the connection lives.
    pub(super) fn of(leases: &Leases, device: &Device) -> Result<Arc<Self>, CudaError> {
        let mut kept = leases.device_half().kept();
        if let Some(page) = kept.clone().and_then(|kept| kept.downcast().ok()) {
            return Ok(page);
        }
        let page = Arc::new(Self::register(leases.lease_page(), device)?);
        *kept = Some(page.clone());
        Ok(page)
    }

    fn register(page: &Arc<LeasePage>, device: &Device) -> Result<Self, CudaError> {
        match Registered::new(&Arc::new(Page(page.clone())), DEVICEMAP, device) {
            Ok(registered) => Ok(Self(registered)),
            Err(CudaError::Driver { code, .. }) if code != HOST_MEMORY_ALREADY_REGISTERED => {
                Err(CudaError::Unsupported {
                    what: "write host memory that is registered",
                })
            }
            Err(error) => Err(error),
        }
    }

    /// The address of a slot's lease word on a device.
    pub(super) fn word(&self, slot: u32, device: &Device) -> Result<u64, CudaError> {
        let page = &self.0.memory().0;
        let (start, _) = page.memory();
        let word = page.leases().get(slot as usize).ok_or(CudaError::Gone)?;
        let offset = std::ptr::from_ref(word).addr() - start.addr();
        Ok(self.0.address(device)? + offset as u64)
    }
}
