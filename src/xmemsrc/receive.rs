// SPDX-License-Identifier: MPL-2.0

//! Receives the next entry of the pool, and turns it into the buffer that the element outputs.

use std::mem::replace;

use xmem_core::{
    Consumer, ReadLease,
    follow::{Follower, Step, Taken},
};

use super::{
    base::CAT,
    buffer::{self, Converter, Outcome, Placement},
    connection::{self, WARN_AFTER},
    device, downstream,
    run::{Header, Report, SourceContext, Started},
    settings::XmemSrcOverBudget,
    times::BufferTimes,
};
use crate::stream::{event, frame::Memory};

/// Returns the next buffer.
pub(super) fn next(
    source: SourceContext<'_>,
    follower: &mut Follower,
    started: &mut Started,
) -> Result<gst::Buffer, gst::FlowError> {
    let mut reported_waiting = false;
    loop {
        let is_waiting = follower.consumer().is_none() && !reported_waiting;
        let time = is_waiting.then_some(WARN_AFTER);
        match follower.step(time, |taken| take(source, started, taken)) {
            Ok(Step::Took(outcome)) => {
                started.note_taken();
                let Some(outcome) = outcome? else { continue };
                let outcome = match started.header() {
                    Header::Sent => outcome,
                    _ => begin(source, started, outcome)?,
                };
                if let Some(buffer) = deliver(source, started, follower, outcome)? {
                    source.outgoing.keep_times(source.element, &buffer);
                    return Ok(buffer);
                }
            }
            Ok(Step::Dropped(info, meta)) => {
                started.follow_sequence(source, &info, &meta);
                started.note_taken();
                report_drop(source, started, "over-budget=drop");
                started.note_gap();
            }
            Ok(Step::SmallBudget) => warn_of_budget(source, follower),
            Ok(Step::AllHeld) => warn_of_held_frames(source, follower),
            Ok(Step::Joined { again }) => {
                reported_waiting = false;
                connection::joined(source, follower, started, again);
            }
            Ok(Step::NoProducer { error, waited }) => {
                if waited >= WARN_AFTER && !replace(&mut reported_waiting, true) {
                    connection::warn_of_wait(source, follower, &error);
                }
            }
            Ok(Step::Lost(lost)) => connection::lost(source, &lost),
            Ok(Step::Eos) => connection::stream_ended(source, started),
            Ok(_) => {}
            Err(error) => return Err(connection::ended(source, follower, started, error)),
        }
    }
}

/// Called for the first frames of a stream.
#[cold]
fn begin(
    source: SourceContext<'_>,
    started: &mut Started,
    mut outcome: Outcome,
) -> Result<Outcome, gst::FlowError> {
    if let Outcome::Buffer(first, _) = &mut outcome {
        let (sent, is_late) = (started.header(), started.has_joined_late());
        let Some(header) = downstream::push_header(source, first, sent, is_late)? else {
            // It may have passed as a key frame, and the next frames depend on one that is still to come.
            started.note_gap();
            return Ok(Outcome::Undecodable);
        };
        started.set_header(header);
    }
    Ok(outcome)
}

/// Handles an entry. `None`: it was not a frame.
fn take(
    source: SourceContext<'_>,
    started: &mut Started,
    taken: Taken<'_>,
) -> Result<Option<Outcome>, gst::FlowError> {
    let lease = match &taken {
        Taken::Kept(lease) => lease,
        Taken::Lent(lease) => *lease,
    };
    downstream::follow(source, started, lease)?;
    if lease.meta().event {
        push_event(source, started, lease);
        return Ok(None);
    }
    if !started.is_decodable(source, lease.meta()) {
        return Ok(Some(Outcome::Undecodable));
    }
    let times = stamp(source, started, lease);
    if started.leaves_out(source, &times) {
        return Ok(Some(if started.stream().playback().is_coded() {
            Outcome::Undecodable
        } else {
            Outcome::Dropped
        }));
    }
    let outcome = match taken {
        Taken::Kept(lease) => {
            if lease.is_on_device() {
                device::receive(source, started, &lease, times, false)
            } else {
                let converter = Converter::new(source, started.stream_mut(), times);
                buffer::outcome(source, converter.in_place(lease, source.tally))
            }
        }
        Taken::Lent(_) if started.stream().format().memory == Memory::Dmabuf => {
            report_drop(source, started, "a copy of a DMA buffer is not one");
            Ok(Outcome::Dropped)
        }
        Taken::Lent(lease) if lease.is_on_device() => {
            device::receive(source, started, lease, times, true)
        }
        Taken::Lent(lease) => {
            let converter = Converter::new(source, started.stream_mut(), times);
            buffer::outcome(source, converter.copied(lease))
        }
    };
    outcome.map(Some)
}

/// The times of an entry. Follows a change of the latency, and sends another segment before an entry that needs it.
fn stamp(source: SourceContext<'_>, started: &mut Started, lease: &ReadLease) -> BufferTimes {
    let mut times = started.times(source.element, lease);
    if started.running_time().has_news() {
        started.follow_latency(source);
        // Now the producer keeps the next frames for longer.
        let is_cancelled = || source.canceller.is_cancelled();
        if started.running_time().gather(is_cancelled) {
            times = started.times(source.element, lease);
            started.follow_latency(source);
        }
    }
    if let Some(segment) = started.running_time().due_segment() {
        downstream::replace_segment(source, segment);
    }
    times
}

