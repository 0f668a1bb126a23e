// SPDX-License-Identifier: MPL-2.0

//! The caps of a stream, as text for GStreamer. xmemsrc needs them: it outputs no frame without caps.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyFloat;
use xmem_core::DType;

use crate::dtype;

/// Frames per second, as a fraction. 0/1: variable or unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Framerate(i32, i32);

impl Framerate {
    /// From a number, a fraction or a pair.
    pub(crate) fn parse(value: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(value) = value else {
            return Ok(Self(0, 1));
        };
        let bad = || {
            PyValueError::new_err(
                "framerate must be in frames per second: 30, 29.97, (30000, 1001), fractions.Fraction(30000, 1001), or 0 if \
                 it varies",
            )
        };
        let (num, den) = if let Ok(pair) = value.extract::<(i32, i32)>() {
            pair
        } else if value.is_instance_of::<PyFloat>() {
            // As OpenCV returns it. The rates of NTSC have the denominator 1001.
            let value: f64 = value.extract()?;
            let of_ntsc = (value * 1.001).round();
            let is_ntsc = value.fract() != 0.0 && (of_ntsc / 1.001 - value).abs() < 0.005;
            let (num, den) = if is_ntsc {
                (of_ntsc * 1000.0, 1001)
            } else {
                (value * 1000.0, 1000)
            };
            if !(0.0..=f64::from(i32::MAX)).contains(&num) {
                return Err(bad());
            }
            let (num, mut divisor) = (num.round() as i32, den);
            let mut rest = num;
            while rest != 0 {
                (divisor, rest) = (rest, divisor % rest);
            }
            (num / divisor, den / divisor)
        } else {
            // Integers and fractions have both attributes.
            let numerator = value.getattr("numerator").map_err(|_| bad())?;
            let denominator = value.getattr("denominator").map_err(|_| bad())?;
            (
                numerator.extract::<i32>().map_err(|_| bad())?,
                denominator.extract::<i32>().map_err(|_| bad())?,
            )
        };
        if num < 0 || den <= 0 {
            return Err(bad());
        }
        Ok(Self(num, den))
    }
}

impl std::fmt::Display for Framerate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.0, self.1)
    }
}

/// The caps for frames on a CUDA device: with the feature for that memory.
pub(crate) fn on_device(caps: &str) -> String {
    let (media_type, rest) = caps.split_once(',').unwrap_or((caps, ""));
    format!("{media_type}(memory:CUDAMemory),{rest}")
}

/// Caps of raw video.
pub(crate) fn of_video(format: &str, width: u32, height: u32, framerate: Framerate) -> String {
    format!(
        "video/x-raw, format=(string){format}, width=(int){width}, height=(int){height}, \
         interlace-mode=(string)progressive, pixel-aspect-ratio=(fraction)1/1, framerate=(fraction){framerate}"
    )
}

/// Caps of a tensor, in the form of NNStreamer, whose elements process tensors. The innermost dimension is first.
pub(crate) fn of_tensor(shape: &[u64], dtype: DType, framerate: Framerate) -> String {
    let dimensions: Vec<String> = shape.iter().rev().map(u64::to_string).collect();
    let dimensions = dimensions.join(":");
    format!(
        "other/tensors, format=(string)static, num_tensors=(int)1, dimensions=(string){dimensions}, \
         types=(string){}, framerate=(fraction){framerate}",
        dtype::name(dtype)
    )
}
