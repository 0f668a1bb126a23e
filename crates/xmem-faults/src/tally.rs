// SPDX-License-Identifier: MPL-2.0

//! The reports of the processes, added up. A report is a line `tally KEY=N ...` with what is new since the last one.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Counters by name. Names that begin with `max` keep the largest value instead of the sum.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally(BTreeMap<String, u64>);

impl Tally {
    pub(crate) fn add(&mut self, key: &str, value: u64) {
        let entry = self.0.entry(key.to_owned()).or_default();
        *entry = if key.starts_with("max") {
            (*entry).max(value)
        } else {
            *entry + value
        };
    }

    pub(crate) fn max(&mut self, key: &str, time: Duration) {
        self.add(key, u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    pub(crate) fn get(&self, key: &str) -> u64 {
        self.0.get(key).copied().unwrap_or(0)
    }

    /// The report, and nothing new from here on.
    pub(crate) fn take_line(&mut self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let mut line = "tally".to_owned();
        for (key, value) in std::mem::take(&mut self.0) {
            let _ = write!(line, " {key}={value}");
        }
        Some(line)
    }

    /// Adds a report, with a prefix to its names.
    pub(crate) fn add_line(&mut self, line: &str, role: &str) {
        let Some(rest) = line.strip_prefix("tally ") else {
            return;
        };
        for (key, value) in rest.split(' ').filter_map(|pair| pair.split_once('=')) {
            if let Ok(value) = value.parse() {
                let name = match key.strip_prefix("max-") {
                    Some(key) => format!("max-{role}-{key}"),
                    None => format!("{role}-{key}"),
                };
                self.add(&name, value);
            }
        }
    }
}
