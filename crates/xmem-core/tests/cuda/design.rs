// SPDX-License-Identifier: MPL-2.0

//! The unchanged Rust examples of the technical design ("xmem 技术设计"), in two processes. Comments name the differences.

use std::error::Error;

use xmem_core::cuda::Stream;
use xmem_core::{AccessMode, BufferGuard, BufferPool};

use crate::gpu::Gpu;
use crate::lab::Lab;
use crate::support::child::{Child, read_line, reply};
use crate::support::eventually;

const SIZE: usize = 1920 * 1080 * 3;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn write_data(bytes: &mut [u8]) {
    bytes.fill(6);
}

#[test]
fn sections_4_to_7() {
    let lab = Lab::new();
    lab.machine.only_here("two devices");
    let [_, mut consumer] = run(&lab);
    consumer.send("end");
    assert!(consumer.ends());
    lab.assert_allowed();
}

/// Uses `cudaIpcGetMemHandle` and `cudaIpcOpenMemHandle`, for drivers without newer functions. The driver's names are `cuIpc...`.
#[test]
fn section_10() {
    let lab = Lab::new().with("QUIRKS", "no-vmm");
    let [producer, mut consumer] = run(&lab);
    let calls = |child, name| lab.calls(child, &[name]);
    for name in ["cuMemAlloc_v2", "cuIpcGetMemHandle"] {
        assert_ne!(calls(&producer, name), Some(0), "{name}");
    }
    let opened = calls(&consumer, "cuIpcOpenMemHandle_v2");
    assert_ne!(opened, Some(0));
    // Runs on a separate thread.
    eventually("it is closed", || {
        calls(&consumer, "cuIpcCloseMemHandle") == opened
    });
    consumer.send("end");
    assert!(consumer.ends());
    lab.assert_allowed();
}

fn run(lab: &Lab) -> [Child; 2] {
    let mut producer = lab.start("design-producer");
    let meta_index = producer.reply();
    let mut consumer = lab.start("design-consumer");
    consumer.send(&meta_index);
    assert_eq!(consumer.reply(), "read");
    producer.send("end");
    assert_eq!(producer.reply(), "read as often as its count");
    assert!(producer.ends());
    consumer.send("close");
    assert_eq!(consumer.reply(), "closed");
    [producer, consumer]
}

pub fn produce(name: &str) -> Result<()> {
    let gpu = Gpu::new(0);
    // Section 6, 连接到共享内存池（或创建）
    let pool = BufferPool::new(name)?;
    let (size, count) = (SIZE, 2);
    let indices: Vec<u32> = pool.preallocate_cpu(size, count)?;
    let on_device: Vec<u32> = pool.preallocate_cuda(size, count, 0)?;
    assert_eq!((indices.len(), on_device.len()), (2, 2));

    // Section 7, CPU → CUDA. `mut` is missing there.
    let mut cpu_buf = pool.acquire_cpu(size)?;
    write_data(cpu_buf.as_cpu_slice_mut()?);
    let mut cuda_buf = cpu_buf.copy_to_cuda(0)?;
    assert_eq!(gpu.read(cuda_buf.as_cuda_ptr()?, size), vec![6; size]);
    assert!(on_device.contains(&cuda_buf.buffer()));

    // Section 7, CUDA 0 → CUDA 1
    let mut buf_gpu0 = pool.acquire_cuda(size, 0)?;
    // The device may not have finished.
    gpu.fill(Stream::LEGACY_DEFAULT, buf_gpu0.as_cuda_ptr_mut()?, size, 9);
    let buf_gpu1 = buf_gpu0.copy_to_device(1)?;
    assert_eq!(buf_gpu1.copy_to_cpu()?.as_cpu_slice()?, vec![9; size]);

    // Section 6, 设置引用计数（多消费者场景）. It returns a `Result`: the index may be of another process.
    let meta_index: u32 = cuda_buf.meta_index();
    pool.set_ref_count(meta_index, 3)?;
    // `std::mem::forget` in the design. The device may not have finished.
    gpu.fill(Stream::LEGACY_DEFAULT, cuda_buf.as_cuda_ptr_mut()?, size, 7);
    cuda_buf.forget()?;
    reply(meta_index);
    read_line();
    pool.wait_until_read(None)?;
    reply("read as often as its count");
    Ok(())
}

pub fn consume(name: &str) -> Result<()> {
    let pool = BufferPool::new(name)?;
    let meta_index: u32 = read_line().parse()?;
    // Section 7, CUDA → CPU
    let cuda_buf = pool.get(meta_index)?;
    let cpu_buf = cuda_buf.copy_to_cpu()?;
    let gpu = Gpu::new(0);
    assert_eq!(gpu.read(cuda_buf.as_cuda_ptr()?, SIZE), vec![7; SIZE]);
    // Section 4: `device_id` and `size`. The handle is between the processes.
    assert_eq!(cuda_buf.device().map(|device| device.ordinal()), Some(0));
    assert_eq!(cuda_buf.meta().size, SIZE as u64);
    assert_eq!(cpu_buf.as_cpu_slice()?, vec![7; SIZE]);

    // Section 5. A guard keeps its pool, and so has no lifetime. `clone_ref` returns a `Result`: a buffer that is written has
    // one guard.
    let mut clone: BufferGuard = cuda_buf.clone_ref()?;
    assert!(matches!(clone.mode(), AccessMode::ReadOnly));
    // 可写访问（只读模式调用会报错）
    clone.as_cuda_ptr_mut().unwrap_err();
    clone.as_cpu_slice_mut().unwrap_err();

    // Section 6, 手动释放（非 RAII 场景）. A reference without a guard is no read; `add_ref` returns a `Result`.
    pool.add_ref(meta_index)?;
    pool.release(meta_index);
    drop((clone, cuda_buf));

    // Section 6, 可写. The buffer of another process is copied, so pass on the index that `forget` returns.
    let mut edit = pool.get_mut(meta_index)?;
    assert!(matches!(edit.mode(), AccessMode::ReadWrite));
    assert_ne!(edit.as_cuda_ptr_mut()?, 0);
    assert_ne!(edit.forget()?, meta_index);

    // Section 8, `forget` of a guard that is read: keeps the buffer until `release`.
    pool.get(meta_index)?.forget()?;
    assert!(pool.release(meta_index));
    reply("read");
    read_line();
    // A guard keeps its pool.
    drop((cpu_buf, pool));
    reply("closed");
    read_line();
    Ok(())
}
