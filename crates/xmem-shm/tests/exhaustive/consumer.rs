// SPDX-License-Identifier: MPL-2.0

//! The steps of a consumer's process: of the receiving thread, of the control thread, and of a thread that drops a frame.
//!
//! As in `producer`, a step is one access to shared memory or one message. Comments name the function that implements it.

use super::setting::{Setting, Wrong};
use super::steps::Steps;
use super::world::*;

/// The receiving thread.
const USER: &str = "consumer";
/// Its control thread.
const LISTENER: &str = "consumer, control";

pub(crate) fn steps(setting: &Setting, world: &World, me: usize, steps: &mut Steps) {
    let client = &world.clients[me];
    if client.user == User::Dead {
        return;
    }
    user(setting, world, me, steps);
    if client.is_connected() {
        listener(setting, world, me, steps);
    }
    releases(world, me, steps);
    if world.left.crashes > 0 && client.user != User::Out {
        steps.add(USER, "is killed", |w| {
            w.left.crashes -= 1;
            die(w, me);
        });
    }
}

/// The actions of the kernel after the death of the process. The lease page exists until the producer drops it.
fn die(w: &mut World, me: usize) {
    let notices = w.is_producer_of(me);
    let it = &mut w.clients[me];
    if notices {
        *it = Client {
            user: User::Dead,
            session: it.session,
            leases: it.leases,
            cursor: it.cursor,
            seen: it.seen,
            to_producer: it.to_producer,
            hung_up: true,
            listed: it.listed,
            left: it.left,
            sent: it.sent,
            to_look_at: it.to_look_at,
            to_count: it.to_count,
            kept: it.kept,
            reserved: it.reserved,
            serving: it.serving,
            ..Client::default()
        };
    } else {
        *it = Client::default();
    }
}

/// A thread drops a frame: `Leases::remove`, `lease::release`.
fn releases(world: &World, me: usize, steps: &mut Steps) {
    let client = &world.clients[me];
    if client.old.frame != 0 {
        steps.add(USER, "drops a frame of a dead producer", |w| {
            w.clients[me].old = Frame::default();
        });
    }
    // The table of leases has a lock, which taking a frame also needs.
    let taking = matches!(
        client.user,
        User::Announce(..)
            | User::Validate(..)
            | User::Budget(..)
            | User::TakeBack { .. }
            | User::Late(..)
    );
    for slot in 0..SLOTS {
        if client.held[slot].frame != 0 && !taking {
            steps.add(USER, "lease::release", |w| {
                w.clients[me].leases[slot] = 0;
                w.clients[me].held[slot] = Frame::default();
                hang_up_if_done(w, me);
            });
        }
    }
}

/// The connection is closed with the `Consumer` and the last of its frames.
fn hang_up_if_done(w: &mut World, me: usize) {
    let alive = w.is_producer_of(me);
    let it = &mut w.clients[me];
    if it.user == User::Left && it.held_count() == 0 {
        it.user = User::Out;
        it.hung_up = alive;
        if !alive {
            *it = Client {
                old: it.old,
                ..Client::default()
            };
        }
    }
}

