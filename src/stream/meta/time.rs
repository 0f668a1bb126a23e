// SPDX-License-Identifier: MPL-2.0

//! Times of other clocks.

// The bindings do not expect a meta without a time.
#![allow(unsafe_code)]

use gst::{MetaRef, glib};
use gst_video::{ValidVideoTimeCode, VideoTimeCodeFlags, VideoTimeCodeMeta};
use minicbor::{Decode, Encode};

use super::kind::{Kind, Why};
use crate::stream::{frame::Format, text};

/// The time on another clock, such as an NTP server's or a camera's.
#[derive(Debug, Encode, Decode)]
pub(super) struct Reference {
    /// Caps that identify the clock, as text.
    #[n(0)]
    clock: String,
    /// In nanoseconds.
    #[n(1)]
    timestamp: u64,
    #[n(2)]
    duration: Option<u64>,
}

impl Kind for Reference {
    const KEY: &'static str = "meta:GstReferenceTimestampMeta/1";
    type Meta = gst::ReferenceTimestampMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        // SAFETY: reads a number of a live meta of this kind.
        let timestamp = unsafe { (*meta.as_ptr()).timestamp };
        Ok(Some(Self {
            clock: meta.reference().to_string(),
            timestamp,
            duration: meta.duration().map(gst::ClockTime::nseconds),
        }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        let Some(clock) = text::to_caps(&record.clock) else {
            return Err("its clock is invalid".into());
        };
        let time = |time: u64| (time != u64::MAX).then(|| gst::ClockTime::from_nseconds(time));
        let Some(timestamp) = time(record.timestamp) else {
            return Err("it has no time".into());
        };
        let duration = record.duration.and_then(time);
        gst::ReferenceTimestampMeta::add(buffer, &clock, timestamp, duration);
        Ok(())
    }
}

/// SMPTE time code.
#[derive(Debug, Encode, Decode)]
pub(super) struct TimeCode {
    /// Numerator and denominator.
    #[n(0)]
    fps: (i32, i32),
    #[n(1)]
    flags: u32,
    /// Hours, minutes, seconds, frames, and the number of the field.
    #[n(2)]
    time: [u32; 5],
    /// The date and time of 00:00:00:00, in ISO 8601.
    #[n(3)]
    latest_daily_jam: Option<String>,
}

impl Kind for TimeCode {
    const KEY: &'static str = "meta:GstVideoTimeCodeMeta/1";
    type Meta = VideoTimeCodeMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        // SAFETY: reads numbers of a live meta of this kind.
        let config = unsafe { &(*meta.as_ptr()).tc.config };
        let code = meta.tc();
        let jam = code.latest_daily_jam();
        let (Ok(numer), Ok(denom)) = (i32::try_from(config.fps_n), i32::try_from(config.fps_d))
        else {
            return Err("its frame rate cannot be".into());
        };
        Ok(Some(Self {
            fps: (numer, denom),
            flags: code.flags().bits(),
            time: [
                code.hours(),
                code.minutes(),
                code.seconds(),
                code.frames(),
                code.field_count(),
            ],
            latest_daily_jam: jam
                .and_then(|jam| jam.format("%Y-%m-%dT%H:%M:%S.%f%:z").ok())
                .map(String::from),
        }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        let (numer, denom) = record.fps;
        if numer <= 0 || denom <= 0 {
            return Err("its frame rate cannot be".into());
        }
        let jam = record
            .latest_daily_jam
            .map(|jam| {
                let text = Some(jam).filter(|jam| !jam.contains('\0'));
                text.and_then(|text| {
                    glib::DateTime::from_iso8601(&text, Some(&glib::TimeZone::utc())).ok()
                })
                .ok_or_else(|| Why::from("its date is invalid"))
            })
            .transpose()?;
        let [hours, minutes, seconds, frames, field_count] = record.time;
        let code = ValidVideoTimeCode::new(
            gst::Fraction::new(numer, denom),
            jam.as_ref(),
            VideoTimeCodeFlags::from_bits_truncate(record.flags),
            hours,
            minutes,
            seconds,
            frames,
            field_count,
        );
        let code = code.map_err(|_| Why::from("there is no such time"))?;
        VideoTimeCodeMeta::add(buffer, &code);
        Ok(())
    }
}
