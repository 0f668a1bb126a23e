// SPDX-License-Identifier: MPL-2.0

//! Values whose drop takes time.

use std::ops::{Deref, DerefMut};

use pyo3::prelude::*;

/// A value that is dropped without the interpreter, although Python drops its owner with the interpreter, because closing a pool
/// waits for devices, threads and consumers, and these may wait for a thread that needs the interpreter.
#[derive(Debug)]
pub(crate) struct Detached<T: Send>(
    /// `None` only while it is dropped.
    Option<T>,
);

impl<T: Send> Detached<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// For a caller without the interpreter, or one that ends the value in another way.
    pub(crate) fn into_inner(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is not dropped")
    }
}

impl<T: Send> DerefMut for Detached<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is not dropped")
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        if self.0.is_none() {
            return;
        }
        let mut value = self.0.take();
        // When the interpreter shuts down, it cannot be attached to. The value is then dropped directly.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}