fn user(setting: &Setting, world: &World, me: usize, steps: &mut Steps) {
    let client = &world.clients[me];
    match client.user {
        User::Dead | User::Left => {}
        User::Out => {
            // While the last connection exists, a new one belongs to another process.
            let fresh = !client.listed && !client.hung_up && client.to_producer.is_empty();
            if world.left.joins > 0 && world.producer.alive && fresh {
                steps.add(USER, "ConsumerBuilder::connect asks", |w| {
                    w.left.joins -= 1;
                    let life = w.life;
                    let it = &mut w.clients[me];
                    *it = Client {
                        old: it.old,
                        user: User::Joining,
                        session: life,
                        ..Client::default()
                    };
                    it.to_producer.push(ToProducer::Join);
                });
            }
        }
        User::Joining => {
            if client.to_consumer.get().first() == Some(&ToConsumer::Welcome) {
                steps.add(USER, "Listener::start", |w| {
                    let version = w.control_of(me).version;
                    let it = &mut w.clients[me];
                    it.to_consumer.pop_front();
                    it.user = User::Ready;
                    it.position = it.cursor;
                    it.swept = version;
                });
            } else if !world.is_producer_of(me) {
                steps.add(USER, "ConsumerBuilder::connect fails", |w| {
                    let it = &mut w.clients[me];
                    *it = Client {
                        old: it.old,
                        ..Client::default()
                    };
                });
            }
        }
        User::Ready => {
            if client.timed_out {
                steps.add(USER, "Connection::check_flags", |w| leave(w, me));
            } else if world.control_of(me).version != client.swept {
                steps.add(USER, "MappedRegions::sweep", |w| {
                    w.clients[me].user = User::Sweeping;
                });
            } else {
                find(setting, world, me, steps);
            }
            if world.left.leaves > 0 && client.listener_sweep == Sweep::No {
                steps.add(USER, "Consumer::drop", |w| {
                    w.left.leaves -= 1;
                    leave(w, me);
                });
            }
        }
        User::Sweeping => {
            sweep(setting, world, me, steps, false);
            if client.user_sweep == Sweep::No && client.swept == world.control_of(me).version {
                steps.add(USER, "Consumer::take_next", |w| {
                    w.clients[me].user = User::Find;
                });
            }
        }
        User::Find => find(setting, world, me, steps),
        User::Want(entry) => {
            if !client.inbox_is_locked() {
                want(setting, world, me, entry, steps);
            }
        }
        User::Asking(entry) => {
            if client.inbox_is_locked() {
                return;
            }
            let has_sticky = (client.stickies | client.no_stickies) & bit(entry.sticky) != 0;
            let has_region =
                entry.region == 0 || client.inbox[entry.region as usize - 1] != Answer::None;
            if has_sticky && has_region {
                want(setting, world, me, entry, steps);
            } else if client.lost {
                steps.add(USER, "Link::ask finds the producer lost", |w| lose(w, me));
            } else if world.left.timeouts > 0 {
                steps.add(USER, "Link::ask runs out of time", |w| {
                    w.left.timeouts -= 1;
                    w.clients[me].user = User::Ready;
                });
            } else {
                ask(world, me, entry, steps);
            }
        }
        User::Announce(entry, base) => {
            if setting.wrong == Some(Wrong::HoldLooksFirst) {
                steps.add(USER, "looks at the slot word", |w| {
                    w.clients[me].user = if is_there(w, me, entry) {
                        User::Late(entry, base)
                    } else {
                        User::TakeBack {
                            entry,
                            base,
                            claimed: false,
                        }
                    };
                });
            } else {
                steps.add(USER, "lease::hold announces", |w| {
                    w.clients[me].leases[entry.slot as usize] = entry.generation;
                    w.clients[me].user = User::Validate(entry, base);
                });
            }
        }
        User::Late(entry, base) => steps.add(USER, "announces its lease", |w| {
            w.clients[me].leases[entry.slot as usize] = entry.generation;
            hold(setting, w, me, entry, base);
        }),
        User::Validate(entry, base) => steps.add(USER, "lease::hold validates", |w| {
            if is_there(w, me, entry) {
                if setting.reserve && setting.wrong != Some(Wrong::BudgetIsReadFirst) {
                    w.clients[me].user = User::Budget(entry, base);
                } else {
                    hold(setting, w, me, entry, base);
                }
            } else {
                let word = w.control_of(me).words[entry.slot as usize];
                w.clients[me].user = User::TakeBack {
                    entry,
                    base,
                    claimed: word.generation == entry.generation
                        && word.state == SlotState::Claimed,
                };
            }
        }),
        User::Budget(entry, base) => steps.add(USER, "Leases::take reads the budget", |w| {
            let share = w.control_of(me).share;
            let it = &mut w.clients[me];
            if let Some(is_extra) = it.is_extra(share) {
                it.extra = if is_extra { entry.slot + 1 } else { 0 };
                hold(setting, w, me, entry, base);
            } else {
                w.clients[me].leases[entry.slot as usize] = 0;
                w.clients[me].user = User::Ready;
            }
        }),
        User::TakeBack {
            entry,
            base,
            claimed,
        } => {
            if claimed {
                steps.add(USER, "lease::hold takes it back, and tries again", |w| {
                    w.clients[me].leases[entry.slot as usize] = 0;
                    w.clients[me].user = User::Announce(entry, base);
                });
            }
            steps.add(USER, "lease::hold takes it back", |w| {
                w.clients[me].leases[entry.slot as usize] = 0;
                miss(setting, w, me, 1);
            });
        }
        User::Move(position) => steps.add(USER, "Position::move_to", |w| {
            w.clients[me].cursor = position;
            w.clients[me].position = position;
            w.clients[me].user = User::Ready;
        }),
    }
}

