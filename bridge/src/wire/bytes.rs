// SPDX-License-Identifier: MPL-2.0

//! Reads and writes the fields of messages. The reader checks the length before each read, because another host sent the bytes.

use thiserror::Error;

/// A message is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a message of the other host is invalid: {0}")]
pub struct Malformed(pub &'static str);

/// The rest of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let split = self.0.split_at_checked(count);
        let (bytes, rest) = split.ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let split = self.0.split_first_chunk();
        let (array, rest) = split.ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn get<T: Field>(&mut self) -> Result<T, Malformed> {
        T::get(self)
    }

    /// Bytes with their number before them, at most `max`.
    pub(super) fn sized(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let count = self.get::<u32>()? as usize;
        if count > max {
            return Err(Malformed("a text or its data are too long"));
        }
        self.bytes(count)
    }

    pub(super) fn text(&mut self, max: usize) -> Result<String, Malformed> {
        let text = std::str::from_utf8(self.sized(max)?);
        let text = text.map_err(|_| Malformed("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// The remaining bytes.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Checks that no bytes remain.
    pub(super) fn end(self) -> Result<(), Malformed> {
        match self.0 {
            [] => Ok(()),
            _ => Err(Malformed("it has bytes behind its end")),
        }
    }
}

/// Writes the number of bytes, then the bytes. Bytes after the first `max` are cut off, because the reader refuses longer fields.
pub(super) fn put_sized(out: &mut Vec<u8>, bytes: &[u8], max: usize) {
    let bytes = bytes.get(..max).unwrap_or(bytes);
    (bytes.len() as u32).put(out);
    out.extend(bytes);
}

/// As [`put_sized`], for text. It is cut between two characters.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str, max: usize) {
    let end = text.floor_char_boundary(max);
    put_sized(out, text.get(..end).unwrap_or_default().as_bytes(), max);
}

/// A value in a message.
pub(super) trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Field for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                from.array().map(Self::from_le_bytes)
            }
        })*
    };
}

numbers!(u8, u32, u64, i64);

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.get::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }
}

/// A flag, then the value if there is one.
impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.get::<bool>()?.then(|| from.get()).transpose()
    }
}

/// Structures with their fields, in the order in which they are written and read.
macro_rules! fields {
    ($($structure:ty { $($field:ident),* })*) => {
        $(impl Field for $structure {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(Self { $($field: from.get()?),* })
            }
        })*
    };
}

pub(super) use fields;
