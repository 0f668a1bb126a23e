// SPDX-License-Identifier: MPL-2.0

//! What keeps a frame where it is.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xmem_shm::abi::parts::Origin;

use crate::region::RegionView;

/// A reference that keeps a slot from being written: the producer's own, or a lease of a consumer. The last `Arc` ends it.
pub(crate) trait Hold: Any + fmt::Debug + Send + Sync {
    /// The slot's first byte.
    fn ptr(&self) -> *const u8;

    /// The slot's size in bytes.
    fn len(&self) -> usize;

    /// Bytes of the slot that a payload may have, if the payload lies on a device.
    fn device_len(&self) -> Option<usize>;

    /// The pool's name.
    fn pool_name(&self) -> &str;

    /// The lease of a consumer. `None`: the producer's own reference.
    fn received(&self) -> Option<&dyn Received>;

    /// Lets devices reach the slot's memory by themselves, if they can.
    #[cfg(feature = "cuda")]
    fn pin(&self, device: &xmem_cuda::device::Device);
}

/// A lease on a frame that another process published.
pub(crate) trait Received: fmt::Debug + Send + Sync {
    /// The region of the slot, and the slot's first byte there.
    fn view(&self) -> (&Arc<RegionView>, usize);

    /// The slot, and the socket of its pool.
    fn origin(&self) -> (Origin, &Path);

    /// The socket of a pool that frames of this pool come from.
    fn path_of(&self, pool_id: u64) -> Option<PathBuf>;

    /// Whether this is a lease, and not a look at a frame that another process holds.
    fn is_lease(&self) -> bool;

    /// Whether the frame is still there. With a lease it is. Otherwise all bytes that were read before this call were of the
    /// frame, if it is still there: generations do not come again.
    fn is_intact(&self) -> bool;

    /// Whether the producer has ended.
    fn producer_is_gone(&self) -> bool;
}

/// The hold as the type of the role that made it, or as it was given.
#[cfg(feature = "cuda")]
pub(crate) fn downcast<H: Hold>(hold: Arc<dyn Hold>) -> Result<Arc<H>, Arc<dyn Hold>> {
    let any: Arc<dyn Any + Send + Sync> = hold.clone();
    any.downcast().map_err(|_| hold)
}

/// The same, to look at.
pub(crate) fn downcast_ref<H: Hold>(hold: &dyn Hold) -> Option<&H> {
    let any: &dyn Any = hold;
    any.downcast_ref()
}
