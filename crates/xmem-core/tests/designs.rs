// SPDX-License-Identifier: MPL-2.0

//! The unchanged Rust code of the technical design ("xmem 技术设计"), in host memory and in three processes. Comments name the
//! differences. `cuda/design.rs` has the code for devices.

mod support;

use std::error::Error;

use support::child::{self, Child, read_line, reply};
use support::*;
use xmem_core::{AccessError, AccessMode, BufferGuard, BufferPool, DType, FrameLayout, Storage};

const SIZE: usize = 1920 * 1080 * 3;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[test]
fn child() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    let done = match role.as_str() {
        "producer" => produce(&pool),
        "consumer" => consume(&pool),
        other => panic!("no role {other:?}"),
    };
    done.unwrap();
}

#[test]
fn sections_3_to_7() {
    let place = Place::new();
    let mut producer = Child::start("producer", &place.pool());
    let meta_index = producer.reply();
    let mut consumers = [(); 2].map(|()| Child::start("consumer", &place.pool()));
    for consumer in &mut consumers {
        consumer.send(&meta_index);
        assert_eq!(consumer.reply(), "read");
    }
    producer.send("wait");
    assert_eq!(producer.reply(), "read as often as its count");
    // The buffer that a consumer created from it.
    let [one, other] = &mut consumers;
    one.send("publish");
    other.send(&one.reply());
    assert_eq!(other.reply(), "read what the other one wrote");
    one.send("end");
    for process in [&mut producer, one, other] {
        assert!(process.ends());
    }
    place.assert_clean();
}

/// Section 3. Two fields are missing: `ref_count`, which only the producer's process has, and `reserved`, which is not passed on.
/// `strides` are signed.
#[derive(Debug)]
pub struct BufferMeta {
    pub id: u32,
    pub storage_type: u8,  // 0=cpu, 1=cuda
    pub device_id: u8,     // GPU 设备号
    pub dtype: u8,         // float32, uint8, float16...
    pub ndim: u8,          // 维度数
    pub shape: [u64; 8],   // 最多 8 维
    pub strides: [i64; 8], // 步长
    pub size: u64,         // 总字节数
    pub timestamp: u64,
    pub seq: u64,
    pub content_type: [u8; 32], // "image/raw", "tensor/float32"
    pub producer: [u8; 32],
}

/// Section 4. `shm_name` is missing: the memory has no name.
#[derive(Debug)]
pub enum BufferStorage {
    Cpu { ptr: *mut u8, size: usize },
}

fn meta_of(buf: &BufferGuard) -> BufferMeta {
    let (meta, info) = (buf.meta(), buf.info());
    let layout = &meta.layout;
    BufferMeta {
        id: buf.meta_index(),
        storage_type: u8::from(info.storage == Storage::Cuda),
        device_id: info.device_id,
        dtype: layout.dtype as u8,
        ndim: layout.ndim,
        shape: layout.shape,
        strides: layout.strides,
        size: meta.size,
        timestamp: meta.timestamp.unwrap_or_default() as u64,
        seq: info.sequence,
        content_type: *layout.content_type.as_bytes(),
        producer: *layout.producer.as_bytes(),
    }
}

fn storage_of(buf: &BufferGuard) -> Result<BufferStorage> {
    let bytes = buf.as_cpu_slice()?;
    Ok(BufferStorage::Cpu {
        ptr: bytes.as_ptr().cast_mut(),
        size: bytes.len(),
    })
}

fn layout() -> FrameLayout {
    FrameLayout {
        dtype: DType::U8,
        ndim: 3,
        shape: [1080, 1920, 3, 0, 0, 0, 0, 0],
        strides: [1920 * 3, 3, 1, 0, 0, 0, 0, 0],
        content_type: "image/raw".into(),
        producer: "decoder".into(),
        ..FrameLayout::default()
    }
}

fn write_data(bytes: &mut [u8]) {
    fill(6, bytes);
}

