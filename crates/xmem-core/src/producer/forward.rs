// SPDX-License-Identifier: MPL-2.0

//! Forwards frames of another pool without a copy.
//!
//! The forwarding process holds the frame while its consumers hold it. If the process is killed, this hold ends. So each
//! consumer also takes a lease in the pool of origin before its program gets the frame.
//!
//! A consumer that joins first gets the list of pools of origin. Its cursor is set after it has answered for each whether it
//! can join. A pool of origin that appears later is announced to each consumer then.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xmem_shm::abi::device_header::TwinKind;
use xmem_shm::fault::{self, Point};

use super::parts::{ImportedMemory, Parts, add_foreign, import};
use crate::cancel::Wait;
use crate::error::{ForwardError, ImportError, WaitError};
use crate::frame::forwarded::{FrameParts, HeldPart};
use crate::frame::lease::ReadLease;
use crate::producer::pool::Pool;
use crate::producer::pool::event::Command;
use crate::producer::pool::regions::ForeignMemory;
use crate::producer::pool::wait;
use crate::region::device::{Fds, View};

/// The time in which consumers of a lossless pool must answer. Joining a pool takes at most two seconds.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// Imports the selected parts of a frame.
pub(super) fn forward(
    pool: &Arc<Pool>,
    frame: &ReadLease,
    selection: FrameParts<'_>,
) -> Result<Parts, ForwardError> {
    let parts = import_parts(pool, frame, selection)?;
    let guard = pool.guard().map_err(ImportError::from)?;
    if guard.may_forward(parts.origins()) {
        Ok(parts)
    } else {
        Err(ForwardError::NotReached)
    }
}

/// Like `forward`, but waits, at most ANSWER_TIME.
pub(super) fn forward_wait(
    pool: &Arc<Pool>,
    frame: &ReadLease,
    selection: FrameParts<'_>,
    wait: Wait<'_>,
) -> Result<Parts, ForwardError> {
    let parts = import_parts(pool, frame, selection)?;
    let lossless = pool.lossless();
    let answer = wait::wait(pool, wait.at_most(ANSWER_TIME), || {
        let reach = pool.lock()?.consumers.reach(parts.origins());
        reach.or((!lossless).then_some(true))
    });
    match answer {
        Ok(true) => Ok(parts),
        Err(WaitError::Cancelled) => Err(ForwardError::Cancelled),
        Err(WaitError::Timeout) => {
            if wait.timeout().is_none_or(|time| time >= ANSWER_TIME) {
                stop_awaiting(pool, &parts);
            }
            Err(ForwardError::NotReached)
        }
        Ok(false) | Err(_) => Err(ForwardError::NotReached),
    }
}

/// Counts a missing answer as no, so that the next frame does not wait. A late answer is still accepted.
fn stop_awaiting(pool: &Pool, parts: &Parts) {
    let Some(guard) = pool.lock() else { return };
    let consumers = guard.consumers.iter();
    for consumer in consumers.filter(|consumer| consumer.takes_frames()) {
        for origin in parts.origins() {
            if consumer.reach().of(origin.pool_id).is_none() {
                consumer.reach().answer(origin.pool_id, false);
            }
        }
    }
}

fn import_parts(
    pool: &Arc<Pool>,
    frame: &ReadLease,
    selection: FrameParts<'_>,
) -> Result<Parts, ForwardError> {
    let mut parts = Parts::new();
    let held = frame.held_parts().ok_or(ForwardError::NotReceived)?;
    for part in held {
        if !selection.has(part.number) {
            continue;
        }
        introduce(pool, part.origin.pool_id, &part.path)?;
        let memory = import_region(pool, &part)?;
        parts.add_forwarded(&memory, &part);
    }
    parts.keep(frame.clone());
    fault::point(Point::PartsImported);
    Ok(parts)
}

/// Imports the region of a part into this pool, once. It is removed together with the region of the other pool.
fn import_region(pool: &Arc<Pool>, part: &HeldPart) -> Result<ImportedMemory, ForwardError> {
    let pool_id = pool.control().constants().pool_id;
    if let Some(memory) = part.view.derived::<ImportedMemory>(pool_id) {
        return Ok(memory);
    }
    let memory = match part.view.cuda() {
        Some(view) => import_device_region(pool, part, view)?,
        None => {
            let fd = part.view.fd().ok_or(ForwardError::NoDescriptor)?;
            import(
                pool,
                fd.try_clone_to_owned().map_err(ForwardError::Descriptor)?,
            )?
        }
    };
    part.view
        .derive(pool_id, memory.clone(), ImportedMemory::is_used);
    Ok(memory)
}

/// Only the descriptors are forwarded, so this needs no driver.
fn import_device_region(
    pool: &Arc<Pool>,
    part: &HeldPart,
    view: &View,
) -> Result<ImportedMemory, ForwardError> {
    if matches!(view.header().kind, TwinKind::Legacy | TwinKind::Foreign) {
        return Err(ForwardError::EndsWithProducer);
    }
    let fds = Fds::of(view).map_err(ForwardError::Descriptor)?;
    let len = usize::try_from(part.view.payload_len()).unwrap_or(usize::MAX);
    let memory = ForeignMemory::OnDevice(Arc::new(fds));
    Ok(add_foreign(pool, memory, len, None)?)
}

/// Announces a pool of origin to the consumers.
fn introduce(pool: &Pool, pool_id: u64, path: &Path) -> Result<(), ImportError> {
    let mut guard = pool.guard()?;
    if path
        .to_str()
        .is_none_or(|path| !guard.origins.add(pool_id, path))
    {
        return Ok(());
    }
    drop(guard);
    fault::point(Point::OriginNoted);
    pool.commands().send(Command::Introduce(pool_id));
    Ok(())
}