/// The validation in `lease::hold`.
fn is_there(w: &World, me: usize, entry: Entry) -> bool {
    let word = w.control_of(me).words[entry.slot as usize];
    word.generation == entry.generation && word.state == SlotState::Published
}

fn hold(setting: &Setting, w: &mut World, me: usize, entry: Entry, base: u8) {
    let it = &mut w.clients[me];
    it.held[entry.slot as usize] = Frame {
        frame: entry.frame,
        place: base + entry.offset,
        region: entry.region,
        base,
    };
    it.user = if setting.wrong == Some(Wrong::CursorBeforeHold) {
        User::Ready
    } else {
        User::Move(entry.sequence)
    };
}

/// `Consumer::take_next`: the head, frames that are too old, the entry.
fn find(setting: &Setting, world: &World, me: usize, steps: &mut Steps) {
    let client = &world.clients[me];
    let control = world.control_of(me);
    if client.timed_out {
        steps.add(USER, "Connection::check_flags", |w| leave(w, me));
        return;
    }
    if control.head <= client.position {
        if client.lost {
            steps.add(USER, "Consumer::take_next finds the producer lost", |w| {
                lose(w, me)
            });
        } else if client.user == User::Find {
            steps.add(USER, "Consumer::take_next finds nothing", |w| {
                w.clients[me].user = User::Ready;
            });
        }
        return;
    }
    steps.add(USER, "Consumer::take_next reads head and entry", |w| {
        let control = *w.control_of(me);
        // `Consumer::skip_released`
        let kept = if setting.lossless {
            RING
        } else {
            setting.history.min(RING)
        };
        let oldest = control.head.saturating_sub(kept);
        let position = w.clients[me].position;
        if oldest > position {
            miss(setting, w, me, oldest - position);
        }
        let sequence = w.clients[me].position + 1;
        let entry = control.ring[(sequence % RING) as usize];
        if entry.sequence == sequence {
            w.clients[me].user = User::Want(entry);
        } else {
            miss(setting, w, me, 1);
        }
    });
}

/// `Connection::count_missed`
fn miss(setting: &Setting, w: &mut World, me: usize, frames: u8) {
    let it = &mut w.clients[me];
    if setting.lossless && !it.timed_out {
        w.flaw = Some("a lossless consumer missed a frame");
    }
    let it = &mut w.clients[me];
    if it.cursor != CURSOR_LEFT {
        it.position += frames;
        it.cursor = it.position;
    }
    it.user = User::Find;
}

