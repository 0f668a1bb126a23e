// SPDX-License-Identifier: MPL-2.0

//! Named byte strings: a stream's sticky state, and the attachments of a frame.

use std::sync::Arc;

use crate::abi::codec::Field;
use crate::abi::limits::MAX_NAMED_ENTRIES;

/// The state that a consumer needs before its first frame: caps, segment, tags and others.
///
/// The core does not interpret it. Each frame has the version of its state. xmemsink and xmemsrc use these keys. A program that
/// is not a pipeline should set `caps`, and may set `tags`:
///
/// | key | content | form |
/// |---|---|---|
/// | `caps` | the format of the frames; xmemsrc needs it | fixed caps as text, such as `video/x-raw,format=GRAY8,width=64,height=48,framerate=30/1` |
/// | `tags`, `tags-global` | the tags of the stream, and of all that it belongs to | a GstTagList as text, such as `taglist, title=(string)Door;` |
/// | `segment` | which of the producer's times are played, for `timestamp-mode=passthrough` and speeds other than 1 | a GstSegment as text |
/// | `stream-start`, `stream` | the stream's id, and its flags, group and type; without them xmemsrc makes an id of the pool's name | the id; a GstStructure as text |
/// | `timeline` | the meaning of the frames' [timestamps](crate::abi::meta::FrameMeta::timestamp): whether they are live, latency, base time. Without it they are taken for those of a file: see below | a GstStructure as text: `timeline, live=(boolean)true;` |
/// | `custom/NAME` | a sticky custom event of that name | a GstStructure as text |
///
/// Text has the form of `gst_caps_to_string` and of GStreamer's value serialization. Programs may use other keys. A live source
/// without a pipeline sets `timeline` as above, so that xmemsrc keeps the times of its frames.
///
/// The method `set_sticky` of a producer has an example.
pub type Sticky = Named;

/// Data of one frame besides its fixed metadata, such as regions of interest. The core does not interpret them.
pub type Attachments = Named;

/// Byte strings by name, in the order in which they were set.
///
/// ```
/// # use xmem_shm::abi::named as xmem_core;
/// let mut sticky = xmem_core::Sticky::new();
/// sticky.set("caps", "video/x-raw,format=NV12");
/// assert_eq!(sticky.text("caps"), Some("video/x-raw,format=NV12"));
/// ```
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Named {
    /// Shared by clones until one of them changes. `None`: there are none.
    entries: Option<Arc<Entries>>,
}

type Entries = Vec<(String, Vec<u8>)>;

/// The size of an encoded entry in bytes.
pub fn entry_len(key: &str, value: &[u8]) -> usize {
    8 + key.len() + value.len()
}

impl Named {
    /// No entries.
    pub fn new() -> Self {
        Self::default()
    }

    fn entries(&self) -> &[(String, Vec<u8>)] {
        self.entries.as_ref().map_or(&[], |entries| entries)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_none()
    }

    /// Sets an entry. Replaces the entry with this name.
    pub fn set(&mut self, key: &str, value: impl Into<Vec<u8>>) {
        let value = value.into();
        let entries = Arc::make_mut(self.entries.get_or_insert_default());
        match entries.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => entries.push((key.to_owned(), value)),
        }
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: &str) {
        let _ = self.take(key);
    }

    /// Removes an entry and returns it.
    pub fn take(&mut self, key: &str) -> Option<Vec<u8>> {
        let at = self.entries().iter().position(|(k, _)| k == key)?;
        let entries = Arc::make_mut(self.entries.as_mut()?);
        let (_, value) = entries.remove(at);
        if entries.is_empty() {
            self.entries = None;
        }
        Some(value)
    }

    /// The bytes of an entry.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries()
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_slice())
    }

    /// The text of an entry, if it is UTF-8.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(|v| std::str::from_utf8(v).ok())
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries()
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_slice()))
    }

    /// The encoded size in bytes: the room (`SlotSpec::attachments`) that attachments need.
    pub fn encoded_len(&self) -> usize {
        self.entries().iter().map(|(k, v)| entry_len(k, v)).sum()
    }

    /// The entries as bytes, for [`decode`](Self::decode).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len());
        for (key, value) in self.entries() {
            for part in [key.as_bytes(), value.as_slice()] {
                (part.len() as u32).put(&mut out);
                out.extend_from_slice(part);
            }
        }
        out
    }

    /// Decodes bytes that another process wrote. `None`: they are invalid.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
            let len = u32::take(bytes)?;
            bytes.split_off(..len as usize)
        }
        let mut entries = Vec::new();
        while !bytes.is_empty() {
            if entries.len() == MAX_NAMED_ENTRIES {
                return None;
            }
            let key = std::str::from_utf8(part(&mut bytes)?).ok()?.to_owned();
            entries.push((key, part(&mut bytes)?.to_vec()));
        }
        let entries = (!entries.is_empty()).then(|| entries.into());
        Some(Self { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::Sticky;

    #[test]
    fn round_trips_and_refuses_invalid_values() {
        let mut sticky = Sticky::new();
        sticky.set("caps", "a/b");
        sticky.set("empty", "");
        sticky.set("caps", "c/d");
        let bytes = sticky.encode();
        assert_eq!(bytes.len(), sticky.encoded_len());
        assert_eq!(Sticky::decode(&bytes), Some(sticky));
        assert_eq!(Sticky::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Sticky::decode(&[0xff; 64]), None);
        assert_eq!(Sticky::decode(&[]), Some(Sticky::new()));
    }

    #[test]
    fn a_clone_is_not_affected_by_changes() {
        let mut first = Sticky::new();
        first.set("a", "1");
        let second = first.clone();
        first.set("a", "2");
        assert_eq!((first.text("a"), second.text("a")), (Some("2"), Some("1")));
        first.remove("a");
        assert!(first.is_empty() && !second.is_empty());
        assert_eq!(first, Sticky::new());
    }
}
