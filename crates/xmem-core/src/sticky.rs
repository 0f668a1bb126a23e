// SPDX-License-Identifier: MPL-2.0

//! The sticky state of a stream: what a late joiner needs before its first frame.

/// Caps, segment, tags and the like, as named byte strings.
///
/// The core does not read them. Every frame says which version of the state it belongs to.
///
/// ```
/// let mut sticky = xmem_core::Sticky::new();
/// sticky.set("caps", "video/x-raw,format=NV12");
/// assert_eq!(sticky.text("caps"), Some("video/x-raw,format=NV12"));
/// ```
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Sticky {
    entries: Vec<(String, Vec<u8>)>,
}

/// The longest encoded state, in bytes.
pub const MAX_STICKY_SIZE: usize = 16 << 20;
const MAX_ENTRIES: usize = 1024;

impl Sticky {
    /// No state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an entry, in place of the one of that name.
    pub fn set(&mut self, key: &str, value: impl Into<Vec<u8>>) {
        let value = value.into();
        match self.entries.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((key.to_owned(), value)),
        }
    }

    /// Takes an entry away.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|(k, _)| k != key);
    }

    /// An entry's bytes.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_slice())
    }

    /// An entry's text, if it is text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(|v| std::str::from_utf8(v).ok())
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v.as_slice()))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, value) in &self.entries {
            for part in [key.as_bytes(), value.as_slice()] {
                out.extend_from_slice(&(part.len() as u32).to_le_bytes());
                out.extend_from_slice(part);
            }
        }
        out
    }

    /// Decodes what another process wrote. `None`: it makes no sense.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
            let (len, rest) = bytes.split_first_chunk::<4>()?;
            let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            *bytes = rest;
            Some(part)
        }
        let mut entries = Vec::new();
        while !bytes.is_empty() {
            if entries.len() == MAX_ENTRIES {
                return None;
            }
            let key = std::str::from_utf8(part(&mut bytes)?).ok()?.to_owned();
            entries.push((key, part(&mut bytes)?.to_vec()));
        }
        Some(Self { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::Sticky;

    #[test]
    fn comes_back_and_refuses_nonsense() {
        let mut sticky = Sticky::new();
        sticky.set("caps", "a/b");
        sticky.set("empty", "");
        sticky.set("caps", "c/d");
        let bytes = sticky.encode();
        assert_eq!(Sticky::decode(&bytes), Some(sticky));
        assert_eq!(Sticky::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Sticky::decode(&[0xff; 64]), None);
    }
}
