// SPDX-License-Identifier: MPL-2.0

//! Counts metas that could not be shared, and reports each name once.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::lock;

/// Limits for names, because another process may invent them.
const MAX_NAMES: usize = 64;
const MAX_NAME_LEN: usize = 64;
/// The name for losses without a count of their own.
const OTHERS: &str = "others";

/// The losses of one element since its start.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    inner: Mutex<Inner>,
    has_news: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    counts: BTreeMap<String, u64>,
    news: Vec<(String, String)>,
}

impl Losses {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Restarts the counts at 0.
    pub(crate) fn reset(&self) {
        *self.inner() = Inner::default();
    }

    /// Counts a meta of this name.
    pub(super) fn note(&self, name: &str, why: &str) {
        let mut inner = self.inner();
        let name = name.get(..MAX_NAME_LEN).unwrap_or(name);
        let name = if name.len() > MAX_NAME_LEN || !is_field_name(name) {
            OTHERS
        } else {
            name
        };
        if let Some(count) = inner.counts.get_mut(name) {
            *count += 1;
            return;
        }
        let name = if inner.counts.len() < MAX_NAMES {
            name
        } else {
            OTHERS
        };
        let count = inner.counts.entry(name.to_owned()).or_default();
        *count += 1;
        if *count == 1 {
            inner.news.push((name.to_owned(), why.to_owned()));
            self.has_news.store(true, Ordering::Release);
        }
    }

    /// Whether there are new losses since the last call of [`news`](Self::news).
    pub(crate) fn has_news(&self) -> bool {
        // Called for each frame. Acquire: pairs with the store of `note`.
        self.has_news.load(Ordering::Acquire)
    }

    /// The new losses since the last call: names and reasons.
    pub(crate) fn news(&self) -> Vec<(String, String)> {
        if !self.has_news() {
            return Vec::new();
        }
        self.has_news.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.inner().news)
    }

    /// How many metas were lost.
    pub(crate) fn total(&self) -> u64 {
        self.inner().counts.values().sum()
    }

    /// The number of losses for each name.
    pub(crate) fn by_name(&self) -> gst::Structure {
        let mut structure = gst::Structure::new_empty("application/x-xmem-metas");
        for (name, count) in &self.inner().counts {
            structure.set(name.as_str(), *count);
        }
        structure
    }
}

/// Whether GStreamer accepts this as the name of a field.
fn is_field_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_+:./".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_reported_once_and_limited() {
        gst::init().unwrap();
        let losses = Losses::default();
        losses.note("GstX", "why");
        losses.note("GstX", "why");
        assert_eq!(losses.news(), [("GstX".to_owned(), "why".to_owned())]);
        for n in 0..1000 {
            losses.note(&format!("n{n}"), "");
            losses.note(&format!("{n}{}", "ü".repeat(n)), "");
        }
        assert_eq!(losses.total(), 2002);
        assert!(losses.by_name().n_fields() <= MAX_NAMES + 1);
        assert!(losses.news().len() <= MAX_NAMES);
        assert!(losses.news().is_empty());
        losses.reset();
        assert_eq!(losses.total(), 0);
    }
}
