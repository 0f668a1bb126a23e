// SPDX-License-Identifier: MPL-2.0

//! The properties of a pool that are known before joining it.

use std::collections::BTreeMap;

use xmem_core::{ConnectError, Delivery, PoolStats};

use crate::stream::{sticky, text};

/// A pool that this process can join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) name: String,
    /// The path of its socket.
    pub(super) path: String,
    /// The producer's process ID.
    pub(super) pid: u32,
    pub(super) delivery: Delivery,
    /// `None`: the producer has not set any yet, or is not a GStreamer pipeline.
    pub(super) caps: Option<gst::Caps>,
}

impl Pool {
    fn new(name: String, path: String, stats: PoolStats) -> Self {
        Self {
            name,
            path,
            pid: stats.pid,
            delivery: stats.delivery,
            caps: stats
                .sticky
                .iter()
                .find(|(key, _)| key == sticky::CAPS)
                .and_then(|(_, caps)| text::to_caps(caps)),
        }
    }

    /// The class of the device.
    pub(super) fn class(&self) -> &'static str {
        let media = self.caps.as_ref().and_then(|caps| caps.structure(0));
        let media = media.map(|structure| structure.name().as_str());
        match media.and_then(|media| media.split('/').next()) {
            Some("video" | "image") => "Video/Source",
            Some("audio") => "Audio/Source",
            _ => "Source",
        }
    }
}

/// The pools of the runtime directory by name, without those that this user may not join. A stopped producer does not answer;
/// then the entry in `known` is kept, and the scan takes a second.
pub(super) fn scan(known: &BTreeMap<String, Pool>) -> BTreeMap<String, Pool> {
    let mut live = xmem_core::discovery::pools();
    live.retain(|entry| entry.live);
    // By name, so that another user's directory is not used by mistake.
    let names: Vec<_> = live.iter().map(|entry| &entry.name).collect();
    let mut found = BTreeMap::new();
    for (answer, entry) in xmem_core::discovery::query_all(&names)
        .into_iter()
        .zip(&live)
    {
        let pool = match answer {
            Ok(stats) => {
                let path = entry.path.to_string_lossy().into_owned();
                Some(Pool::new(entry.name.clone(), path, stats))
            }
            Err(ConnectError::NoAnswer { .. }) => known.get(&entry.name).cloned(),
            Err(_) => None,
        };
        found.extend(pool.map(|pool| (entry.name.clone(), pool)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps_of(text: &str) -> Option<gst::Caps> {
        let mut stats = PoolStats::default();
        stats
            .sticky
            .push((sticky::CAPS.to_owned(), text.to_owned()));
        Pool::new("p".to_owned(), "/p.sock".to_owned(), stats).caps
    }

    /// Data of a producer must not end this program.
    #[test]
    fn caps_of_another_process_are_not_parsed_without_bound() {
        gst::init().unwrap();
        assert!(caps_of("video/x-raw, format=NV12").is_some());
        assert_eq!(caps_of("no caps, at all=("), None);
        let deep = "{".repeat(500_000);
        assert_eq!(caps_of(&format!("video/x-raw, format={deep}")), None);
    }
}
