// SPDX-License-Identifier: MPL-2.0

//! The steps of the producer's publishing thread. `control` has those of its control thread.
//!
//! A step is one access to shared memory or one message, with all actions that only this process sees. Each step names the function
//! of `xmem_core` that implements it; a change of that function requires a change of the step. `Guard::looks_free` is left out: it
//! also reads leases, but only to avoid claims that would be refused.

use super::control::{control, count_leases, forget_retired, is_enough};
use super::setting::{Setting, Wrong};
use super::steps::Steps;
use super::world::*;

/// The publishing thread.
const APP: &str = "producer";

pub(crate) fn steps(setting: &Setting, world: &World, steps: &mut Steps) {
    if !world.producer.alive {
        if world.left.restarts > 0 {
            steps.add(APP, "starts again: ProducerBuilder::build", |w| {
                w.left.restarts -= 1;
                w.life += 1;
                start(setting, w);
            });
        }
        return;
    }
    if world.producer.sharing {
        // Other threads of the process would wait for the lock.
        count_leases(setting, world, steps);
    } else {
        app(setting, world, steps);
        control(setting, world, steps);
    }
    if world.left.producer_crashes > 0 {
        steps.add(APP, "is killed", |w| {
            w.left.producer_crashes -= 1;
            crash(w);
        });
    }
}

/// A new producer, without state and mappings.
pub(crate) fn start(setting: &Setting, world: &mut World) {
    world.producer = Producer {
        alive: true,
        sticky: 0,
        sticky_kept: bit(0),
        ..Producer::default()
    };
    let first = world.life == 2 && setting.wrong == Some(Wrong::MemoryIsReusedAfterRestart);
    let base = if first { Some(0) } else { None };
    install(setting, world, base);
    world.control().share = setting.budget;
}

/// The actions of the kernel after the death of the process. Consumers keep their mappings, and can read messages that were sent.
fn crash(world: &mut World) {
    world.producer = Producer::default();
    for client in &mut world.clients {
        if client.user == User::Dead {
            *client = Client::default();
        }
        client.listed = false;
        client.left = false;
        client.sent = 0;
        client.hung_up = false;
        client.to_look_at = false;
        client.to_count = false;
        client.kept = 0;
        client.reserved = 0;
        client.serving = Serving::No;
        client.to_producer = List::default();
    }
}

fn app(setting: &Setting, world: &World, steps: &mut Steps) {
    let producer = &world.producer;
    match producer.app {
        App::Idle => {
            if world.left.frames > 0 {
                pick(
                    setting,
                    world,
                    steps,
                    producer.idle.get().len() as u8,
                    false,
                );
            }
            if world.left.collects > 0 {
                for id in cold(world) {
                    steps.add(APP, "Producer::collect begins", |w| {
                        w.left.collects -= 1;
                        w.producer.app = App::Retire { region: id, at: 0 };
                    });
                }
            }
            if world.left.stickies > 0 {
                steps.add(APP, "Pool::set_sticky", |w| {
                    w.left.stickies -= 1;
                    push_sticky(setting, w);
                });
            }
        }
        App::Pick { at, grown } => pick(setting, world, steps, at, grown),
        App::Look { slot, at, why } => look(setting, world, steps, slot, at, why),
        App::PutBack { slot, at, why } => {
            steps.add(APP, "lease::claim puts the word back", |w| {
                w.control().words[slot as usize].state = SlotState::Published;
                w.producer.app = match why {
                    Purpose::Frame => App::Pick { at, grown: false },
                    Purpose::Retire(region) => App::Retire { region, at },
                };
            });
        }
        App::Grow => steps.add(APP, "Regions::install, Guard::show_regions", |w| {
            install(setting, w, None);
            let at = w.producer.idle.get().len() as u8;
            w.producer.app = App::Pick { at, grown: true };
        }),
        App::Write { slot } => steps.add(APP, "WriteLease::as_mut_slice is written", |w| {
            w.written += 1;
            w.bytes[place_of(w, slot)] = w.written;
            w.producer.app = App::Written { slot };
        }),
        App::Written { slot } => {
            if setting.abandon {
                steps.add(APP, "Pool::abandon", |w| {
                    w.control().words[slot as usize].state = SlotState::Free;
                    w.producer.idle.push(slot);
                    w.producer.app = App::Idle;
                });
            }
            // `publish::guard_with_room`
            if !setting.lossless || backlog(world) < RING {
                publish(setting, steps, slot, 0);
            }
        }
        App::Publish { slot, done } => publish(setting, steps, slot, done),
        App::Retire { region, at } => retire(setting, world, steps, region, at),
        App::Show { region, done } => show(setting, steps, region, done),
    }
}

