// SPDX-License-Identifier: MPL-2.0

//! `xmem share SOURCE --pool POOL`

mod alone;
mod playing;
mod source;

use std::fmt::Display;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use xmem_core::discovery::printable;

use crate::Error;
use crate::child::{self, END_TIMEOUT};
use crate::cli::Share;
use crate::format::to_stderr;
use crate::launch::{TOOL, WITH_ALPHA, not_started};
use crate::tool::{Event, is_stopped, stop_on_signals};
use playing::{Outcome, Playing, has_frame};
use source::Source;

/// The delay before a restart: it doubles after each run in which no frame was seen.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A camera may allow one client, and notices that it has gone when it sends the next picture.
const RELEASE: Duration = Duration::from_millis(300);

pub(crate) fn run(share: &Share, verbose: bool) -> Result<(), Error> {
    match share.idle {
        Some(_) => alone::run(&share.pool, || play(share, verbose)),
        None => play(share, verbose),
    }
}

fn play(share: &Share, verbose: bool) -> Result<(), Error> {
    let mut source = Source::of(&share.source)?;
    if share.latency.is_some() && !source.is_rtsp() {
        return Err("--latency is for addresses that begin with rtsp".into());
    }
    if !share.also.is_empty() && share.format == "any" {
        return Err("--also scales raw frames: name their format in place of --format any".into());
    }
    child::run(Command::new(TOOL).arg("--version"), END_TIMEOUT).map_err(not_started)?;
    let (sender, events) = channel();
    stop_on_signals(sender.clone())?;
    let plays_once = matches!(source, Source::File(_)) && !share.repeat && !source.is_picture();
    let mut wait = BACKOFF.0;
    let mut is_wanted = !share.on_demand;
    let (mut has_alpha, mut has_shared) = (false, false);
    // Taken from the previous run, because a run may be shorter than the time for which a source stays open.
    let mut last_consumer = None;
    to_stderr(format_args!(
        "{source}: sharing it in the pool {}",
        printable(&share.pool.to_string_lossy())
    ));
    loop {
        if !is_wanted {
            to_stderr(format_args!("{source}: closed until a consumer comes"));
        }
        let opened = is_wanted.then_some(&source);
        let playing = Playing::start(share, opened, plays_once, has_alpha, sender.clone());
        let mut playing = match playing {
            Ok(playing) => playing,
            // Processes, threads or memory may be short for a moment.
            Err(error) if has_shared && share.idle.is_none() => {
                if is_stopped_before_retry(&source, error, &mut wait, &events) {
                    return Ok(());
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        has_shared = true;
        if let Some(time) = last_consumer.take() {
            playing.last_consumer = time;
        }
        let outcome = playing.watch(share, verbose, &source, &events)?;
        let has_played = playing.published > 0;
        let reason = match outcome {
            Outcome::Stopped => return Ok(()),
            Outcome::Changed => {
                is_wanted = !is_wanted;
                if is_wanted {
                    to_stderr(format_args!("{source}: opened for a consumer"));
                }
                continue;
            }
            Outcome::Pictures => {
                source.set_has_pictures();
                if is_stopped(&events, RELEASE) {
                    return Ok(());
                }
                continue;
            }
            Outcome::Fatal(reason) if reason.contains(WITH_ALPHA) && !has_alpha => {
                has_alpha = true;
                continue;
            }
            Outcome::Fatal(reason) => return Err(reason.into()),
            Outcome::Failed(reason) if plays_once => return Err(reason.into()),
            Outcome::Eos if plays_once && (has_played || has_frame(share, &source, has_alpha)) => {
                return Ok(());
            }
            Outcome::Eos if plays_once => {
                return Err(
                    format!("{source}: at its end without a frame. Is the file complete?").into(),
                );
            }
            // The next run of a file.
            Outcome::Eos if share.repeat && has_played => {
                last_consumer = Some(playing.last_consumer);
                continue;
            }
            Outcome::Eos if !has_played => "at its end before a frame was seen".to_owned(),
            Outcome::Eos => "at its end".to_owned(),
            Outcome::Failed(reason) => reason,
        };
        if has_played {
            wait = BACKOFF.0;
        } else if source.try_another_way(&reason) {
            continue;
        }
        if share.idle.is_some() {
            let advice = match source {
                Source::Address(_) => ". Check the address, its password and the network",
                _ => "",
            };
            return Err(format!("{source}: {reason}{advice}").into());
        }
        is_wanted = !share.on_demand;
        if source.is_absent() {
            to_stderr(format_args!("{source}: {reason}; waiting for the device"));
            while source.is_absent() {
                if is_stopped(&events, BACKOFF.0) {
                    return Ok(());
                }
            }
            wait = BACKOFF.0;
            continue;
        }
        if is_stopped_before_retry(&source, reason, &mut wait, &events) {
            return Ok(());
        }
    }
}

/// Prints that the source will be started again, and waits for that time, which is longer for the next failure. Returns whether the
/// user stopped the command meanwhile.
fn is_stopped_before_retry(
    source: &Source,
    reason: impl Display,
    wait: &mut Duration,
    events: &Receiver<Event>,
) -> bool {
    to_stderr(format_args!(
        "{source}: {reason}; starting it again in {wait:?}"
    ));
    let is_stopped = is_stopped(events, *wait);
    *wait = (2 * *wait).min(BACKOFF.1);
    is_stopped
}
