// SPDX-License-Identifier: MPL-2.0

//! What arrives of a stream: times, events, frames that are lost or late, and the ends of processes. Each module has one subject.

mod audio_video;
mod before_the_start;
mod clocks;
mod history;
mod key_frames;
mod look_ahead;
mod lost_frames;
mod outside_segment;
mod queues;
mod stopped;
mod stream_headers;
#[path = "../support/mod.rs"]
mod support;
mod timestamp_modes;
mod timing;
mod trick_modes;
mod two_processes;
mod uri;
mod waiting_sinks;
