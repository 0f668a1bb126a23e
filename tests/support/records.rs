// SPDX-License-Identifier: MPL-2.0

//! Compares streams buffer by buffer.

use std::fmt;

use gst::{glib, prelude::*};
use gst_base::prelude::*;

use super::pixels;

/// A buffer as an element behind the stream gets it.
#[derive(PartialEq, Eq)]
pub struct Record {
    caps: Option<gst::Caps>,
    size: usize,
    /// Of the bytes. Bytes between the rows of a picture are left out, since their content is not defined.
    hash: String,
    pub pts: Option<gst::ClockTime>,
    dts: Option<gst::ClockTime>,
    duration: Option<gst::ClockTime>,
    flags: gst::BufferFlags,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |time: Option<gst::ClockTime>| {
            time.map_or_else(|| "-".to_owned(), |time| time.nseconds().to_string())
        };
        write!(
            f,
            "{} bytes ({}), pts {}, dts {}, duration {}, {:?}, {}",
            self.size,
            self.hash,
            time(self.pts),
            time(self.dts),
            time(self.duration),
            self.flags,
            self.caps
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default()
        )
    }
}

impl Record {
    pub fn of(sample: &gst::Sample) -> Self {
        let buffer = sample.buffer().unwrap();
        let caps = sample.caps();
        let structure = caps.and_then(|caps| caps.structure(0));
        let is_raw = structure.is_some_and(|it| it.name() == "video/x-raw");
        // In C: tests are built without optimisation.
        let mut checksum = glib::Checksum::new(glib::ChecksumType::Md5).unwrap();
        if is_raw && buffer.size() > 0 {
            checksum.update(&pixels(sample));
        } else {
            checksum.update(&buffer.map_readable().unwrap());
        }
        Self {
            caps: caps.map(ToOwned::to_owned),
            size: buffer.size(),
            hash: checksum.string().unwrap(),
            pts: buffer.pts(),
            dts: buffer.dts(),
            duration: buffer.duration(),
            // Says only where the memory comes from.
            flags: buffer.flags() - gst::BufferFlags::TAG_MEMORY,
        }
    }

    /// The name of its format, such as `audio/mpeg mpegversion=4`.
    pub fn codec(&self) -> String {
        let structure = self.caps.as_ref().and_then(|caps| caps.structure(0));
        let Some(structure) = structure else {
            return "unknown".to_owned();
        };
        let mut name = structure.name().to_string();
        for field in [
            "mpegversion",
            "layer",
            "wmaversion",
            "wmvversion",
            "variant",
        ] {
            if let Ok(value) = structure.value(field)
                && let Ok(value) = value.serialize()
            {
                name.push_str(&format!(" {field}={value}"));
            }
        }
        name
    }

    /// Only its bytes.
    pub fn content(&self) -> (usize, String) {
        (self.size, self.hash.clone())
    }
}

/// The first difference between two streams.
pub fn difference(right: &[Record], other: &[Record]) -> Option<String> {
    let at = right.iter().zip(other).position(|(one, two)| one != two);
    match at {
        Some(at) => Some(format!("{at}: {:?}\n   is {:?}", right[at], other[at])),
        None if right.len() != other.len() => {
            Some(format!("{} buffers are {}", right.len(), other.len()))
        }
        None => None,
    }
}

/// The sink of a pipeline that gets each buffer, also those outside of the segment.
pub fn catcher(pipeline: &gst::Pipeline, name: &str) -> gst_app::AppSink {
    let app = pipeline.by_name(name).unwrap();
    let sink = app.downcast_ref::<gst_base::BaseSink>().unwrap();
    sink.set_drop_out_of_segment(false);
    app.downcast().unwrap()
}

/// The buffers of a stream until its end.
pub fn caught(app: &gst_app::AppSink) -> Vec<Record> {
    std::iter::from_fn(|| app.pull_sample().ok())
        .map(|sample| Record::of(&sample))
        .collect()
}
