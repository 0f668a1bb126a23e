// SPDX-License-Identifier: MPL-2.0

//! Names and descriptions of errors. A description names the stand-in; the real driver's descriptions are sentences.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::CUresult;

use crate::entry::{Outcome, put};

/// A static string for each result.
fn lasting(key: (CUresult, bool), text: &str) -> *const c_char {
    static TEXTS: Mutex<Option<HashMap<(CUresult, bool), CString>>> = Mutex::new(None);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    // Never removed, so that the pointer stays valid.
    texts
        .get_or_insert_default()
        .entry(key)
        .or_insert_with(|| CString::new(text).unwrap_or_default())
        .as_ptr()
}

fn name(
    error: CUresult,
    pointer: *mut *const c_char,
    text: impl FnOnce(String) -> String,
    describe: bool,
) -> Outcome {
    put(
        pointer,
        lasting((error, describe), &text(format!("{error:?}"))),
    )
}

api! {
    fn cuGetErrorName(error: CUresult, pStr: *mut *const c_char) {
        name(error, pStr, |name| name, false)
    }

    fn cuGetErrorString(error: CUresult, pStr: *mut *const c_char) {
        name(error, pStr, |name| format!("{name} (from the xmem stand-in, no GPU)"), true)
    }
}
