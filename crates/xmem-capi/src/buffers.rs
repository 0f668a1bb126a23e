// SPDX-License-Identifier: MPL-2.0

//! Buffers by number.
#![allow(unsafe_code)] // functions and pointers of C

use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;

use xmem_core::{AccessMode, BufferGuard, BufferPool};

use crate::border::{Out, Sized0, call, limit, needed};
use crate::error::{Code, Failure};
use crate::handles::{Table, give, lock};

static POOLS: Table<BufferPool> = Table::new("buffer pool");
static BUFFERS: Table<Mutex<Option<BufferGuard>>> = Table::new("buffer");

/// `xmem_buffer_info` of xmem.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BufferInfo {
    struct_size: usize,
    data: *mut c_void,
    size: usize,
    index: u32,
    is_writable: u32,
}

// SAFETY: numbers, and a pointer that may be null.
unsafe impl Sized0 for BufferInfo {}

fn published() -> Failure {
    Failure::new(
        Code::Handle,
        "the buffer was published: get it by its index",
    )
}

fn describe(guard: &mut BufferGuard) -> Result<impl FnOnce(&mut BufferInfo) + use<>, Failure> {
    let is_writable = guard.mode() == AccessMode::ReadWrite;
    let (data, size) = if is_writable {
        let bytes = guard.as_cpu_slice_mut()?;
        (bytes.as_mut_ptr(), bytes.len())
    } else {
        let bytes = guard.as_cpu_slice()?;
        (bytes.as_ptr().cast_mut(), bytes.len())
    };
    let index = guard.meta_index();
    Ok(move |out: &mut BufferInfo| {
        (out.data, out.size) = (data.cast(), size);
        (out.index, out.is_writable) = (index, is_writable.into());
    })
}

fn add(guard: BufferGuard) -> Result<u64, Failure> {
    BUFFERS.add(Mutex::new(Some(guard)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_pool_open(name: *const c_char, pool: *mut u64) -> c_int {
    give(pool, "pool", || {
        // SAFETY: xmem.h asks for a text.
        let name = unsafe { needed(name, "name") }?;
        POOLS.add(BufferPool::new(name)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_pool_acquire(pool: u64, size: usize, buffer: *mut u64) -> c_int {
    give(buffer, "buffer", || {
        add(POOLS.get(pool)?.acquire_cpu(size)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_pool_get(pool: u64, index: u32, buffer: *mut u64) -> c_int {
    give(buffer, "buffer", || add(POOLS.get(pool)?.get(index)?))
}

#[unsafe(no_mangle)]
extern "C" fn xmem_pool_set_count(pool: u64, index: u32, count: c_int) -> c_int {
    call(|| Ok(POOLS.get(pool)?.set_ref_count(index, count)?))
}

#[unsafe(no_mangle)]
extern "C" fn xmem_pool_discard(pool: u64, index: u32) -> c_int {
    call(|| Ok(POOLS.get(pool)?.discard(index)?))
}

#[unsafe(no_mangle)]
extern "C" fn xmem_pool_wait_until_read(pool: u64, timeout: i64) -> c_int {
    call(|| Ok(POOLS.get(pool)?.wait_until_read(limit(timeout))?))
}

#[unsafe(no_mangle)]
extern "C" fn xmem_pool_close(pool: u64) -> c_int {
    call(|| POOLS.remove(pool).map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_buffer_get(buffer: u64, info: *mut BufferInfo) -> c_int {
    call(|| {
        let buffer = BUFFERS.get(buffer)?;
        let describe = describe(lock(&buffer).as_mut().ok_or_else(published)?)?;
        // SAFETY: xmem.h asks for a structure that begins with its size.
        unsafe { BufferInfo::fill(info, "info", describe) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_buffer_publish(buffer: u64, index: *mut u32) -> c_int {
    call(|| {
        let index = Out::new(index, "index")?;
        let buffer = BUFFERS.get(buffer)?;
        let guard = {
            let mut held = lock(&buffer);
            // C has no function that ends the read of a forgotten buffer.
            if held.as_ref().ok_or_else(published)?.mode() == AccessMode::ReadOnly {
                let text = "the buffer is only read, and was published before: release it";
                return Err(Failure::new(Code::Argument, text));
            }
            held.take()
        };
        let number = guard.ok_or_else(published)?.forget()?;
        buffer.end();
        index.set(number);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn xmem_buffer_release(buffer: u64) -> c_int {
    call(|| BUFFERS.remove(buffer).map(drop))
}