/// `Take::frame`: the sticky state, the place, the region, the budget.
fn want(setting: &Setting, world: &World, me: usize, entry: Entry, steps: &mut Steps) {
    let client = &world.clients[me];
    let sticky = client.stickies & bit(entry.sticky) != 0;
    if client.no_stickies & bit(entry.sticky) != 0 {
        steps.add(USER, "Stickies::get: there is none", |w| {
            miss(setting, w, me, 1)
        });
    } else if !sticky {
        ask(world, me, entry, steps);
    } else if entry.region == 0 {
        steps.add(USER, "Control::place", |w| {
            let place = w.control_of(me).places[entry.slot as usize];
            w.clients[me].user = User::Want(Entry {
                region: place.region,
                offset: place.offset,
                ..entry
            });
        });
    } else {
        match client.inbox[entry.region as usize - 1] {
            Answer::None => ask(world, me, entry, steps),
            Answer::Gone => steps.add(USER, "MappedRegions::get: there is none", |w| {
                w.clients[me].inbox[entry.region as usize - 1] = Answer::None;
                miss(setting, w, me, 1);
            }),
            Answer::Ready(base) => steps.add(USER, "Take::frame has the region", |w| {
                let share = w.control_of(me).share;
                let it = &mut w.clients[me];
                // `Leases::take`
                if it.held[entry.slot as usize].frame != 0 {
                    it.user = User::Ready;
                    w.flaw = Some("a slot that is held has another frame");
                } else if (setting.reserve && it.is_extra(share).is_none())
                    || it.held_count() >= setting.limit()
                {
                    it.user = User::Ready;
                } else {
                    if setting.wrong == Some(Wrong::BudgetIsReadFirst) {
                        let is_extra = it.is_extra(share) == Some(true);
                        it.extra = if is_extra { entry.slot + 1 } else { 0 };
                    }
                    if setting.wrong == Some(Wrong::CursorBeforeHold) {
                        it.cursor = entry.sequence;
                        it.position = entry.sequence;
                    }
                    it.user = User::Announce(entry, base);
                }
            }),
        }
    }
}

/// `Link::ask`
fn ask(world: &World, me: usize, entry: Entry, steps: &mut Steps) {
    let client = &world.clients[me];
    let question = if client.stickies & bit(entry.sticky) == 0 {
        ToProducer::GetSticky(entry.sticky)
    } else {
        ToProducer::GetRegion(entry.region)
    };
    let asked = client.to_producer.get().contains(&question);
    let under_way = match client.serving {
        Serving::Region { id, .. } => question == ToProducer::GetRegion(id),
        _ => false,
    };
    let answered = client
        .to_consumer
        .get()
        .iter()
        .any(|message| match message {
            ToConsumer::Region { id, .. } | ToConsumer::NoRegion(id) => {
                question == ToProducer::GetRegion(*id)
            }
            ToConsumer::Sticky(version) | ToConsumer::NoSticky(version) => {
                question == ToProducer::GetSticky(*version)
            }
            _ => false,
        });
    let waits = matches!(client.user, User::Asking(_));
    if waits && (asked || under_way || answered) {
        return;
    }
    let alive = world.is_producer_of(me);
    if waits && (!alive || client.to_producer.is_full()) {
        return;
    }
    steps.add(USER, "Link::ask", |w| {
        let it = &mut w.clients[me];
        if alive && !it.to_producer.is_full() {
            it.to_producer.push(question);
        }
        it.user = User::Asking(entry);
    });
}

/// `Connection::leave`, and the end of `Listener::run`.
fn leave(w: &mut World, me: usize) {
    let alive = w.is_producer_of(me);
    let it = &mut w.clients[me];
    it.cursor = CURSOR_LEFT;
    it.position = 0;
    it.inbox = Default::default();
    it.stickies = 0;
    it.no_stickies = 0;
    it.swept = 0;
    it.seen = LET_GO;
    it.to_consumer = List::default();
    it.user = User::Left;
    if alive && !it.to_producer.is_full() {
        it.to_producer.push(ToProducer::Leave);
    }
    hang_up_if_done(w, me);
}

/// The producer is dead: the `Consumer` is dropped. A frame may be kept while it connects to the next producer.
fn lose(w: &mut World, me: usize) {
    let it = &mut w.clients[me];
    let kept = it.held.iter().copied().find(|held| held.frame != 0);
    let both = kept.is_some() && it.old.frame != 0;
    if both || it.held_count() > 1 {
        leave(w, me);
        return;
    }
    *it = Client {
        old: kept.unwrap_or(it.old),
        ..Client::default()
    };
}