/// `Search::idle`, `Guard::claim`, and the announcement in `lease::claim`.
fn pick(setting: &Setting, world: &World, steps: &mut Steps, at: u8, grown: bool) {
    let producer = &world.producer;
    for at in (0..at).rev() {
        let slot = producer.idle.get()[at as usize];
        if is_free(setting, world, slot) {
            announce(setting, world, steps, slot, at, Purpose::Frame);
            return;
        }
    }
    let assigned = producer.places.iter().filter(|place| place.region != 0);
    if !grown && assigned.count() < setting.max_slots as usize {
        steps.add(APP, "Regions::plan", |w| w.producer.app = App::Grow);
        return;
    }
    steps.add(APP, "claim::find finds no slot", |w| {
        w.producer.app = App::Idle;
        if setting.reserve && is_enough(setting, w) {
            w.flaw = Some("a pool is exhausted though slots were reserved");
        }
        // Limited, so that the exploration ends.
        if !setting.lossless {
            w.left.frames -= 1;
        }
    });
    // `wait::note_slowest`
    if setting.lossless && world.left.give_ups > 0 {
        for client in 0..CLIENTS {
            let it = world.clients[client];
            if it.listed && !it.left && it.cursor < world.controls[world.life as usize - 1].head {
                steps.add(APP, "wait::note_slowest", |w| {
                    w.left.give_ups -= 1;
                    w.clients[client].left = true;
                    w.clients[client].timed_out = true;
                    w.producer.app = App::Idle;
                });
            }
        }
    }
}

/// The deciding part of `Guard::looks_free`: whether a lossless consumer still has to take the frame.
fn is_free(setting: &Setting, world: &World, slot: u8) -> bool {
    let word = world.controls[world.life as usize - 1].words[slot as usize];
    !setting.lossless
        || setting.wrong == Some(Wrong::CursorIsNotLookedAt)
        || word.state != SlotState::Published
        || world.clients.iter().all(|client| {
            // `ConsumerRecord::cursor`. A cursor is the next sequence, counted from 1 here.
            !client.listed
                || client.left
                || client.cursor == CURSOR_LEFT
                || client.cursor >= world.producer.last_sequence[slot as usize]
        })
}

fn announce(setting: &Setting, world: &World, steps: &mut Steps, slot: u8, at: u8, why: Purpose) {
    let published =
        world.controls[world.life as usize - 1].words[slot as usize].state == SlotState::Published;
    let looks = published
        && world.clients.iter().any(|client| client.listed)
        && !(matches!(why, Purpose::Retire(_)) && setting.wrong == Some(Wrong::RetiredWhileHeld));
    steps.add(APP, "lease::claim announces", |w| {
        if setting.wrong != Some(Wrong::ClaimLooksFirst) {
            w.control().words[slot as usize].state = SlotState::Claimed;
        }
        if looks {
            for client in &mut w.clients {
                client.to_look_at = client.listed;
            }
            w.producer.app = App::Look { slot, at, why };
        } else {
            claimed(setting, w, slot, at, why);
        }
    });
}

/// `lease::claim` reads the leases one after another.
fn look(setting: &Setting, world: &World, steps: &mut Steps, slot: u8, at: u8, why: Purpose) {
    let generation = world.controls[world.life as usize - 1].words[slot as usize].generation;
    for client in 0..CLIENTS {
        if !world.clients[client].to_look_at {
            continue;
        }
        let held = world.clients[client].leases[slot as usize] == generation;
        if held && setting.wrong == Some(Wrong::ClaimWaits) {
            continue;
        }
        steps.add(APP, "lease::claim looks at a lease word", |w| {
            if held {
                for client in &mut w.clients {
                    client.to_look_at = false;
                }
                w.producer.app = App::PutBack { slot, at, why };
                return;
            }
            w.clients[client].to_look_at = false;
            if w.clients.iter().all(|client| !client.to_look_at) {
                claimed(setting, w, slot, at, why);
            }
        });
    }
}

