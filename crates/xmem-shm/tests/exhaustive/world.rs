// SPDX-License-Identifier: MPL-2.0

//! The state of the model: memory, the producer's process, the consumers' processes, and messages in sockets.

/// The maximum number of slots in a setting.
pub(crate) const SLOTS: usize = 4;
pub(crate) const CLIENTS: usize = 2;
/// Ids of regions in one life of the producer: 1 and up.
pub(crate) const REGIONS: usize = 3;
/// The number of places for frames in all regions.
pub(crate) const PLACES: usize = 6;
/// Entries in the ring.
pub(crate) const RING: u8 = 2;
/// `layout::CURSOR_LEFT`
pub(crate) const CURSOR_LEFT: u8 = u8::MAX;
/// `layout::REGIONS_LET_GO`
pub(crate) const LET_GO: u8 = u8::MAX;

/// A short list without allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct List<T, const N: usize> {
    items: [T; N],
    len: u8,
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self {
            items: [T::default(); N],
            len: 0,
        }
    }
}

impl<T: Copy + Default + PartialEq, const N: usize> List<T, N> {
    pub(crate) fn get(&self) -> &[T] {
        &self.items[..self.len as usize]
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len as usize == N
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push(&mut self, item: T) {
        self.insert(self.len as usize, item);
    }

    pub(crate) fn insert(&mut self, at: usize, item: T) {
        self.items[at..=self.len as usize].rotate_right(1);
        self.items[at] = item;
        self.len += 1;
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let first = *self.get().first()?;
        self.remove(first);
        Some(first)
    }

    /// Removes the first such item.
    pub(crate) fn remove(&mut self, item: T) {
        if let Some(at) = self.get().iter().position(|other| *other == item) {
            self.items[at..self.len as usize].rotate_left(1);
            self.len -= 1;
            self.items[self.len as usize] = T::default();
        }
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SlotState {
    #[default]
    Free,
    Claimed,
    Published,
}

/// `protocol::lease::SlotWord`
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Word {
    pub(crate) generation: u8,
    pub(crate) state: SlotState,
}

/// `entry::Entry`, and the frame that it describes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Entry {
    /// The stamp. Sequences begin with 1 here. 0: never written.
    pub(crate) sequence: u8,
    pub(crate) slot: u8,
    pub(crate) generation: u8,
    /// The region of the slot. It is not in the ring: a consumer reads it after the entry. 0: not read yet.
    pub(crate) region: u8,
    pub(crate) offset: u8,
    pub(crate) sticky: u8,
    /// The frame's bytes.
    pub(crate) frame: u8,
}

/// The control memory of one life of the producer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Control {
    pub(crate) words: [Word; SLOTS],
    pub(crate) places: [Place; SLOTS],
    pub(crate) ring: [Entry; RING as usize],
    /// The number of published frames.
    pub(crate) head: u8,
    /// The ids of the regions in use, as bits.
    pub(crate) ids: u8,
    pub(crate) version: u8,
    /// The largest budget of a consumer.
    pub(crate) share: u8,
}

/// The place of a slot.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// 0: the slot has no place.
    pub(crate) region: u8,
    pub(crate) offset: u8,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RegionIs {
    #[default]
    Nothing,
    InUse,
    /// Retired at this version. A consumer may have it mapped.
    Retired(u8),
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Region {
    pub(crate) is: RegionIs,
    /// The first place of its memory.
    pub(crate) base: u8,
    pub(crate) slots: u8,
}

/// The purpose of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    Frame,
    /// The region is being removed.
    Retire(u8),
}

/// The position of the publishing thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum App {
    #[default]
    Idle,
    /// Has the lock. The idle slots below `at` have not been tried yet.
    Pick {
        at: u8,
        grown: bool,
    },
    /// Has the lock, and has stored its claim.
    Look {
        slot: u8,
        at: u8,
        why: Purpose,
    },
    /// Has the lock. A thread holds the slot.
    PutBack {
        slot: u8,
        at: u8,
        why: Purpose,
    },
    /// Creates a region, without the lock.
    Grow,
    Write {
        slot: u8,
    },
    Written {
        slot: u8,
    },
    /// Has the lock. This number of stores of publishing is done.
    Publish {
        slot: u8,
        done: u8,
    },
    /// Has the lock. The region's slots from `at` on have not been claimed yet.
    Retire {
        region: u8,
        at: u8,
    },
    /// Has the lock. The region is removed in this process. This number of the two stores is done.
    Show {
        region: u8,
        done: u8,
    },
}

