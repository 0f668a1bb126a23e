// SPDX-License-Identifier: MPL-2.0

//! Frames of another pool, passed on where they lie.
//!
//! The forwarding process holds the frame for as long as its own consumers have it. That ends when it is killed; so each
//! consumer takes a lease of its own in the pool of origin, and frames are forwarded only while every consumer has said
//! that it reaches that pool.

use std::path::Path;
use std::sync::Arc;

use super::commands::Command;
use super::import::{ImportedMemory, Parts};
use super::pool::Pool;
#[cfg(feature = "cuda")]
use super::regions::Taken;
use super::state::State;
use crate::error::ForwardError;
use crate::lease::{Piece, ReadLease};
#[cfg(feature = "cuda")]
use crate::region::cuda::Fds;

/// The most pools of origin that consumers are told of.
const MAX_ORIGINS: usize = 8;

impl State {
    /// Whether every consumer can hold frames of this pool of origin itself.
    pub(super) fn all_reach(&self, pool_id: u64) -> bool {
        self.peers
            .iter()
            .filter(|peer| !peer.has_left())
            .all(|peer| peer.reaches(pool_id))
    }
}

impl Pool {
    /// `wanted` says by its number whether a piece is to be passed on.
    pub(super) fn forward(
        self: &Arc<Self>,
        frame: &ReadLease,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Parts, ForwardError> {
        let mut parts = Parts::new();
        let pieces = frame.pieces().ok_or(ForwardError::NotReceived)?;
        for (_, piece) in pieces.into_iter().enumerate().filter(|(n, _)| wanted(*n)) {
            self.introduce(piece.origin.pool_id, &piece.path);
            let memory = self.import_region(&piece)?;
            parts.add_forwarded(&memory, &piece);
        }
        parts.keep(frame.clone());
        let state = self.lock();
        if parts
            .origins()
            .all(|origin| state.all_reach(origin.pool_id))
        {
            Ok(parts)
        } else {
            Err(ForwardError::NotReached)
        }
    }

    /// The region that a piece lies in, as a region of this pool: made once, and gone with that of the other pool.
    fn import_region(self: &Arc<Self>, piece: &Piece) -> Result<ImportedMemory, ForwardError> {
        let pool_id = self.control.constants().pool_id;
        if let Some(memory) = piece.view.derived::<ImportedMemory>(pool_id) {
            return Ok(memory);
        }
        #[cfg(feature = "cuda")]
        if let Some(cuda) = piece.view.cuda() {
            let fds = Fds::of(cuda).map_err(ForwardError::Descriptor)?;
            let memory = Taken::OnDevice(Arc::new(fds));
            let len = usize::try_from(piece.view.payload_len()).unwrap_or(usize::MAX);
            let memory = self.take_in(memory, len, None)?;
            piece.view.derive(pool_id, memory.clone());
            return Ok(memory);
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
        if state.origins.len() == MAX_ORIGINS {
            state.origins.pop_front();
        }
        state.origins.push_back((pool_id, path.to_owned()));
        drop(state);
        self.commands.send(Command::Introduce(pool_id));
    }
}
