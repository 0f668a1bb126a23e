// SPDX-License-Identifier: MPL-2.0

//! Prints log messages of the core on standard error, for `--verbose`.

use log::{LevelFilter, Log, Metadata, Record};

use xmem_core::discovery::printable;

use crate::format::to_stderr;

struct ToStandardError;

impl Log for ToStandardError {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let level = record.level().as_str().to_lowercase();
        let line = printable(&record.args().to_string());
        to_stderr(format_args!("{level}: {line}"));
    }

    fn flush(&self) {}
}

/// Installs the logger. Must be called only once.
pub(crate) fn init() {
    if log::set_logger(&ToStandardError).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}
