// SPDX-License-Identifier: MPL-2.0

//! Short text of a fixed size.

use std::fmt;

/// Text of at most `N` bytes, kept inline. Longer text is cut at a character's boundary.
///
/// ```
/// # use xmem_shm::abi::text as xmem_core;
/// let t = xmem_core::Text::<32>::new("image/raw");
/// assert_eq!(t.as_str(), "image/raw");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// Text from a string; bytes past `N`, or after a NUL, are cut off.
    pub fn new(text: &str) -> Self {
        let end = text.bytes().take(N).take_while(|b| *b != 0).count();
        let end = text.floor_char_boundary(end);
        let mut bytes = [0; N];
        for (to, from) in bytes.iter_mut().zip(text.bytes().take(end)) {
            *to = from;
        }
        Self(bytes)
    }

    /// Text from bytes that another process wrote: cut at the first NUL and at the first byte that is not UTF-8.
    pub fn from_bytes(mut bytes: [u8; N]) -> Self {
        let len = bytes.iter().position(|b| *b == 0).unwrap_or(N);
        let valid = match std::str::from_utf8(&bytes[..len]) {
            Ok(_) => len,
            Err(error) => error.valid_up_to(),
        };
        bytes[valid..].fill(0);
        Self(bytes)
    }

    /// The bytes, padded with zeros.
    pub fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|b| *b == 0).unwrap_or(N);
        std::str::from_utf8(&self.0[..len]).unwrap_or_default()
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.as_str().is_empty()
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const N: usize> From<&str> for Text<N> {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_a_character() {
        assert_eq!(Text::<4>::new("abcü").as_str(), "abc");
        assert_eq!(Text::<4>::new("a\0b").as_str(), "a");
        assert_eq!(Text::<4>::from_bytes([b'a', 0xff, b'c', 0]).as_str(), "a");
    }
}
