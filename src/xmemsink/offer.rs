// SPDX-License-Identifier: MPL-2.0

//! What the sink offers to upstream: a pool of its slots, and its allocator.

use std::sync::Mutex;

use gst::prelude::*;

use super::{base::CAT, device, run::Started};
use crate::{buffers::bufferpool::XmemBufferPool, lock, stream::caps};

/// The last pool that was offered. Decoders query repeatedly, some for nearly every frame, and mostly discard the answer.
#[derive(Debug, Default)]
pub(super) struct Offer {
    unused: Mutex<Option<Unused>>,
}

#[derive(Debug)]
struct Unused {
    caps: gst::Caps,
    pool: XmemBufferPool,
    /// The configuration that was offered.
    config: gst::BufferPoolConfig,
}

impl Unused {
    /// An element may have changed the configuration of a pool that it did not use.
    fn can_be_offered(&self, caps: &gst::Caps) -> bool {
        self.caps == *caps
            && !self.pool.is_active()
            && self.pool.ref_count() == 1
            && **self.pool.config() == **self.config
    }
}

impl Offer {
    /// Answers an ALLOCATION query. Takes no slot and allocates no memory.
    pub(super) fn answer(
        &self,
        sink: &gst::Element,
        started: &Started,
        query: &mut gst::query::Allocation,
    ) -> Result<(), gst::LoggableError> {
        let (caps, need_pool) = query.get_owned();
        // Without caps, the buffers are bytes, as from filesrc.
        let caps = caps.unwrap_or_else(gst::Caps::new_any);
        if caps::excludes_host_memory(&caps) {
            // These caps exclude slots in host memory.
            query.add_allocation_meta::<gst_video::VideoMeta>(None);
            if need_pool && caps::is_cuda(&caps) {
                device::offer(sink, started, &caps, query);
            }
            return Ok(());
        }
        let raw_video = caps
            .structure(0)
            .is_some_and(|structure| structure.has_name("video/x-raw"));
        if raw_video {
            query.add_allocation_meta::<gst_video::VideoMeta>(None);
        }
        // The pool needs the size of a frame, which only complete caps give.
        if raw_video && let Ok(info) = gst_video::VideoInfo::from_caps(&caps) {
            let size = u32::try_from(info.size())
                .map_err(|_| gst::loggable_error!(CAT, "Frames too large: {caps}"))?;
            if need_pool {
                // No maximum: some decoders discard a pool that has one.
                let pool = self.pool(started, &caps, size)?;
                query.add_allocation_pool(Some(&pool), size, 0, 0);
            } else {
                query.add_allocation_pool(None::<&gst::BufferPool>, size, 0, 0);
            }
        }
        query.add_allocation_param(Some(&started.allocator), gst::AllocationParams::default());
        Ok(())
    }

    pub(super) fn clear(&self) {
        let pool = lock(&self.unused).take();
        drop(pool);
    }

    /// A pool for one element. If two elements shared it, one could deactivate it while the other uses it.
    fn pool(
        &self,
        started: &Started,
        caps: &gst::Caps,
        size: u32,
    ) -> Result<XmemBufferPool, gst::LoggableError> {
        let last = lock(&self.unused).take();
        if let Some(unused) = last
            && unused.can_be_offered(caps)
        {
            let pool = unused.pool.clone();
            *lock(&self.unused) = Some(unused);
            return Ok(pool);
        }
        let pool = XmemBufferPool::new(&started.allocator, &started.slots);
        let mut config = pool.config();
        config.set_params(Some(caps), size, 0, 0);
        config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
        pool.set_config(config)?;
        *lock(&self.unused) = Some(Unused {
            caps: caps.clone(),
            config: pool.config(),
            pool: pool.clone(),
        });
        Ok(pool)
    }
}
