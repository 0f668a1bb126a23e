// SPDX-License-Identifier: MPL-2.0

//! Compares streams buffer by buffer.

use std::{
    fmt,
    hash::{DefaultHasher, Hasher},
};

use gst::prelude::*;
use gst_base::prelude::*;

use super::pixels;

/// A buffer as an element behind the stream gets it.
#[derive(PartialEq, Eq)]
pub struct Record {
    caps: String,
    size: usize,
    /// Of the bytes. Bytes between the rows of a picture are left out, since their content is not defined.
    hash: u64,
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
            "{} bytes ({:x}), pts {}, dts {}, duration {}, {:?}, {}",
            self.size,
            self.hash,
            time(self.pts),
            time(self.dts),
            time(self.duration),
            self.flags,
            self.caps
        )
    }
}

impl Record {
    pub fn of(sample: &gst::Sample) -> Self {
        let buffer = sample.buffer().unwrap();
        let caps = sample.caps().map(ToString::to_string).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        if caps.starts_with("video/x-raw") && buffer.size() > 0 {
            hasher.write(&pixels(sample));
        } else {
            hasher.write(&buffer.map_readable().unwrap());
        }
        Self {
            caps,
            size: buffer.size(),
            hash: hasher.finish(),
            pts: buffer.pts(),
            dts: buffer.dts(),
            duration: buffer.duration(),
            // Says only where the memory comes from.
            flags: buffer.flags() - gst::BufferFlags::TAG_MEMORY,
        }
    }

    /// The name of its format, such as `audio/mpeg mpegversion=4`.
    pub fn codec(&self) -> String {
        let caps: gst::Caps = self.caps.parse().unwrap();
        let Some(structure) = caps.structure(0) else {
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
    pub fn content(&self) -> (usize, u64) {
        (self.size, self.hash)
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
