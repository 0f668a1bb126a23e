// SPDX-License-Identifier: MPL-2.0

//! The producer's side of the slot protocol: acquire, publish, release, reclaim.
//!
//! One lock guards what only this process knows. What a change entails outside (waking consumers, running hooks,
//! unmapping regions, log lines) is gathered in [`Effects`] and happens after the lock is released: the program's hooks and
//! logger may call back.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use xmem_shm::abi::layout::{Control, FLAG_TIMED_OUT, Shape};
use xmem_shm::abi::named::Sticky;
use xmem_shm::abi::start_from::StartFrom;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::{inside, lock};
use xmem_shm::os::fork::ProcessId;
use xmem_shm::protocol::lease;
use xmem_shm::protocol::slot::{SlotState, SlotWord};

use super::builder::Settings;
use super::commands::{Command, Commands};
use super::peer::{Departure, Peer};
use super::publish::Span;
use super::regions::Cold;
use super::slots::{Hook, Keep, Place, Use};
use super::state::{Effects, State};
use super::sticky_log::StickyLog;
use super::write_lease::OwnHold;
use crate::cancel::Bell;
use crate::error::RegionError;
use crate::region::Region;

/// How many frames a lossless pool's slowest consumer may be behind before the producer waits.
const MAX_BACKLOG: u32 = 8;

/// A slot that was claimed for writing.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) slot: u32,
    pub(super) word: SlotWord,
    pub(super) place: Place,
    pub(super) region: Arc<Region>,
}

/// Runs on whatever thread notices that a frame is not referenced any more, so a panic must not go further.
pub(super) fn run_hook(hook: Hook) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(hook)).is_err() {
        log::error!("a release hook panicked");
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Entries that are no frames; counted before they are published.
    pub(super) events: AtomicU64,
    pub(super) copied: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) cut_off: AtomicU64,
    pub(super) timed_out: AtomicU64,
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Frames that consumers held when the pool was closed: the owner gives them up now.
        if self.process.is_current() {
            let state = inside(&mut self.state);
            for slot in 0..self.settings.max_slots {
                if let Some(hook) = state.slots.get_mut(slot).and_then(|info| info.hook.take()) {
                    run_hook(hook);
                }
            }
            // Upstream was promised to have its memory back now at the latest.
            state
                .regions
                .retired
                .take_borrowed()
                .into_iter()
                .for_each(run_hook);
        }
    }
}

/// A pool, as its producer has it.
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) socket_path: PathBuf,
    pub(super) shm_prefix: String,
    pub(super) settings: Settings,
    pub(super) control: Control,
    pub(super) control_fd: OwnedFd,
    pub(super) process: ProcessId,
    pub(super) commands: Arc<Commands>,
    /// Rings when consumers gave something back, came or went.
    pub(super) bell: Arc<Bell>,
    pub(super) counters: Counters,
    pub(super) closed: AtomicBool,
    /// Whether somebody looks if devices may still finish what was published.
    #[cfg(feature = "cuda")]
    pub(super) watches_devices: AtomicBool,
    /// Whether consumers want frames marked when devices are done with them, and whether somebody is at it.
    #[cfg(feature = "cuda")]
    pub(super) marks_devices: [AtomicBool; 2],
    /// What the slowest consumers had taken, and since when, while somebody waits in vain.
    pub(super) standstill: Mutex<Option<(u64, Instant)>>,
    state: Mutex<State>,
}