/// `lease::claim` increments the generation. The rest is under the same lock.
fn claimed(setting: &Setting, w: &mut World, slot: u8, at: u8, why: Purpose) {
    let word = &mut w.control().words[slot as usize];
    if setting.wrong != Some(Wrong::SameGeneration) || word.generation == 0 {
        word.generation += 1;
    }
    word.state = SlotState::Claimed;
    match why {
        // `Slot::claimed`
        Purpose::Frame => {
            w.producer.idle.remove(slot);
            w.left.frames -= 1;
            w.producer.app = App::Write { slot };
        }
        // `Guard::retire_region`, `Slots::unassign`
        Purpose::Retire(region) => {
            w.control().words[slot as usize].state = SlotState::Free;
            w.producer.idle.remove(slot);
            w.producer.places[slot as usize] = Place::default();
            w.producer.app = App::Retire { region, at };
        }
    }
}

/// `publish::commit`, `publish::make_visible`: the slot word, the entry, the head.
fn publish(setting: &Setting, steps: &mut Steps, slot: u8, done: u8) {
    #[derive(Clone, Copy)]
    enum Store {
        Word,
        Entry,
        Head,
    }
    use Store::{Entry as TheEntry, Head, Word as TheWord};
    let order = match setting.wrong {
        Some(Wrong::HeadBeforeEntry) => [TheWord, Head, TheEntry],
        Some(Wrong::WordAfterHead) => [TheEntry, Head, TheWord],
        _ => [TheWord, TheEntry, Head],
    };
    let store = order[done as usize];
    let what = match store {
        TheWord => "lease::publish",
        TheEntry => "Control::write_entry",
        Head => "Control::set_head",
    };
    steps.add(APP, what, |w| {
        let frame = w.bytes[place_of(w, slot)];
        let sticky = w.producer.sticky;
        // With a wrong order, the head has already been stored.
        let moved = order[..done as usize]
            .iter()
            .any(|store| matches!(store, Head));
        let control = w.control();
        let sequence = control.head + u8::from(!moved);
        match store {
            TheWord => control.words[slot as usize].state = SlotState::Published,
            TheEntry => {
                control.ring[(sequence % RING) as usize] = Entry {
                    sequence,
                    slot,
                    generation: control.words[slot as usize].generation,
                    region: 0,
                    offset: 0,
                    sticky,
                    frame,
                };
            }
            Head => control.head = sequence,
        }
        if (done as usize) < order.len() - 1 {
            w.producer.app = App::Publish {
                slot,
                done: done + 1,
            };
            return;
        }
        w.producer.last_sequence[slot as usize] = sequence;
        w.producer.history.push(slot);
        // `Guard::trim_history`. The caller's own reference is dropped immediately.
        while w.producer.history.get().len() > setting.history as usize {
            if let Some(old) = w.producer.history.pop_front() {
                w.producer.idle.push(old);
            }
        }
        w.producer.app = App::Idle;
    });
}

/// The regions that `Guard::retire` may remove: not used by the producer, and not the last one.
fn cold(world: &World) -> impl Iterator<Item = u8> {
    let producer = &world.producer;
    let in_use = producer
        .regions
        .iter()
        .filter(|region| region.is == RegionIs::InUse)
        .count();
    (1..)
        .zip(&producer.regions)
        .filter_map(move |(id, region)| {
            let slots = (0..SLOTS as u8)
                .filter(|slot| producer.places[*slot as usize].region == id)
                .all(|slot| producer.idle.get().contains(&slot));
            (in_use > 1 && region.is == RegionIs::InUse && slots).then_some(id)
        })
}