/// `Listener::run`, `Listener::handle`
fn listener(setting: &Setting, world: &World, me: usize, steps: &mut Steps) {
    let client = &world.clients[me];
    if client.listener_sweep != Sweep::No {
        sweep(setting, world, me, steps, true);
        return;
    }
    let Some(message) = client.to_consumer.get().first().copied() else {
        if !world.is_producer_of(me) && !client.lost {
            steps.add(LISTENER, "Listener::run finds the producer gone", |w| {
                w.clients[me].lost = true;
            });
        }
        return;
    };
    if client.inbox_is_locked() {
        return;
    }
    match message {
        ToConsumer::None | ToConsumer::Welcome => {}
        ToConsumer::Region { id, base } => {
            steps.add(LISTENER, "Listener::handle maps a region", |w| {
                let ids = w.control_of(me).ids;
                let it = &mut w.clients[me];
                it.to_consumer.pop_front();
                it.inbox[id as usize - 1] = Answer::Ready(base);
                if setting.wrong != Some(Wrong::LateRegionIsKept) && ids & bit(id) == 0 {
                    it.inbox[id as usize - 1] = Answer::Gone;
                }
            });
        }
        ToConsumer::NoRegion(id) => {
            if may_sweep(setting, client, true) {
                steps.add(LISTENER, "MappedRegions::unmap_retired begins", |w| {
                    let version = w.control_of(me).version;
                    let it = &mut w.clients[me];
                    it.to_consumer.pop_front();
                    it.inbox[id as usize - 1] = Answer::Gone;
                    it.listener_sweep = Sweep::Compare { version };
                });
            }
        }
        ToConsumer::Sticky(version) => steps.add(LISTENER, "Listener::handle: sticky", |w| {
            let it = &mut w.clients[me];
            it.to_consumer.pop_front();
            it.stickies |= bit(version);
        }),
        ToConsumer::NoSticky(version) => steps.add(LISTENER, "Listener::handle: sticky", |w| {
            let it = &mut w.clients[me];
            it.to_consumer.pop_front();
            it.no_stickies |= bit(version);
        }),
    }
}

/// `MappedRegions::unmapping`: only one thread at a time unmaps regions.
fn may_sweep(setting: &Setting, client: &Client, listens: bool) -> bool {
    let other = if listens {
        client.user_sweep
    } else {
        client.listener_sweep
    };
    !client.inbox_is_locked() && (setting.wrong == Some(Wrong::TwoSweep) || other == Sweep::No)
}

/// `MappedRegions::unmap_retired`: the version and the ids under the lock of the regions; then unmap, then report.
fn sweep(setting: &Setting, world: &World, me: usize, steps: &mut Steps, listens: bool) {
    let client = &world.clients[me];
    let who = if listens { LISTENER } else { USER };
    let state = if listens {
        client.listener_sweep
    } else {
        client.user_sweep
    };
    let set = move |it: &mut Client, sweep| {
        if listens {
            it.listener_sweep = sweep;
        } else {
            it.user_sweep = sweep;
        }
    };
    match state {
        Sweep::No => {
            if may_sweep(setting, client, listens) && client.swept != world.control_of(me).version {
                steps.add(who, "MappedRegions::unmap_retired reads the version", |w| {
                    let version = w.control_of(me).version;
                    set(&mut w.clients[me], Sweep::Compare { version });
                });
            }
        }
        Sweep::Compare { version } => {
            steps.add(who, "MappedRegions::unmap_retired reads the ids", |w| {
                let ids = w.control_of(me).ids;
                let it = &mut w.clients[me];
                let mut gone = 0;
                for (id, answer) in (1..).zip(&mut it.inbox) {
                    if matches!(answer, Answer::Ready(_)) && ids & bit(id) == 0 {
                        gone |= bit(id);
                        *answer = Answer::None;
                    }
                }
                set(it, Sweep::Unmap { version, gone });
            });
        }
        Sweep::Unmap { version, .. } => {
            steps.add(
                who,
                "MappedRegions::unmap_retired unmaps, and reports it",
                |w| {
                    let it = &mut w.clients[me];
                    it.seen = version;
                    if !listens {
                        it.swept = version;
                        // `MappedRegions::sweep`
                        for answer in &mut it.inbox {
                            if *answer == Answer::Gone {
                                *answer = Answer::None;
                            }
                        }
                        it.user = User::Find;
                    }
                    set(it, Sweep::No);
                },
            );
        }
    }
}
