// SPDX-License-Identifier: MPL-2.0

//! DLPack: tensors for libtorch, CuPy, NumPy and others. <https://dmlc.github.io/dlpack>, version 1.1.
#![allow(unsafe_code)] // functions and pointers of C

use std::ffi::{c_int, c_void};

use xmem_core::cuda::Stream;
use xmem_core::{DType, FrameLayout};

use crate::border::{Out, call};
use crate::device::stream;
use crate::entries::Held;
use crate::error::{Code, Failure};
use crate::frame::{FRAMES, Frame, Handle};
use crate::planes::{outside, place, plane};

const CPU: i32 = 1;
const CUDA: i32 = 2;
const FLAG_READ_ONLY: u64 = 1 << 0;

#[repr(C)]
struct Device {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// DLTensor.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// DLManagedTensorVersioned.
#[repr(C)]
pub(crate) struct Managed {
    major: u32,
    minor: u32,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

const _: () = assert!(size_of::<Tensor>() == 48 && size_of::<Managed>() == 80);

/// What a tensor refers to.
struct Context {
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Holds the bytes.
    _frame: Held<Handle>,
}

/// An array in a frame. Strides are in elements.
struct Array {
    data: *const u8,
    /// `None`: host memory.
    device: Option<u32>,
    dtype: DType,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Frame {
    /// A plane of video, the tensor, or the bytes, for `stream` if they are on a device.
    fn array(&self, number: u32, stream: Stream) -> Result<Array, Failure> {
        let (pieces, device) = self.pieces_for(stream)?;
        let layout = &self.meta().layout;
        let mut arrays = Vec::new();
        if let Some(video) = &layout.video {
            let places = video.offsets.iter().zip(video.strides);
            for (size, (offset, stride)) in video.planes()?.zip(places) {
                let item = size.dtype.size() as i64;
                let pixel = i64::from(size.channels);
                let mut shape = vec![i64::from(size.rows), i64::from(size.columns)];
                let mut strides = vec![i64::from(stride) / item, pixel];
                if pixel > 1 {
                    shape.push(pixel);
                    strides.push(1);
                }
                let is_whole = i64::from(stride) % item == 0;
                let plane = plane(size, *offset, stride).filter(|_| is_whole);
                let data = plane.and_then(|(_, (start, len))| place(&pieces, start, len));
                let data = data.ok_or_else(outside)?;
                arrays.push((data, size.dtype, shape, strides));
            }
        } else {
            let size = self.meta().size;
            let data = place(&pieces, 0, size).ok_or_else(outside)?;
            let (dtype, shape, strides) = match layout.ndim {
                0 => (DType::U8, vec![size.cast_signed()], vec![1]),
                _ => tensor(layout, size).ok_or_else(outside)?,
            };
            arrays.push((data, dtype, shape, strides));
        }
        let count = arrays.len();
        let array = arrays.into_iter().nth(number as usize);
        let (data, dtype, shape, strides) = array.ok_or_else(|| {
            let text = format!("plane is {number}, and the frame has {count}");
            Failure::new(Code::Argument, text)
        })?;
        Ok(Array {
            data,
            device,
            dtype,
            shape,
            strides,
        })
    }
}

/// The type, shape and strides, in elements, of a tensor of `size` bytes. `None`: it is not inside of them.
fn tensor(layout: &FrameLayout, size: u64) -> Option<(DType, Vec<i64>, Vec<i64>)> {
    let (item, ndim) = (layout.dtype.size() as i64, usize::from(layout.ndim));
    let (mut shape, mut strides, mut end) = (Vec::new(), Vec::new(), item);
    for (size, stride) in layout.shape.iter().zip(layout.strides).take(ndim) {
        let size = i64::try_from(*size).ok().filter(|size| *size > 0)?;
        let is_whole = stride >= 0 && stride % item == 0;
        end = end.checked_add((size - 1).checked_mul(stride).filter(|_| is_whole)?)?;
        shape.push(size);
        strides.push(stride / item);
    }
    (end.cast_unsigned() <= size).then_some((layout.dtype, shape, strides))
}

fn data_type(dtype: DType) -> Result<DataType, Failure> {
    let code = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::Bf16 => 4,
        DType::Bool => 6,
        other => {
            let text = format!("DLPack has no name for elements of {other:?}");
            return Err(Failure::new(Code::NotReadable, text));
        }
    };
    Ok(DataType {
        code,
        bits: 8 * dtype.size() as u8,
        lanes: 1,
    })
}

/// The owner of a tensor calls this once, on any thread.
unsafe extern "C" fn delete(managed: *mut Managed) {
    if managed.is_null() {
        return;
    }
    // SAFETY: `export` made it, and DLPack asks for one call.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.manager_ctx.cast::<Context>()));
    }
}

fn export(frame: Held<Handle>, array: Array) -> Result<*mut Managed, Failure> {
    let dtype = data_type(array.dtype)?;
    let context = Box::new(Context {
        shape: array.shape,
        strides: array.strides,
        _frame: frame,
    });
    let tensor = Tensor {
        data: array.data.cast_mut().cast(),
        device: Device {
            device_type: if array.device.is_some() { CUDA } else { CPU },
            device_id: array.device.unwrap_or(0).cast_signed(),
        },
        ndim: context.shape.len() as i32,
        dtype,
        shape: context.shape.as_ptr().cast_mut(),
        strides: context.strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    Ok(Box::into_raw(Box::new(Managed {
        major: 1,
        minor: 1,
        manager_ctx: Box::into_raw(context).cast(),
        deleter: Some(delete),
        flags: FLAG_READ_ONLY,
        tensor,
    })))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_frame_dlpack(
    frame: u64,
    plane: u32,
    on: *mut c_void,
    tensor: *mut *mut Managed,
) -> c_int {
    call(|| {
        let tensor = Out::new(tensor, "tensor")?;
        tensor.set(std::ptr::null_mut());
        let frame = FRAMES.get(frame)?;
        let array = frame.array(plane, stream(on))?;
        tensor.set(export(frame, array)?);
        Ok(())
    })
}
