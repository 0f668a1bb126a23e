// SPDX-License-Identifier: MPL-2.0

//! Waiting for a producer's work on a frame.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use xmem_cuda::counts::{COUNTERS, count};
use xmem_cuda::error::CudaError;
use xmem_cuda::event::until_done;
use xmem_cuda::stream::Stream;

use crate::consumer::held::Held;
use crate::frame::hold::Received;
use crate::producer::OwnHold;
use crate::region::RegionView;
use crate::region::device::import::{Import, Says};
use crate::region::device::owned::{FAILED, PENDING, READY};

/// What says when a producer's work on the frame has ended.
pub(super) enum Wait {
    /// A slot of a region that was imported.
    Slot {
        import: Arc<Import>,
        view: Arc<RegionView>,
        slot: u32,
        held: Arc<Held>,
    },
    /// A slot of this process's own pool.
    Own(Arc<OwnHold>),
}

impl Wait {
    pub(super) fn is_ready(&self) -> bool {
        self.word() == READY
    }

    /// What the producer says of the device's work.
    fn word(&self) -> u32 {
        let head = match self {
            Self::Slot { view, slot, .. } => view.cuda().and_then(|cuda| cuda.slot_head(*slot)),
            Self::Own(hold) => hold.slot_head(),
        };
        let word = head.map_or(PENDING, |head| head.ready.load(Ordering::Relaxed));
        // Pairs with the release store by which the producer says so. A fence, since consumers may only read there.
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
            held,
        } = self
            && let Some(cuda) = view.cuda()
        {
            // Whether that works shows when a stream is to wait.
            let says = import.says(cuda.header(), *slot, || held.producer_is_gone());
            if let Ok(Says::Mark) = says {
                held.ask_for_marks();
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
                held,
            } => {
                let header = view.cuda().ok_or(CudaError::NotOnDevice)?.header();
                match import.wait(header, *slot, stream, || held.producer_is_gone()) {
                    Ok(true) => Ok(()),
                    // Streams cannot wait for a word.
                    Ok(false) => {
                        count(&COUNTERS.host_syncs);
                        until_done(|| self.is_done())
                    }
                    // A producer that ends well says that it is done, and then its events are gone.
                    Err(_) if self.is_ready() => Ok(()),
                    Err(error) => Err(error),
                }
            }
            Self::Own(hold) => hold.wait_on(stream),
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
                held,
            } => {
                held.check_process()?;
                let header = view.cuda().ok_or(CudaError::NotOnDevice)?.header();
                let done = import.is_done(header, *slot, || held.producer_is_gone());
                if done.is_err() && self.is_ready() {
                    Ok(true)
                } else {
                    done
                }
            }
            Self::Own(hold) => hold.is_done(),
        }
    }
}