fn produce(name: &str) -> Result<()> {
    // Section 6, 连接到共享内存池（或创建）
    let pool = BufferPool::new(name)?;
    // 预分配 CPU buffer
    let (size, count) = (SIZE, 2);
    let indices: Vec<u32> = pool.preallocate_cpu(size, count)?;
    assert_eq!(indices.len(), count);

    // 获取 CPU buffer（生产者，可写）. Section 7, where `mut` is missing.
    let mut cpu_buf = pool.acquire_cpu(size)?;
    write_data(cpu_buf.as_cpu_slice_mut()?);
    assert!(indices.contains(&cpu_buf.buffer()));
    assert!(matches!(cpu_buf.mode(), AccessMode::ReadWrite));
    let meta = cpu_buf.meta().clone().layout(layout());
    cpu_buf.set_meta(meta.timestamp(12))?;

    // 设置引用计数（多消费者场景）. It returns a `Result`: the index may be of another process.
    let meta_index: u32 = cpu_buf.meta_index();
    pool.set_ref_count(meta_index, 2)?;
    // `std::mem::forget` in section 8, which publishes nothing.
    cpu_buf.forget()?;
    reply(meta_index);
    read_line();
    pool.wait_until_read(Some(HANG))?;
    assert!(pool.get(meta_index).is_err());
    // 归零时回收 (section 11)
    assert_eq!(pool.stats().slots_held, 0);
    reply("read as often as its count");
    Ok(())
}

fn consume(name: &str) -> Result<()> {
    let pool = BufferPool::new(name)?;
    let meta_index: u32 = read_line().parse()?;
    // Section 6, 只读
    let buf = pool.get(meta_index)?;
    let meta = meta_of(&buf);
    assert_eq!((meta.id, meta.size), (meta_index, SIZE as u64));
    assert_eq!((meta.storage_type, meta.device_id), (0, 0));
    let layout = layout();
    assert_eq!((meta.dtype, meta.ndim), (layout.dtype as u8, 3));
    assert_eq!((meta.shape, meta.strides), (layout.shape, layout.strides));
    assert_eq!((meta.timestamp, meta.seq), (12, buf.info().sequence));
    assert_eq!(&meta.content_type, layout.content_type.as_bytes());
    assert_eq!(&meta.producer, layout.producer.as_bytes());
    let BufferStorage::Cpu { ptr, size } = storage_of(&buf)?;
    assert_eq!((ptr.is_null(), size), (false, SIZE));

    // Section 5. A guard keeps its pool, and so has no lifetime.
    let bytes: &[u8] = buf.as_cpu_slice()?;
    assert_eq!(difference(6, bytes), None);
    // `clone_ref` returns a `Result`: a buffer that is written has one guard.
    let mut clone: BufferGuard = buf.clone_ref()?;
    assert!(matches!(clone.mode(), AccessMode::ReadOnly));
    // 可写访问（只读模式调用会报错）
    assert_eq!(clone.as_cpu_slice_mut().unwrap_err(), AccessError::ReadOnly);

    // Section 6, 手动释放（非 RAII 场景）. A reference without a guard is no read; `add_ref` returns a `Result`.
    pool.add_ref(meta_index)?;
    pool.release(meta_index);

    // A copy, in place of `get_mut` (可写), which would be one more read.
    let mut edit = buf.copy_to_cpu()?;
    // Section 5, `Drop`.
    drop(clone);
    drop(buf);
    assert!(!pool.release(meta_index), "it was released");
    reply("read");

    match read_line().as_str() {
        "publish" => {
            edit.as_cpu_slice_mut()?[0] ^= 1;
            let edited = edit.forget()?;
            reply(edited);
            // The other consumer reads it.
            read_line();
            pool.wait_until_read(Some(HANG))?;
        }
        edited => {
            // The buffer of another process is copied, so pass on the index that `forget` returns.
            let edited: u32 = edited.parse()?;
            let mut edit = pool.get_mut(edited)?;
            assert_eq!(difference(6, edit.as_cpu_slice()?), Some(0));
            edit.as_cpu_slice_mut()?[0] ^= 1;
            assert_eq!(difference(6, edit.as_cpu_slice()?), None);
            assert_ne!(edit.forget()?, edited);
            reply("read what the other one wrote");
        }
    }
    Ok(())
}
