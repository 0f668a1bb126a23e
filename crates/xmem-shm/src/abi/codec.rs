// SPDX-License-Identifier: MPL-2.0

//! Encodes values as bytes, little-endian and without gaps. The bytes to decode come from another process.

use crate::abi::text::Text;

/// A value in a message or a header.
pub(super) trait Field: Sized {
    fn put(&self, to: &mut Vec<u8>);
    /// Decodes the value at the beginning of these bytes, and removes it. `None`: there are too few bytes, or they are invalid.
    fn take(from: &mut &[u8]) -> Option<Self>;
}

impl<const N: usize> Field for [u8; N] {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let (head, rest) = from.split_first_chunk()?;
        *from = rest;
        Some(*head)
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Field for $number {
            fn put(&self, to: &mut Vec<u8>) {
                self.to_le_bytes().put(to);
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                Field::take(from).map(Self::from_le_bytes)
            }
        })*
    };
}

numbers!(u8 u32 u64);

impl Field for bool {
    fn put(&self, to: &mut Vec<u8>) {
        u8::from(*self).put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<const N: usize> Field for Text<N> {
    fn put(&self, to: &mut Vec<u8>) {
        self.as_bytes().put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Field::take(from).map(Self::from_bytes)
    }
}