impl App {
    /// Whether the thread has the producer's lock.
    pub(crate) fn locks(self) -> bool {
        !matches!(
            self,
            Self::Idle | Self::Grow | Self::Write { .. } | Self::Written { .. }
        )
    }
}

/// The producer's process.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Producer {
    pub(crate) alive: bool,
    pub(crate) app: App,
    pub(crate) places: [Place; SLOTS],
    pub(crate) last_sequence: [u8; SLOTS],
    /// The most recently used slot is the last one.
    pub(crate) idle: List<u8, SLOTS>,
    /// The slots of the newest frames, oldest first.
    pub(crate) history: List<u8, 3>,
    pub(crate) regions: [Region; REGIONS],
    pub(crate) last_region: u8,
    pub(crate) version: u8,
    /// The newest version of the sticky state, and the first frame of each version.
    pub(crate) sticky: u8,
    pub(crate) sticky_since: [u8; 3],
    /// The versions that are kept, as bits.
    pub(crate) sticky_kept: u8,
    /// Commands for the control thread: removed regions, as bits; the newest sticky state.
    pub(crate) say_gone: u8,
    pub(crate) push_sticky: bool,
    /// The control thread has the lock, has stored a smaller share, and reads leases.
    pub(crate) sharing: bool,
}

/// From the producer to a consumer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ToConsumer {
    #[default]
    None,
    Welcome,
    Region {
        id: u8,
        base: u8,
    },
    NoRegion(u8),
    Sticky(u8),
    NoSticky(u8),
}

/// From a consumer to the producer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ToProducer {
    #[default]
    None,
    Join,
    GetRegion(u8),
    GetSticky(u8),
    Leave,
}

/// The state of a region in a consumer: `regions::Answer`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Answer {
    #[default]
    None,
    /// Mapped. The value is the first place of its memory.
    Ready(u8),
    Gone,
}

/// Unmapping of retired regions (`MappedRegions::unmap_retired`), in two threads.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Sweep {
    #[default]
    No,
    /// Has the lock of the inbox, and has read the version.
    Compare { version: u8 },
    /// These regions, as bits, were removed from the inbox but are still mapped.
    Unmap { version: u8, gone: u8 },
}

/// The position of the receiving thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum User {
    /// Not connected.
    #[default]
    Out,
    Joining,
    /// Connected, outside of `receive`.
    Ready,
    Sweeping,
    Find,
    Want(Entry),
    Asking(Entry),
    /// The region is mapped here.
    Announce(Entry, u8),
    Validate(Entry, u8),
    /// The slot has the frame. The budget has not been checked yet.
    Budget(Entry, u8),
    TakeBack {
        entry: Entry,
        base: u8,
        claimed: bool,
    },
    /// For wrong orders: validated, but the lease is not stored.
    Late(Entry, u8),
    /// The frame is held. The cursor is not stored yet.
    Move(u8),
    /// The `Consumer` is dropped, but some of its frames are not.
    Left,
    /// The process is dead.
    Dead,
}

/// A held frame.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Frame {
    /// The bytes. 0: no frame is held.
    pub(crate) frame: u8,
    /// The place of the bytes.
    pub(crate) place: u8,
    pub(crate) region: u8,
    pub(crate) base: u8,
}

/// The request that the control thread processes for a consumer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Serving {
    #[default]
    No,
    Welcome,
    Region {
        id: u8,
        base: u8,
    },
    /// For a wrong order: the descriptor is sent, but the page is not listed.
    List,
}

/// A consumer's process, its connection, its lease page, and the producer's record of it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Client {
    pub(crate) user: User,
    /// The life of the producer to which it is connected. 0: none.
    pub(crate) session: u8,
    // The lease page.
    pub(crate) leases: [u8; SLOTS],
    pub(crate) cursor: u8,
    pub(crate) seen: u8,
    pub(crate) timed_out: bool,
    // The state of the process.
    pub(crate) position: u8,
    pub(crate) held: [Frame; SLOTS],
    /// The slot of the frame that was taken past the budget, counted from 1.
    pub(crate) extra: u8,
    /// A frame of a dead producer.
    pub(crate) old: Frame,
    pub(crate) inbox: [Answer; REGIONS],
    /// The received versions of the sticky state, as bits, and those that are not available.
    pub(crate) stickies: u8,
    pub(crate) no_stickies: u8,
    pub(crate) swept: u8,
    pub(crate) user_sweep: Sweep,
    pub(crate) listener_sweep: Sweep,
    pub(crate) lost: bool,
    // The socket.
    pub(crate) to_consumer: List<ToConsumer, 3>,
    pub(crate) to_producer: List<ToProducer, 2>,
    /// The consumer's end is closed, and the producer has not detected it.
    pub(crate) hung_up: bool,
    // The producer's record of it.
    pub(crate) listed: bool,
    pub(crate) left: bool,
    /// The regions that were sent to it, as bits.
    pub(crate) sent: u8,
    /// The current claim has not read its leases yet.
    pub(crate) to_look_at: bool,
    /// Its leases have not been counted since the share became smaller.
    pub(crate) to_count: bool,
    /// `Claim::kept`
    pub(crate) kept: u8,
    /// `ConsumerRecord::reserved`
    pub(crate) reserved: u8,
    pub(crate) serving: Serving,
}

