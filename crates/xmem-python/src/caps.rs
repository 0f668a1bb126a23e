// SPDX-License-Identifier: MPL-2.0

//! The caps of a stream, as text for GStreamer. xmemsrc needs them: it outputs no frame without caps.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
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
                "framerate is frames per second: 30, (30000, 1001), fractions.Fraction(30000, 1001), or 0 if it varies",
            )
        };
        let (num, den) = if let Ok(pair) = value.extract::<(i32, i32)>() {
            pair
        } else {
            // Integers and fractions have both attributes. A float has none, because it is not an exact fraction.
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
    let dimensions = if dimensions.is_empty() {
        "1".to_owned()
    } else {
        dimensions.join(":")
    };
    format!(
        "other/tensors, format=(string)static, num_tensors=(int)1, dimensions=(string){dimensions}, \
         types=(string){}, framerate=(fraction){framerate}",
        dtype::name(dtype)
    )
}
