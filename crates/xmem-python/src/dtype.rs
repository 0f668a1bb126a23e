// SPDX-License-Identifier: MPL-2.0

//! The types of elements, with their names in each of Python's protocols.

use std::ffi::CStr;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use xmem_core::DType;

pub(crate) struct Names {
    dtype: DType,
    /// The name in NumPy and PyTorch.
    name: &'static str,
    /// The code of the struct module, for the buffer protocol. `None`: it has none.
    pub(crate) format: Option<&'static CStr>,
    /// NumPy's name in the array interface.
    pub(crate) typestr: Option<&'static str>,
    /// DLPack's type code. Together with the size it is DLPack's type.
    pub(crate) dlpack: u8,
}

const fn names(
    dtype: DType,
    name: &'static str,
    format: Option<&'static CStr>,
    typestr: Option<&'static str>,
    dlpack: u8,
) -> Names {
    Names {
        dtype,
        name,
        format,
        typestr,
        dlpack,
    }
}

const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const BOOL: u8 = 6;

const ALL: &[Names] = &[
    names(DType::U8, "uint8", Some(c"B"), Some("|u1"), UINT),
    names(DType::I8, "int8", Some(c"b"), Some("|i1"), INT),
    names(DType::U16, "uint16", Some(c"H"), Some("<u2"), UINT),
    names(DType::I16, "int16", Some(c"h"), Some("<i2"), INT),
    names(DType::U32, "uint32", Some(c"I"), Some("<u4"), UINT),
    names(DType::I32, "int32", Some(c"i"), Some("<i4"), INT),
    // "l" and "L" have eight bytes on all platforms of the core. NumPy uses them too.
    names(DType::U64, "uint64", Some(c"L"), Some("<u8"), UINT),
    names(DType::I64, "int64", Some(c"l"), Some("<i8"), INT),
    names(DType::F16, "float16", Some(c"e"), Some("<f2"), FLOAT),
    names(DType::Bf16, "bfloat16", None, None, BFLOAT),
    names(DType::F32, "float32", Some(c"f"), Some("<f4"), FLOAT),
    names(DType::F64, "float64", Some(c"d"), Some("<f8"), FLOAT),
    names(DType::Bool, "bool", Some(c"?"), Some("|b1"), BOOL),
];

pub(crate) fn of(dtype: DType) -> &'static Names {
    // The table has all types of the core. The Python test `every_type_has_names` checks that.
    ALL.iter()
        .find(|names| names.dtype == dtype)
        .unwrap_or(&ALL[0])
}

pub(crate) fn name(dtype: DType) -> &'static str {
    of(dtype).name
}

/// The type as NumPy's, or its name if NumPy is missing or does not have it.
pub(crate) fn object(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    static NUMPY: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let Names { name, typestr, .. } = *of(dtype);
    let numpy = NUMPY.get_or_init(py, || {
        let numpy = py.import("numpy").ok()?;
        Some(numpy.getattr("dtype").ok()?.unbind())
    });
    match numpy {
        Some(numpy) if typestr.is_some() => numpy.bind(py).call1((name,)),
        _ => Ok(name.into_pyobject(py)?.into_any()),
    }
}

/// A type from Python: a name, a NumPy dtype or scalar type, a torch dtype, or `int`, `float`, `bool`.
pub(crate) fn parse(dtype: &Bound<'_, PyAny>) -> PyResult<DType> {
    // NumPy's name does not contain the byte order.
    if let Ok(false) = dtype
        .getattr("isnative")
        .and_then(|is_native| is_native.is_truthy())
    {
        return Err(PyValueError::new_err(format!(
            "{dtype} isn't in this machine's byte order, the only one that frames support: convert the array with \
             array.astype(dtype.newbyteorder(\"=\"))"
        )));
    }
    let text = if let Ok(text) = dtype.cast::<PyString>() {
        text.clone()
    } else if let Ok(name) = dtype.getattr("__name__") {
        name.cast_into()?
    } else if let Ok(name) = dtype.getattr("name") {
        name.cast_into()?
    } else {
        // torch.float32 is an object without a name.
        dtype.str()?
    };
    let text = text.to_string_lossy();
    let name = match text.strip_prefix("torch.").unwrap_or(&text) {
        "int" => "int64",
        "float" => "float64",
        "bool_" => "bool",
        name => name,
    };
    // NumPy's short names: "f4", "<f4". On this platform "=" and "|" mean the same order as "<".
    let short = name.strip_prefix(['<', '=', '|']).unwrap_or(name);
    let is_it = |it: &&Names| {
        it.name == name || it.typestr.and_then(|typestr| typestr.get(1..)) == Some(short)
    };
    if let Some(names) = ALL.iter().find(is_it) {
        return Ok(names.dtype);
    }
    let known: Vec<&str> = ALL.iter().map(|names| names.name).collect();
    let message = format!("no such dtype: {text:?}; use one of {}", known.join(", "));
    Err(if dtype.is_none() {
        PyTypeError::new_err(message)
    } else {
        PyValueError::new_err(message)
    })
}
