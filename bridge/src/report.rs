// SPDX-License-Identifier: MPL-2.0

//! Prints states, figures and, with `--verbose`, log messages on standard error.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};
use xmem_core::discovery::printable;

/// The interval between two lines of figures.
const EVERY: Duration = Duration::from_secs(60);

/// Prints a line. Control characters are replaced, because the line may contain text from another host.
pub(crate) fn line(what: impl Display) {
    let _ = writeln!(
        io::stderr(),
        "xmem-bridge: {}",
        printable(&what.to_string())
    );
}

/// Prints a state when it changes.
#[derive(Debug, Default)]
pub(crate) struct State(String);

impl State {
    /// Returns whether the state has changed.
    pub(crate) fn set(&mut self, name: &str, state: &str) -> bool {
        let is_new = state != self.0;
        if is_new {
            line(format_args!("{name}: {state}"));
            self.0 = state.to_owned();
        }
        is_new
    }
}

/// The time of the next line of figures.
#[derive(Debug)]
pub(crate) struct Minute(Instant);

impl Minute {
    pub(crate) fn new(now: Instant) -> Self {
        Self(now + EVERY)
    }

    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        let is_over = now >= self.0;
        if is_over {
            self.0 = now + EVERY;
        }
        is_over
    }
}

struct ToStandardError;

impl Log for ToStandardError {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        // Zenoh's messages below `Warn` are left out, because Zenoh logs several lines for each message that it transfers.
        of.target().starts_with("xmem") || of.level() <= Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = record.level().as_str().to_lowercase();
        line(format_args!("{level}: {}", record.args()));
    }

    fn flush(&self) {}
}

/// Prints log messages of the bridge and of xmem-core, and errors and warnings of Zenoh. Call it once.
pub(crate) fn log_to_standard_error() {
    if log::set_logger(&ToStandardError).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}
