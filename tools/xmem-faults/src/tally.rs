// SPDX-License-Identifier: MPL-2.0

//! Adds up the reports of the processes. A report is a line `tally KEY=N ...` with the changes since the last report.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Counters by name. A name that begins with `max` keeps the largest value, the others the sum.
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

    /// Returns the report and resets the counters.
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

    /// Adds a report. `role` is the prefix of its names.
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
