// SPDX-License-Identifier: MPL-2.0

//! Writes the core's messages to GStreamer's debug log.

use std::sync::LazyLock;

use gst::{glib, prelude::*};
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::debug_category;

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| debug_category("xmemcore", "The pools, below the elements"));

struct ToGStreamer;

impl Log for ToGStreamer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        CAT.above_threshold(to_gst(metadata.level()))
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let file = record.file().unwrap_or_default();
        let file = glib::GString::from_string_checked(file.to_owned()).unwrap_or_default();
        CAT.log(
            None::<&glib::Object>,
            to_gst(record.level()),
            file.as_gstr(),
            record.module_path().unwrap_or_default(),
            record.line().unwrap_or_default(),
            *record.args(),
        );
    }

    fn flush(&self) {}
}

fn to_gst(level: Level) -> gst::DebugLevel {
    match level {
        Level::Error => gst::DebugLevel::Error,
        Level::Warn => gst::DebugLevel::Warning,
        Level::Info => gst::DebugLevel::Info,
        Level::Debug => gst::DebugLevel::Debug,
        Level::Trace => gst::DebugLevel::Trace,
    }
}

/// Installs the logger, if this copy of the crate `log` belongs to the plugin alone. A program that links the plugin has one
/// logger for all of its code.
pub(crate) fn init(plugin: &gst::Plugin) {
    if plugin.filename().is_none() {
        return;
    }
    LazyLock::force(&CAT);
    if log::set_logger(&ToGStreamer).is_ok() {
        // Each line is compared with the category's threshold, which can change at any time without a notification.
        log::set_max_level(LevelFilter::Trace);
    }
}
