// SPDX-License-Identifier: MPL-2.0

//! Waits for a producer's work on a frame.

use std::sync::Arc;

use xmem_cuda::counts::{COUNTERS, count};
use xmem_cuda::error::CudaError;
use xmem_cuda::event::until_done;
use xmem_cuda::stream::Stream;
use xmem_shm::sync::{Ordering, fence};

use crate::consumer::leases::Leases;
use crate::frame::hold::Holder;
use crate::region::device::import::{Completion, Import};
use crate::region::device::owned::{FAILED, PENDING, READY};
use crate::region::device::twin::Twin;
use crate::region::{Region, RegionView};

/// Waits for the end of a producer's work on a frame. The caller keeps the lease of the frame.
pub(super) enum Wait {
    /// A slot of an imported region.
    Slot {
        import: Arc<Import>,
        view: Arc<RegionView>,
        slot: u32,
        leases: Arc<Leases>,
    },
    /// A slot of a pool of this process.
    Own { region: Arc<Region>, slot: u32 },
}

fn own(region: &Region) -> Result<&Twin, CudaError> {
    let cuda = region.cuda().ok_or(CudaError::NotOnDevice)?;
    Ok(&cuda.twin)
}

impl Wait {
    pub(super) fn is_ready(&self) -> bool {
        self.word() == READY
    }

    /// The `ready` word, which the producer stores.
    fn word(&self) -> u32 {
        let head = match self {
            Self::Slot { view, slot, .. } => view.cuda().and_then(|cuda| cuda.slot_head(*slot)),
            Self::Own { region, slot } => region.cuda().and_then(|cuda| cuda.slot_head(*slot)),
        };
        let word = head.map_or(PENDING, |head| head.ready.load(Ordering::Relaxed));
        // Pairs with the producer's release store. A fence, because consumers can only read this memory.
        fence(Ordering::Acquire);
        word
    }

    /// [`is_ready`](Self::is_ready), or an error if it never will be.
    fn check(&self) -> Result<bool, CudaError> {
        match self.word() {
            READY => Ok(true),
            FAILED => Err(CudaError::Unfinished),
            _ => Ok(false),
        }
    }

    pub(super) fn prepare(&self) {
        if let Self::Slot {
            import,
            view,
            slot,
            leases,
        } = self
            && let Some(cuda) = view.cuda()
        {
            // An error is reported later, when a stream is to wait.
            let completion = import.completion(cuda.header(), *slot, || leases.producer_is_gone());
            if let Ok(Completion::Mark) = completion {
                leases.link().ask_for_marks();
            }
        }
    }

    pub(super) fn wait_on(&self, stream: Stream) -> Result<(), CudaError> {
        if self.check()? {
            return Ok(());
        }
        match self {
            Self::Slot {
                import,
                view,
                slot,
                leases,
            } => {
                let header = view.cuda().ok_or(CudaError::NotOnDevice)?.header();
                match import.wait(header, *slot, stream, || leases.producer_is_gone()) {
                    Ok(true) => Ok(()),
                    // Streams cannot wait for this word.
                    Ok(false) => {
                        count(&COUNTERS.host_syncs);
                        until_done(|| self.is_done())
                    }
                    // A producer that ends normally stores that the work has ended. Its events no longer exist then.
                    Err(_) if self.is_ready() => Ok(()),
                    Err(error) => Err(error),
                }
            }
            Self::Own { region, slot } => own(region)?.wait(*slot, stream),
        }
    }

    pub(super) fn is_done(&self) -> Result<bool, CudaError> {
        if self.check()? {
            return Ok(true);
        }
        match self {
            Self::Slot {
                import,
                view,
                slot,
                leases,
            } => {
                if !leases.is_of_this_process() {
                    return Err(CudaError::Forked);
                }
                let header = view.cuda().ok_or(CudaError::NotOnDevice)?.header();
                let done = import.is_done(header, *slot, || leases.producer_is_gone());
                if done.is_err() && self.is_ready() {
                    Ok(true)
                } else {
                    done
                }
            }
            Self::Own { region, slot } => own(region)?.is_done(*slot),
        }
    }
}