impl Client {
    pub(crate) fn held_count(&self) -> usize {
        self.held.iter().filter(|held| held.frame != 0).count()
    }

    /// `Table::is_extra`. `None`: it may not take another frame.
    pub(crate) fn is_extra(&self, share: u8) -> Option<bool> {
        if self.held_count() < share.into() {
            return Some(false);
        }
        let has_extra = self.extra > 0 && self.held[self.extra as usize - 1].frame != 0;
        (!has_extra).then_some(true)
    }

    /// The number of its producer's frames in its lease page.
    pub(crate) fn lease_count(&self, words: &[Word; SLOTS]) -> u8 {
        let leases = self.leases.iter().zip(words);
        let held = leases.filter(|(lease, word)| **lease != 0 && **lease == word.generation);
        held.count() as u8
    }

    pub(crate) fn is_connected(&self) -> bool {
        !matches!(
            self.user,
            User::Out | User::Joining | User::Left | User::Dead
        )
    }

    /// Whether one of its threads holds the inbox's lock.
    pub(crate) fn inbox_is_locked(&self) -> bool {
        [self.user_sweep, self.listener_sweep]
            .iter()
            .any(|sweep| matches!(sweep, Sweep::Compare { .. }))
    }

    /// The regions that its process has mapped, as bits.
    pub(crate) fn mapped(&self) -> u8 {
        let inbox = (1..)
            .zip(&self.inbox)
            .filter(|(_, answer)| matches!(answer, Answer::Ready(_)))
            .map(|(id, _)| id);
        let held = self.held.iter().filter(|held| held.frame != 0);
        inbox
            .chain(held.map(|held| held.region))
            .fold(0, |bits, id| bits | bit(id))
    }
}

/// The remaining numbers of limited events.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Left {
    pub(crate) frames: u8,
    pub(crate) joins: u8,
    pub(crate) crashes: u8,
    pub(crate) producer_crashes: u8,
    pub(crate) restarts: u8,
    pub(crate) collects: u8,
    pub(crate) stickies: u8,
    pub(crate) leaves: u8,
    pub(crate) timeouts: u8,
    pub(crate) give_ups: u8,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) controls: [Control; 2],
    /// The content of each place in shared memory.
    pub(crate) bytes: [u8; PLACES],
    /// The first place of the next region.
    pub(crate) next_base: u8,
    /// The number of frames that were written in all lives.
    pub(crate) written: u8,
    /// The current life: 1 or 2.
    pub(crate) life: u8,
    pub(crate) producer: Producer,
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) left: Left,
    /// The property that a step violated.
    pub(crate) flaw: Option<&'static str>,
}

pub(crate) fn bit(number: u8) -> u8 {
    1 << number
}

impl World {
    /// The control memory of the live or last producer.
    pub(crate) fn control(&mut self) -> &mut Control {
        &mut self.controls[self.life as usize - 1]
    }

    /// The control memory that a consumer has mapped.
    pub(crate) fn control_of(&self, client: usize) -> &Control {
        &self.controls[self.clients[client].session as usize - 1]
    }

    pub(crate) fn is_producer_of(&self, client: usize) -> bool {
        self.producer.alive && self.clients[client].session == self.life
    }

    /// Makes equivalent states equal: consumers are interchangeable, and state that no actor can read is removed.
    pub(crate) fn canonical(mut self) -> Self {
        for (life, control) in (1..).zip(&mut self.controls) {
            let lives = life == self.life && self.producer.alive;
            if !lives && self.clients.iter().all(|client| client.session != life) {
                *control = Control::default();
            }
        }
        self.clients.sort_unstable();
        self
    }
}