/// What it has is in its statistics; here a hundred slots would only be noise, and their lock could be held.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .field("socket_path", &self.socket_path)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Pool {
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a pool, put together in one place"
    )]
    pub(super) fn new(
        name: String,
        socket_path: PathBuf,
        settings: Settings,
        control: Control,
        control_fd: OwnedFd,
        commands: Arc<Commands>,
        shm_prefix: String,
        sticky: StickyLog,
    ) -> Self {
        let state = State::new(&settings, sticky);
        Self {
            name,
            socket_path,
            shm_prefix,
            settings,
            control,
            control_fd,
            process: ProcessId::current(),
            commands,
            bell: Arc::default(),
            counters: Counters::default(),
            closed: AtomicBool::new(false),
            #[cfg(feature = "cuda")]
            watches_devices: AtomicBool::new(false),
            #[cfg(feature = "cuda")]
            marks_devices: [AtomicBool::new(false), AtomicBool::new(false)],
            standstill: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// `None` in a forked child: it may be locked for ever there, by a thread that the child does not have.
    pub(super) fn lock_here(&self) -> Option<MutexGuard<'_, State>> {
        self.process.is_current().then(|| self.lock())
    }

    pub(super) fn shape(&self) -> Shape {
        self.control.constants().shape
    }

    pub(super) fn lossless(&self) -> bool {
        self.control.constants().lossless
    }

    /// What follows from a change, with the lock released.
    pub(super) fn run(&self, effects: Effects, peers: Option<Arc<[Arc<Peer>]>>) {
        if effects.wake {
            for peer in peers.iter().flat_map(|peers| peers.iter()) {
                peer.page.wake();
            }
        }
        for (peer, reason) in effects.cut_off {
            self.counters.cut_off.fetch_add(1, Ordering::Relaxed);
            self.commands
                .send(Command::Disconnect(peer.id, Departure::CutOff));
            self.bell.ring();
            log::warn!(
                "pool {:?}: cutting off consumer {} ({:?}, process {}): {reason}",
                self.name,
                peer.id,
                peer.name,
                peer.pid
            );
        }
        if let Some(cut) = effects.cut {
            cut.warn(&self.name);
            self.commands.send(Command::BudgetsCut(cut));
        }
        for id in effects.retired {
            self.commands.send(Command::RegionGone(id));
        }
        // Unmapping takes milliseconds for large regions, hence out here.
        drop(effects.regions);
        effects.hooks.into_iter().for_each(run_hook);
    }

    /// A reference of the producer's side to this generation of a slot, if it is still there.
    pub(super) fn read_index(
        self: &Arc<Self>,
        slot: u32,
        generation: u32,
    ) -> Option<(OwnHold, Arc<Sticky>)> {
        if !self.process.is_current() {
            return None;
        }
        let mut state = self.lock();
        let word = SlotWord(self.control.slot(slot)?.load(Ordering::Relaxed));
        let info = state.slots.get(slot)?;
        let place = info.place?;
        if word.generation() != generation
            || word.state() != Some(SlotState::Published)
            || !matches!(info.used, Use::Idle | Use::Referenced(_))
        {
            return None;
        }
        let region = state.regions.get(place.region)?.region.clone();
        state.slots.reference(slot);
        let sticky = state.sticky.current();
        drop(state);
        let claimed = Claimed {
            slot,
            word,
            place,
            region,
        };
        Some((OwnHold::new(self.clone(), &claimed), sticky))
    }

    /// A reference of the producer's side is gone.
    pub(super) fn dereference(&self, slot: u32) {
        let mut effects = Effects::default();
        self.lock()
            .dereference(&self.control, slot, self.lossless(), &mut effects);
        self.run(effects, None);
        self.notice();
    }

    /// "Keep the frame until `count` consumers took and released it."
    pub(super) fn set_keep(&self, slot: u32, count: u32) -> bool {
        if !self.process.is_current() {
            return false;
        }
        let mut state = self.lock();
        let Some(cell) = self.control.slot(slot) else {
            return false;
        };
        if SlotWord(cell.load(Ordering::Relaxed)).state() != Some(SlotState::Published) {
            return false;
        }
        lease::ask_to_ring(cell);
        if let Some(info) = state.slots.get_mut(slot) {
            let departed = info.keep.map_or(0, |keep| keep.departed);
            info.keep = Some(Keep {
                until: count,
                departed,
            });
        }
        true
    }

    /// Something may have come free in this process.
    pub(super) fn notice(&self) {
        if self.control.waiting().load(Ordering::Relaxed) != 0 {
            self.bell.ring();
        }
    }

    /// A consumer says that it gave something back.
    pub(super) fn on_bell(&self) {
        let mut effects = Effects::default();
        let mut state = self.lock();
        state.finalize_watched(&self.control, self.lossless(), &mut effects);
        state.forget_retired(&mut effects);
        drop(state);
        self.run(effects, None);
        self.bell.ring();
    }

    /// A consumer joins: from here on its page counts. Returns the pools of origin that it is to answer for before it gets
    /// its place in the stream.
    pub(super) fn add_peer(&self, peer: Arc<Peer>) -> Vec<(u64, String)> {
        let mut state = self.lock();
        let origins = if peer.has_left() {
            Vec::new()
        } else {
            state.origins.iter().cloned().collect()
        };
        if origins.is_empty() {
            self.give_place(&state, &peer);
        } else {
            peer.awaits(origins.iter().map(|(pool_id, _)| *pool_id).collect());
        }
        peer.page
            .regions_seen()
            .store(state.regions.retired.version().into(), Ordering::Relaxed);
        state.peers = state.peers.iter().cloned().chain([peer]).collect();
        fault::point(Point::PeerListed);
        let mut effects = Effects::default();
        state.share_out(&self.control, &self.settings, &mut effects);
        drop(state);
        self.run(effects, None);
        self.bell.ring();
        origins
    }

    /// Where in the stream a consumer begins.
    fn give_place(&self, state: &State, peer: &Peer) {
        let mut kept = state.history.iter();
        let first = match peer.start_from {
            StartFrom::Next => None,
            StartFrom::Newest => kept.rfind(|kept| !kept.event),
            StartFrom::Oldest => kept.next(),
        };
        let cursor = first.map_or(self.control.head(), |kept| kept.sequence);
        peer.page.cursor().store(cursor, Ordering::Relaxed);
        fault::point(Point::CursorGiven);
    }

    /// A consumer that joined has answered for every pool of origin.
    pub(super) fn arrive(&self, peer: &Peer) {
        let state = self.lock();
        self.give_place(&state, peer);
        peer.arrive();
        drop(state);
        fault::point(Point::PeerArrived);
        self.bell.ring();
    }

    /// A consumer is gone: from here on its page does not count. Returns it, if it was there.
    pub(super) fn remove_peer(&self, id: u64) -> Option<Arc<Peer>> {
        let mut effects = Effects::default();
        let mut state = self.lock();
        let peer = state.remove_peer(&self.control, id);
        state.finalize_watched(&self.control, self.lossless(), &mut effects);
        state.regions.forget_consumer(id);
        state.forget_retired(&mut effects);
        state.share_out(&self.control, &self.settings, &mut effects);
        drop(state);
        self.run(effects, None);
        self.bell.ring();
        peer
    }

    /// How far the slowest consumer is behind.
    pub(super) fn backlog(&self, state: &State) -> u64 {
        let head = self.control.head();
        state
            .peers
            .iter()
            .filter_map(|peer| peer.cursor())
            .map(|cursor| head.saturating_sub(cursor))
            .max()
            .unwrap_or(0)
    }

    /// The consumers that are furthest behind, and how far that is.
    pub(super) fn slowest(&self, state: &State) -> (u64, Vec<Arc<Peer>>) {
        let head = self.control.head();
        let most = self.backlog(state);
        let behind = |peer: &Peer| {
            peer.cursor()
                .map_or(0, |cursor| head.saturating_sub(cursor))
        };
        let is_slowest = |peer: &&Arc<Peer>| most > 0 && behind(peer) >= most;
        (
            most,
            state.peers.iter().filter(is_slowest).cloned().collect(),
        )
    }

    /// How far consumers of a lossless pool may be behind before the producer waits.
    pub(super) fn max_backlog(&self) -> u64 {
        // Not more than there can be slots for, besides what is promised to others.
        let settings = &self.settings;
        let room = settings.max_slots.saturating_sub(2).max(1);
        u64::from(MAX_BACKLOG.max(settings.history).min(room))
    }

    /// Stops waiting for the consumers that are furthest behind; what they hold stays theirs.
    pub(super) fn give_up_on_slowest(&self) {
        if !self.process.is_current() {
            return;
        }
        let state = self.lock();
        let (_, slowest) = self.slowest(&state);
        for peer in &slowest {
            peer.leave();
            peer.page
                .flags()
                .fetch_or(FLAG_TIMED_OUT, Ordering::Release);
            fault::point(Point::TimedOutMarked);
            peer.page.wake();
            self.counters.timed_out.fetch_add(1, Ordering::Relaxed);
            self.commands.send(Command::TimedOut(peer.id));
        }
        drop(state);
        self.bell.ring();
        for peer in slowest {
            log::warn!(
                "pool {:?}: consumer {} ({:?}, process {}) held it up for longer than lossless-timeout",
                self.name,
                peer.id,
                peer.name,
                peer.pid
            );
        }
    }

    /// Lets go of every region that is not needed. Returns how many went.
    pub(super) fn collect(&self) -> usize {
        if !self.process.is_current() {
            // Inherited through fork: the words in control memory are the parent's to write.
            return 0;
        }
        let mut effects = Effects::default();
        let mut state = self.lock();
        state.finalize_watched(&self.control, self.lossless(), &mut effects);
        let gone = state.retire(
            &self.control,
            Cold::NotInUse,
            self.settings.min_slots,
            self.lossless(),
            &mut effects,
        );
        drop(state);
        self.run(effects, None);
        gone
    }

    pub(super) fn set_sticky(&self, sticky: &Sticky) -> Result<u64, RegionError> {
        if !self.process.is_current() {
            return Err(RegionError::Forked);
        }
        let mut state = self.lock();
        let head = self.control.head();
        let version = state.sticky.push(sticky, head)?;
        drop(state);
        self.commands.send(Command::PushSticky);
        Ok(version)
    }

    pub(super) fn set_eos(&self, eos: bool) {
        if !self.process.is_current() {
            return;
        }
        let state = self.lock();
        self.control.set_eos_at(eos.then(|| self.control.head()));
        fault::point(Point::EosMarked);
        let peers = state.peers.clone();
        drop(state);
        for peer in peers.iter() {
            peer.page.wake();
        }
    }

    /// No frame comes any more. Consumers keep what they hold.
    pub(super) fn close(&self) {
        let mut effects = Effects::default();
        let mut state = self.lock();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        self.closed.store(true, Ordering::Release);
        self.control.set_closed();
        fault::point(Point::ClosedMarked);
        effects.wake = true;
        self.trim_history(&mut state, Span::Nothing, &mut effects);
        let peers = state.peers.clone();
        drop(state);
        self.run(effects, Some(peers));
        self.bell.ring();
    }
}