/// Sends an event downstream that was published between two frames.
#[cold]
fn push_event(source: SourceContext<'_>, started: &mut Started, lease: &ReadLease) {
    let meta = lease.meta();
    if meta.attachments.is_empty() {
        // The entry only brought new sticky state.
        return;
    }
    let times = stamp(source, started, lease);
    let segment = source.outgoing.segment(source.element);
    match event::unpack(meta, times.pts, times.duration, segment.downcast_ref()) {
        Some(event) => downstream::push(source, event),
        None => gst::debug!(
            CAT,
            obj = source.element,
            "Unknown event {:?}",
            meta.attachments
        ),
    }
}

/// Warns that the budget is used up, and that the producer granted fewer slots than were requested.
#[cold]
fn warn_of_budget(source: SourceContext<'_>, follower: &Follower) {
    let Some(consumer) = follower.consumer() else {
        return;
    };
    let (budget, limit) = (consumer.budget(), consumer.budget_limit());
    let outcome = match source.settings.when_over_budget() {
        XmemSrcOverBudget::Copy => "copied",
        XmemSrcOverBudget::Drop => "dropped",
    };
    gst::element_warning!(
        source.element,
        gst::ResourceError::NoSpaceLeft,
        (
            "Frames of pool {:?} are {outcome}: downstream may hold {budget} at once. Raise {limit} on xmemsink",
            source.settings.pool
        )
    );
}

fn warn_of_held_frames(source: SourceContext<'_>, follower: &Follower) {
    let budget = follower.consumer().map_or(0, Consumer::budget);
    gst::element_warning!(
        source.element,
        gst::ResourceError::NoSpaceLeft,
        (
            "All frames of pool {:?} were dropped for two seconds: downstream holds {budget}, as many as it may. A sink holds its last \
             frame (enable-last-sample=false prevents that), an xmemsink its history. Raise max-held, or set over-budget=copy",
            source.settings.pool
        )
    );
}

/// Counts a frame, and sets the flags of its buffer.
fn deliver(
    source: SourceContext<'_>,
    started: &mut Started,
    follower: &Follower,
    outcome: Outcome,
) -> Result<Option<gst::Buffer>, gst::FlowError> {
    // The producer's statistics are updated before this element's, so they are never lower.
    let (mut buffer, placement) = match outcome {
        Outcome::Buffer(buffer, placement) => (buffer, placement),
        other => return count_lost(source, started, follower, &other).map(|()| None),
    };
    if placement == Placement::InPlace {
        source.stats.note_zero_copy();
    } else {
        count_copy(source, started, follower, placement);
    }
    if started.take_discont() {
        buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
    }
    gst::trace!(CAT, obj = source.element, "{placement:?} {buffer:?}");
    Ok(Some(buffer))
}

/// Counts a frame that has no buffer. `Err`: the element was stopped.
#[cold]
fn count_lost(
    source: SourceContext<'_>,
    started: &mut Started,
    follower: &Follower,
    outcome: &Outcome,
) -> Result<(), gst::FlowError> {
    if matches!(outcome, Outcome::Undecodable) {
        // Counted only in the producer's statistics, since this element counts it separately.
        follower.consumer().inspect(|it| it.note_dropped());
        source.stats.note_undecodable();
        return Ok(());
    }
    started.note_gap();
    follower.note_dropped();
    match outcome {
        Outcome::Cancelled => Err(gst::FlowError::Flushing),
        _ => Ok(()),
    }
}

/// Counts a copied frame, and logs the reason once.
#[inline(never)]
fn count_copy(
    source: SourceContext<'_>,
    started: &mut Started,
    follower: &Follower,
    placement: Placement,
) {
    follower.note_copied();
    if !started.reports(Report::Copies) {
        return;
    }
    let reason = match placement {
        Placement::OverBudget => "downstream holds as many as it may: see max-held",
        Placement::Reversed => {
            "the producer plays sound in reverse, and their samples are reversed"
        }
        Placement::Downloaded => "they are on a CUDA device, and download is set",
        _ if started.stream().format().memory == Memory::Cuda => {
            "their planes are not where GStreamer's CUDA elements expect them"
        }
        _ => "downstream cannot read their layout, since it does not know GstVideoMeta",
    };
    gst::warning!(
        gst::CAT_PERFORMANCE,
        obj = source.element,
        "Frames are copied: {reason}"
    );
}

/// Warns once that frames are dropped because they cannot be held. Otherwise only a gap in the sequence would show it.
#[cold]
fn report_drop(source: SourceContext<'_>, started: &mut Started, why: &str) {
    if started.reports(Report::Drops) {
        gst::warning!(
            gst::CAT_PERFORMANCE,
            obj = source.element,
            "Frames are dropped: downstream holds as many as max-held allows, and {why}"
        );
    }
}
