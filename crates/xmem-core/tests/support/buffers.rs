// SPDX-License-Identifier: MPL-2.0

//! Buffers by number.

use xmem_core::BufferPool;

/// Publishes a buffer with these bytes for `count` reads.
pub fn published(pool: &BufferPool, bytes: &[u8], count: i32) -> u32 {
    let mut buffer = pool.acquire_cpu(bytes.len()).unwrap();
    buffer.as_cpu_slice_mut().unwrap().copy_from_slice(bytes);
    pool.set_ref_count(buffer.meta_index(), count).unwrap();
    buffer.forget().unwrap()
}
