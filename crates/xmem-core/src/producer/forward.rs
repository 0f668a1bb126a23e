// SPDX-License-Identifier: MPL-2.0

//! Frames of another pool, passed on where they lie.
//!
//! The forwarding process holds the frame for as long as its own consumers have it. That ends when it is killed; so each
//! consumer takes a lease of its own in the pool of origin before it gives the frame to anybody.
//!
//! Who joins is told of the pools of origin first, and has its place in the stream when it has said of each whether it
//! reaches it. Of a pool of origin that is met later, every consumer is told then.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "cuda")]
use xmem_shm::abi::device_header::TwinKind;
use xmem_shm::abi::parts::Origin;
use xmem_shm::fault::{self, Point};

use super::commands::Command;
use super::import::{ImportedMemory, Parts};
use super::pool::Pool;
#[cfg(feature = "cuda")]
use super::regions::Taken;
use super::state::State;
use crate::cancel::Canceller;
use crate::error::{ForwardError, ImportError, WaitError};
use crate::frame::lease::{Piece, ReadLease};
#[cfg(feature = "cuda")]
use crate::region::device::owned::Fds;

/// The most pools of origin that consumers are told of.
const MAX_ORIGINS: usize = 8;

/// How long a lossless pool's consumers may take to answer. Joining a pool takes two seconds at the most.
const ANSWER_TIME: Duration = Duration::from_secs(3);

impl State {
    /// Whether every consumer can hold frames of these pools of origin itself. `None`: not all have said so, and none that
    /// it cannot.
    fn reached(&self, origins: impl Iterator<Item = Origin>) -> Option<bool> {
        let mut reached = Some(true);
        for origin in origins {
            for peer in self.peers.iter().filter(|peer| peer.takes_frames()) {
                match peer.reaches(origin.pool_id) {
                    Some(true) => {}
                    Some(false) => return Some(false),
                    None => reached = None,
                }
            }
        }
        reached
    }

    /// Whether frames of these pools of origin may be published. A consumer of a live pool that has not answered waits for
    /// itself, or misses the frame; no consumer of a lossless one may miss any.
    pub(super) fn may_forward(
        &self,
        origins: impl Iterator<Item = Origin>,
        lossless: bool,
    ) -> bool {
        self.reached(origins).unwrap_or(!lossless)
    }
}

impl Pool {
    /// `wanted` says by its number whether a piece is to be passed on.
    pub(super) fn forward(
        self: &Arc<Self>,
        frame: &ReadLease,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Parts, ForwardError> {
        let parts = self.import_pieces(frame, wanted)?;
        if self.lock().may_forward(parts.origins(), self.lossless()) {
            Ok(parts)
        } else {
            Err(ForwardError::NotReached)
        }
    }

    /// Waits no longer than `timeout`, nor than there is time to answer.
    pub(super) fn forward_wait(
        self: &Arc<Self>,
        frame: &ReadLease,
        wanted: impl Fn(usize) -> bool,
        timeout: Duration,
        cancel: &Canceller,
    ) -> Result<Parts, ForwardError> {
        let parts = self.import_pieces(frame, wanted)?;
        let lossless = self.lossless();
        let answer = self.wait(Some(ANSWER_TIME.min(timeout)), cancel, || {
            let reached = self.lock().reached(parts.origins());
            reached.or((!lossless).then_some(true))
        });
        match answer {
            Ok(true) => Ok(parts),
            Err(WaitError::Cancelled) => Err(ForwardError::Cancelled),
            Err(WaitError::Timeout) => {
                if timeout >= ANSWER_TIME {
                    self.stop_awaiting(&parts);
                }
                Err(ForwardError::NotReached)
            }
            Ok(false) | Err(_) => Err(ForwardError::NotReached),
        }
    }

    /// Takes silence for a no, so that not each frame is waited with. Who answers after all is believed.
    fn stop_awaiting(&self, parts: &Parts) {
        for peer in self.lock().peers.iter().filter(|peer| peer.takes_frames()) {
            for origin in parts.origins() {
                if peer.reaches(origin.pool_id).is_none() {
                    peer.answer(origin.pool_id, false);
                }
            }
        }
    }

    fn import_pieces(
        self: &Arc<Self>,
        frame: &ReadLease,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Parts, ForwardError> {
        if !self.process.is_current() {
            return Err(ImportError::Forked.into());
        }
        let mut parts = Parts::new();
        let pieces = frame.pieces().ok_or(ForwardError::NotReceived)?;
        for piece in pieces.into_iter().filter(|piece| wanted(piece.number)) {
            self.introduce(piece.origin.pool_id, &piece.path);
            let memory = self.import_region(&piece)?;
            parts.add_forwarded(&memory, &piece);
        }
        parts.keep(frame.clone());
        fault::point(Point::PiecesImported);
        Ok(parts)
    }

    /// The region that a piece lies in, as a region of this pool: made once, and gone with that of the other pool.
    fn import_region(self: &Arc<Self>, piece: &Piece) -> Result<ImportedMemory, ForwardError> {
        let pool_id = self.control.constants().pool_id;
        if let Some(memory) = piece.view.derived::<ImportedMemory>(pool_id) {
            return Ok(memory);
        }
        #[cfg(feature = "cuda")]
        if let Some(cuda) = piece.view.cuda() {
            if matches!(cuda.header().kind, TwinKind::Legacy | TwinKind::Foreign) {
                return Err(ForwardError::EndsWithProducer);
            }
            let fds = Fds::of(cuda).map_err(ForwardError::Descriptor)?;
            let memory = Taken::OnDevice(Arc::new(fds));
            let len = usize::try_from(piece.view.payload_len()).unwrap_or(usize::MAX);
            let memory = self.take_in(memory, len, None)?;
            piece.view.derive(pool_id, memory.clone());
            return Ok(memory);
        }
        // Without the feature, who passed on a region's host half alone would pass on no frame.
        #[cfg(not(feature = "cuda"))]
        if piece.view.cuda().is_some() {
            return Err(ForwardError::NoDescriptor);
        }
        let fd = piece.view.fd().ok_or(ForwardError::NoDescriptor)?;
        let fd = fd.try_clone_to_owned().map_err(ForwardError::Descriptor)?;
        let memory = self.import(fd)?;
        piece.view.derive(pool_id, memory.clone());
        Ok(memory)
    }

    /// Tells consumers of a pool of origin.
    fn introduce(&self, pool_id: u64, path: &Path) {
        let Some(path) = path.to_str() else { return };
        let mut state = self.lock();
        if state.origins.iter().any(|(known, _)| *known == pool_id) {
            return;
        }
        // Of the pools that were there one after the other, only the last one is.
        state.origins.retain(|(_, known)| known != path);
        if state.origins.len() == MAX_ORIGINS {
            state.origins.pop_front();
        }
        state.origins.push_back((pool_id, path.to_owned()));
        drop(state);
        fault::point(Point::OriginNoted);
        self.commands.send(Command::Introduce(pool_id));
    }
}