/// `Guard::retire_region`: the slots one after another, then the region.
fn retire(setting: &Setting, world: &World, steps: &mut Steps, region: u8, at: u8) {
    let slot = (at..SLOTS as u8).find(|slot| {
        world.producer.places[*slot as usize].region == region && is_free(setting, world, *slot)
    });
    if let Some(slot) = slot {
        announce(
            setting,
            world,
            steps,
            slot,
            slot + 1,
            Purpose::Retire(region),
        );
        return;
    }
    let empty = world
        .producer
        .places
        .iter()
        .all(|place| place.region != region);
    if empty {
        show(setting, steps, region, 0);
    } else {
        steps.add(APP, "Guard::forget_retired", |w| {
            forget_retired(w);
            w.producer.app = App::Idle;
        });
    }
}

/// `Guard::show_regions`: the ids, then the version.
fn show(setting: &Setting, steps: &mut Steps, region: u8, done: u8) {
    let ids = (done == 0) != (setting.wrong == Some(Wrong::VersionBeforeIds));
    let what = if ids {
        "Guard::show_regions stores the ids"
    } else {
        "regions::show"
    };
    steps.add(APP, what, |w| {
        if done == 0 {
            w.producer.version += 1;
            w.producer.regions[region as usize - 1].is = RegionIs::Retired(w.producer.version);
        }
        if ids {
            store_ids(w);
        } else {
            w.control().version = w.producer.version;
        }
        if done == 0 {
            w.producer.app = App::Show { region, done: 1 };
        } else {
            forget_retired(w);
            w.producer.say_gone |= bit(region);
            w.producer.app = App::Idle;
        }
    });
}

fn store_ids(w: &mut World) {
    w.control().ids = (1..)
        .zip(&w.producer.regions)
        .filter(|(_, region)| region.is == RegionIs::InUse)
        .fold(0, |bits, (id, _)| bits | bit(id));
}

/// `Regions::install`, `Slots::assign`, `Guard::show_places`, `Guard::show_regions`.
fn install(setting: &Setting, w: &mut World, base: Option<u8>) {
    let is_first = w.producer.last_region == 0;
    let slots = if is_first { setting.first } else { 1 };
    let id = if setting.wrong == Some(Wrong::RegionIdsAreReused) {
        (1..=REGIONS as u8)
            .find(|id| w.producer.regions[*id as usize - 1].is != RegionIs::InUse)
            .unwrap_or(1)
    } else {
        w.producer.last_region + 1
    };
    w.producer.last_region = id.max(w.producer.last_region);
    let base = base.unwrap_or_else(|| {
        let base = w.next_base;
        w.next_base += slots;
        base
    });
    w.producer.regions[id as usize - 1] = Region {
        is: RegionIs::InUse,
        base,
        slots,
    };
    let mut offset = 0;
    for slot in 0..SLOTS {
        if offset < slots && w.producer.places[slot].region == 0 {
            let place = Place { region: id, offset };
            w.producer.places[slot] = place;
            w.control().places[slot] = place;
            w.producer.idle.insert(0, slot as u8);
            offset += 1;
        }
    }
    store_ids(w);
}

fn place_of(world: &World, slot: u8) -> usize {
    let place = world.producer.places[slot as usize];
    (world.producer.regions[place.region as usize - 1].base + place.offset) as usize
}

/// `Consumers::backlog`
fn backlog(world: &World) -> u8 {
    let head = world.controls[world.life as usize - 1].head;
    let behind = |client: &Client| head - client.cursor;
    world
        .clients
        .iter()
        .filter(|client| client.listed && !client.left && client.cursor != CURSOR_LEFT)
        .map(behind)
        .max()
        .unwrap_or(0)
}

/// `StickyLog::push`, `StickyLog::forget_before`.
fn push_sticky(setting: &Setting, w: &mut World) {
    let head = w.control().head;
    let producer = &mut w.producer;
    let last = producer.sticky;
    producer.sticky += 1;
    // No frame was published in between, so no frame needs the last version.
    if producer.sticky_since[last as usize] == head {
        producer.sticky_kept &= !bit(last);
    }
    if setting.wrong == Some(Wrong::StickyIsForgotten) {
        producer.sticky_kept = 0;
    }
    producer.sticky_kept |= bit(producer.sticky);
    producer.sticky_since[producer.sticky as usize] = head;
    producer.push_sticky = true;
}
