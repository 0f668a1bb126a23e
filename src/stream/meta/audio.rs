// SPDX-License-Identifier: MPL-2.0

//! Metadata of audio.

use gst::{GenericFormattedValue, MetaRef, format};
use gst_audio::{AudioClippingMeta, AudioLayout, AudioLevelMeta, AudioMeta};
use minicbor::{Decode, Encode};

use super::kind::{Kind, Why};
use crate::stream::frame::Format;

/// The maximum number of channels with their own planes.
const MAX_CHANNELS: usize = 1024;

/// The number of samples, and the position of each channel.
#[derive(Debug, Encode, Decode)]
pub(super) struct Audio {
    /// The number of samples of each channel.
    #[n(0)]
    samples: u64,
    /// The first byte of each channel. Empty: the samples are interleaved.
    #[n(1)]
    offsets: Vec<u64>,
}

impl Kind for Audio {
    const KEY: &'static str = "meta:GstAudioMeta/1";
    type Meta = AudioMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        Ok(Some(Self {
            samples: meta.samples() as u64,
            offsets: meta.offsets().iter().map(|offset| *offset as u64).collect(),
        }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, format: &Format) -> Result<(), Why> {
        let Some(info) = &format.audio_info else {
            return Err("the caps are not those of raw audio".into());
        };
        let outside = || Why::from("samples lie outside the payload");
        let planar = info.layout() == AudioLayout::NonInterleaved;
        let channels = if planar { info.channels() as usize } else { 0 };
        if record.offsets.len() != channels || channels > MAX_CHANNELS {
            return Err("it is for another number of channels".into());
        }
        let unit = if planar { info.width() / 8 } else { info.bpf() };
        let plane = record.samples.checked_mul(u64::from(unit));
        let size = buffer.size() as u64;
        let ends_inside = |offset: u64| {
            plane
                .and_then(|plane| offset.checked_add(plane))
                .is_some_and(|end| end <= size)
        };
        let first = if planar { None } else { Some(0) };
        if !record.offsets.iter().copied().chain(first).all(ends_inside) {
            return Err(outside());
        }
        let offsets: Option<Vec<_>> = record
            .offsets
            .iter()
            .map(|offset| usize::try_from(*offset).ok())
            .collect();
        let (Ok(samples), Some(offsets)) = (usize::try_from(record.samples), offsets) else {
            return Err(outside());
        };
        AudioMeta::add(buffer, info, samples, &offsets)
            .map(drop)
            .map_err(|error| error.message.into_owned().into())
    }
}

/// The loudness.
#[derive(Debug, Encode, Decode)]
pub(super) struct Level {
    /// In -dBov, from 0 to 127.
    #[n(0)]
    level: u8,
    #[n(1)]
    voice: bool,
}

impl Kind for Level {
    const KEY: &'static str = "meta:GstAudioLevelMeta/1";
    type Meta = AudioLevelMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        Ok(Some(Self {
            level: meta.level(),
            voice: meta.voice_activity(),
        }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        if record.level > 127 {
            return Err("there is no such level".into());
        }
        AudioLevelMeta::add(buffer, record.level, record.voice);
        Ok(())
    }
}

/// The part of the decoded audio to leave out.
#[derive(Debug, Encode, Decode)]
pub(super) struct Clipping {
    /// True: in nanoseconds. False: in samples.
    #[n(0)]
    time: bool,
    #[n(1)]
    start: u64,
    #[n(2)]
    end: u64,
}

impl Kind for Clipping {
    const KEY: &'static str = "meta:GstAudioClippingMeta/1";
    type Meta = AudioClippingMeta;
    type Record<'a> = Self;

    fn describe(meta: &MetaRef<'_, Self::Meta>) -> Result<Option<Self>, Why> {
        use GenericFormattedValue::{Default, Time};
        let (time, start, end) = match (meta.start(), meta.end()) {
            (Time(Some(start)), Time(Some(end))) => (true, start.nseconds(), end.nseconds()),
            (Default(Some(start)), Default(Some(end))) => (false, *start, *end),
            _ => return Err("it counts in neither time nor samples".into()),
        };
        Ok(Some(Self { time, start, end }))
    }

    fn add(record: Self, buffer: &mut gst::BufferRef, _: &Format) -> Result<(), Why> {
        let Self { time, start, end } = record;
        // In GStreamer, some large numbers mean that there is no clipping.
        if start.max(end) > i64::MAX.unsigned_abs() {
            return Err("it is longer than anything".into());
        }
        if time {
            let time = gst::ClockTime::from_nseconds;
            AudioClippingMeta::add(buffer, time(start), time(end));
        } else {
            let samples = format::Default::from_u64;
            AudioClippingMeta::add(buffer, samples(start), samples(end));
        }
        Ok(())
    }
}
