// SPDX-License-Identifier: MPL-2.0

//! The writer and a reader of buffers by number on devices.

use xmem_core::cuda::CudaError;
use xmem_core::{AccessError, BufferPool, FrameLayout, FrameMeta, WriteAccessError};

use super::{SIZE, pattern};
use crate::gpu::Gpu;
use crate::support::child::{read_line, reply};

/// Copies buffers from host to device, to another device, and back.
pub fn own_buffers(name: &str) {
    let gpu = Gpu::new(0);
    let pool = BufferPool::new(name).unwrap();
    assert_eq!(pool.preallocate_cuda(SIZE, 3, 0).unwrap().len(), 3);
    assert!(matches!(
        pool.acquire_cuda(SIZE, 9),
        Err(WriteAccessError::Cuda(CudaError::NoDevice {
            ordinal: 9,
            count: 2
        }))
    ));
    assert!(matches!(
        pool.acquire_cuda(SIZE, -1),
        Err(WriteAccessError::Cuda(CudaError::NoDevice { .. }))
    ));
    let bytes = pattern(SIZE);
    let mut host = pool.acquire_cpu(SIZE).unwrap();
    host.as_cpu_slice_mut().unwrap().copy_from_slice(&bytes);
    assert_eq!(host.as_cuda_ptr().unwrap_err(), CudaError::NotOnDevice);
    let layout = FrameLayout {
        content_type: "image/raw".into(),
        ..FrameLayout::default()
    };
    host.set_meta(FrameMeta::default().layout(layout)).unwrap();
    let before = xmem_core::cuda::counts();
    let mut on_device = host.copy_to_cuda(0).unwrap();
    assert_eq!(on_device.meta().layout.content_type.as_str(), "image/raw");
    assert_eq!(on_device.as_cpu_slice().unwrap_err(), AccessError::OnDevice);
    assert_eq!(
        on_device.as_cpu_slice_mut().unwrap_err(),
        AccessError::OnDevice
    );
    assert_eq!(gpu.read(on_device.as_cuda_ptr_mut().unwrap(), SIZE), bytes);
    let on_other = on_device.copy_to_device(1).unwrap();
    let back = on_other.copy_to_cpu().unwrap();
    assert_eq!(back.as_cpu_slice().unwrap(), bytes);
    assert_eq!(xmem_core::cuda::counts().copies - before.copies, 3);
    // A second upload from the same region: the region is registered once.
    drop(host.copy_to_cuda(0).unwrap());
    // This process reads the buffer once and then edits it.
    pool.set_ref_count(on_device.meta_index(), 2).unwrap();
    let index = on_device.forget().unwrap();
    let mut readable = pool.get(index).unwrap();
    assert_eq!(gpu.read(readable.as_cuda_ptr().unwrap(), SIZE), bytes);
    assert_eq!(readable.as_cuda_ptr_mut().unwrap_err(), CudaError::ReadOnly);
    assert_eq!(
        readable.copy_to_cpu().unwrap().as_cpu_slice().unwrap(),
        bytes
    );
    drop((readable, on_other, back, host));
    // Edited in place, by the only process.
    let mut again = pool.get_mut(index).unwrap();
    assert_eq!(gpu.read(again.as_cuda_ptr_mut().unwrap(), SIZE), bytes);
    let stream = gpu.stream();
    gpu.fill(stream, again.as_cuda_ptr_mut().unwrap(), SIZE, 9);
    pool.set_ref_count(index, 2).unwrap();
    reply(again.forget_on(stream).unwrap());
    read_line();
    reply("ends");
}

pub fn read_buffers(name: &str) {
    let gpu = Gpu::new(0);
    let pool = BufferPool::new(name).unwrap();
    reply("ready");
    let index = read_line().parse().unwrap();
    let buffer = pool.get(index).unwrap();
    // Waits for the device that writes the buffer.
    assert_eq!(gpu.read(buffer.as_cuda_ptr().unwrap(), SIZE), vec![9; SIZE]);
    // Copies stay valid after the buffer is released.
    let on_other = buffer.copy_to_device(1).unwrap();
    let mut on_host = buffer.copy_to_cpu().unwrap();
    on_host.as_cpu_slice_mut().unwrap()[0] = 8;
    let back = on_host.copy_to_cuda(0).unwrap();
    assert_eq!(gpu.read(back.as_cuda_ptr().unwrap(), 2), [8, 9]);
    assert_eq!(back.cuda().unwrap_err(), CudaError::Writing);
    assert_eq!(back.device().unwrap().ordinal(), 0);
    // A buffer of this process, which can be published.
    let published = back.forget().unwrap();
    let back = pool.get(published).unwrap();
    assert_eq!(gpu.read(back.as_cuda_ptr().unwrap(), 2), [8, 9]);
    let stream = gpu.stream();
    let frame = buffer.cuda().unwrap();
    frame.wait_on(stream).unwrap();
    let wrong = gpu.word();
    gpu.check(stream, frame.ptr(), frame.len(), 9, wrong);
    drop(buffer);
    frame.release_on(stream).unwrap();
    gpu.finish(stream);
    reply(gpu.read_word(wrong));
    let copy = on_other.copy_to_cpu().unwrap();
    assert_eq!(copy.as_cpu_slice().unwrap(), vec![9; SIZE]);
    read_line();
}

/// Edits a buffer of another process, which is copied on its device.
pub fn edit_buffers(name: &str) {
    let gpu = Gpu::new(0);
    let pool = BufferPool::new(name).unwrap();
    reply("ready");
    let index = read_line().parse().unwrap();
    let mut copy = pool.get_mut(index).unwrap();
    assert_eq!(gpu.read(copy.as_cuda_ptr().unwrap(), SIZE), vec![9; SIZE]);
    let stream = gpu.stream();
    gpu.fill(stream, copy.as_cuda_ptr_mut().unwrap(), SIZE, 7);
    let edited = copy.forget_on(stream).unwrap();
    let edited = pool.get(edited).unwrap();
    assert_eq!(gpu.read(edited.as_cuda_ptr().unwrap(), SIZE), vec![7; SIZE]);
    assert!(matches!(
        pool.discard(index),
        Err(WriteAccessError::NotWriter)
    ));
    reply("0");
    read_line();
}
