// SPDX-License-Identifier: MPL-2.0

//! The steps of the producer's control thread: joins, departures, shares.

use super::setting::{Setting, Wrong};
use super::steps::Steps;
use super::world::*;

/// The name of the thread in its steps.
const CONTROL: &str = "producer, control";

/// The control thread. Its work under the lock accesses shared memory only once, so it is one step.
pub(crate) fn control(setting: &Setting, world: &World, steps: &mut Steps) {
    let lock_is_free = !world.producer.app.locks();
    // One action at a time.
    if let Some(client) = (0..CLIENTS).find(|client| world.clients[*client].serving != Serving::No)
    {
        serve(setting, world, steps, client, lock_is_free);
        return;
    }
    if world.producer.say_gone != 0 && lock_is_free {
        steps.add(CONTROL, "ControlThread::announce_gone", |w| {
            let gone = w.producer.say_gone;
            w.producer.say_gone = 0;
            for client in &mut w.clients {
                let gone = gone & client.sent;
                for id in (1..=REGIONS as u8).filter(|id| gone & bit(*id) != 0) {
                    send(setting, client, ToConsumer::NoRegion(id));
                }
            }
        });
    }
    if world.producer.push_sticky && lock_is_free {
        steps.add(CONTROL, "ControlThread::push_sticky", |w| {
            w.producer.push_sticky = false;
            let sticky = w.producer.sticky;
            for client in w.clients.iter_mut().filter(|it| it.listed && !it.left) {
                send(setting, client, ToConsumer::Sticky(sticky));
            }
        });
    }
    for client in 0..CLIENTS {
        if world.clients[client].session != world.life && world.clients[client].user != User::Dead {
            continue;
        }
        if let Some(message) = world.clients[client].to_producer.get().first() {
            answer(setting, steps, client, *message, lock_is_free);
        } else if world.clients[client].hung_up && lock_is_free {
            steps.add(CONTROL, "HUP: Pool::remove_consumer", |w| {
                let it = &mut w.clients[client];
                it.hung_up = false;
                if setting.wrong == Some(Wrong::DeathIsNotNoticed) && it.user == User::Dead {
                    return;
                }
                remove_peer(w, client);
                share_out(setting, w);
            });
        }
        if setting.wrong == Some(Wrong::PageOfALivingProcessDropped)
            && world.clients[client].listed
            && lock_is_free
        {
            steps.add(CONTROL, "a page is dropped, for no reason", |w| {
                remove_peer(w, client)
            });
        }
    }
}

/// `Guard::remove_consumer`, `Guard::forget_retired`. A dead process is removed, and a new one may take its place.
fn remove_peer(w: &mut World, client: usize) {
    let it = &mut w.clients[client];
    it.listed = false;
    it.left = false;
    it.sent = 0;
    it.kept = 0;
    it.reserved = 0;
    if it.user == User::Dead {
        *it = Client::default();
    }
    forget_retired(w);
}

/// `Retired::forget`
pub(crate) fn forget_retired(w: &mut World) {
    for (id, region) in (1..).zip(&mut w.producer.regions) {
        let RegionIs::Retired(version) = region.is else {
            continue;
        };
        for client in &mut w.clients {
            if !client.listed || client.seen >= version {
                client.sent &= !bit(id);
            }
        }
        if w.clients.iter().all(|client| client.sent & bit(id) == 0) {
            *region = Region::default();
        }
    }
}

/// A peer that does not read gets no answer.
fn send(setting: &Setting, client: &mut Client, message: ToConsumer) {
    let has_room = client.to_consumer.get().len() < setting.queue.into();
    if has_room && client.user != User::Dead && !client.hung_up {
        client.to_consumer.push(message);
    }
}

/// `ControlThread::answer`
fn answer(
    setting: &Setting,
    steps: &mut Steps,
    client: usize,
    message: ToProducer,
    lock_is_free: bool,
) {
    let take = |w: &mut World| {
        w.clients[client].to_producer.pop_front();
    };
    match message {
        ToProducer::None => {}
        ToProducer::Join if setting.wrong == Some(Wrong::WelcomeBeforeListing) => {
            steps.add(CONTROL, "the welcome is sent too early", |w| {
                take(w);
                let head = w.control().head;
                let it = &mut w.clients[client];
                it.cursor = head;
                it.seen = w.producer.version;
                send(setting, it, ToConsumer::Welcome);
                it.serving = Serving::List;
            });
        }
        ToProducer::Join if lock_is_free => {
            steps.add(CONTROL, "join::add_to_list", |w| {
                take(w);
                let head = w.control().head;
                let it = &mut w.clients[client];
                it.cursor = head;
                it.seen = w.producer.version;
                it.listed = true;
                it.serving = Serving::Welcome;
                share_out(setting, w);
            });
        }
        ToProducer::GetRegion(id) if lock_is_free => {
            steps.add(CONTROL, "Regions::send", |w| {
                take(w);
                let region = w.producer.regions[id as usize - 1];
                let it = &mut w.clients[client];
                if region.is == RegionIs::InUse {
                    it.sent |= bit(id);
                    it.serving = Serving::Region {
                        id,
                        base: region.base,
                    };
                } else {
                    send(setting, it, ToConsumer::NoRegion(id));
                }
            });
        }
        ToProducer::GetSticky(version) if lock_is_free => {
            steps.add(CONTROL, "StickyLog::get", |w| {
                take(w);
                let kept = w.producer.sticky_kept & bit(version) != 0;
                let answer = if kept {
                    ToConsumer::Sticky(version)
                } else {
                    ToConsumer::NoSticky(version)
                };
                send(setting, &mut w.clients[client], answer);
            });
        }
        ToProducer::Leave => steps.add(CONTROL, "ConsumerRecord::leave", |w| {
            take(w);
            w.clients[client].left = true;
            if setting.wrong == Some(Wrong::PageDroppedAtGoodbye) {
                remove_peer(w, client);
            }
        }),
        ToProducer::Join | ToProducer::GetRegion(_) | ToProducer::GetSticky(_) => {}
    }
}

/// The second part of an answer, without the lock.
fn serve(setting: &Setting, world: &World, steps: &mut Steps, client: usize, lock_is_free: bool) {
    match world.clients[client].serving {
        Serving::No => {}
        Serving::Welcome => steps.add(CONTROL, "ControlThread::join sends the welcome", |w| {
            let sticky = w.producer.sticky;
            let it = &mut w.clients[client];
            it.serving = Serving::No;
            send(setting, it, ToConsumer::Welcome);
            send(setting, it, ToConsumer::Sticky(sticky));
        }),
        Serving::Region { id, base } => {
            steps.add(CONTROL, "ControlThread::send_region sends it", |w| {
                let it = &mut w.clients[client];
                it.serving = Serving::No;
                send(setting, it, ToConsumer::Region { id, base });
            });
        }
        Serving::List if lock_is_free => steps.add(CONTROL, "the page is listed too late", |w| {
            let sticky = w.producer.sticky;
            let it = &mut w.clients[client];
            it.serving = Serving::No;
            it.listed = true;
            send(setting, it, ToConsumer::Sticky(sticky));
        }),
        Serving::List => {}
    }
}

/// `ConsumerRecord::claim`: the number of frames that a consumer may keep from before.
fn kept(w: &mut World, client: usize) -> u8 {
    let words = w.control().words;
    let it = &w.clients[client];
    it.reserved.min(it.lease_count(&words) + 1)
}

/// `Claim::slots`
fn slots(setting: &Setting, client: &Client, share: u8) -> u8 {
    client.kept.max(setting.budget.min(share) + 1)
}

/// The slots for consumers: one frame is being written, and the history is kept.
fn room(setting: &Setting) -> u8 {
    setting.max_slots - setting.history - 1
}

/// Whether all reserved slots exist. This is not the case if consumers keep so many frames that not even one slot for each is left.
pub(crate) fn is_enough(setting: &Setting, world: &World) -> bool {
    let listed = world.clients.iter().filter(|client| client.listed);
    listed.map(|client| client.reserved).sum::<u8>() <= room(setting)
        || setting.wrong == Some(Wrong::NothingIsReserved)
}

/// `Shares::largest`
fn largest_share(setting: &Setting, world: &World) -> u8 {
    let taken = |share: &u8| {
        let listed = world.clients.iter().filter(|client| client.listed);
        listed
            .map(|client| slots(setting, client, *share))
            .sum::<u8>()
    };
    let fits = |share: &u8| taken(share) <= room(setting);
    if setting.wrong == Some(Wrong::NothingIsReserved) {
        return setting.budget;
    }
    (0..=setting.budget).rev().find(fits).unwrap_or(0)
}

/// `Shares::share_out`: stores the share. If it became smaller, the leases are counted afterwards.
fn share_out(setting: &Setting, w: &mut World) {
    if !setting.reserve {
        return;
    }
    for client in 0..CLIENTS {
        w.clients[client].kept = kept(w, client);
    }
    if setting.wrong == Some(Wrong::LeasesAreCountedFirst) {
        look_at_leases(w);
        return;
    }
    let share = largest_share(setting, w);
    store_share(setting, w, share);
}

fn look_at_leases(w: &mut World) {
    w.producer.sharing = true;
    for client in &mut w.clients {
        client.to_count = client.listed;
    }
}

fn store_share(setting: &Setting, w: &mut World, share: u8) {
    let is_smaller = share < w.control().share;
    w.control().share = share;
    if is_smaller && setting.wrong != Some(Wrong::LeasesAreCountedFirst) {
        look_at_leases(w);
    } else {
        reserve(setting, w);
    }
}

/// `ConsumerRecord::reserve`
fn reserve(setting: &Setting, w: &mut World) {
    let share = w.control().share;
    for client in &mut w.clients {
        if client.listed {
            client.reserved = slots(setting, client, share);
        }
        client.kept = 0;
    }
}

/// `Shares::share_out` reads the lease pages one after another.
pub(crate) fn count_leases(setting: &Setting, world: &World, steps: &mut Steps) {
    for client in 0..CLIENTS {
        if world.clients[client].to_count {
            steps.add(CONTROL, "Shares::share_out looks at a lease page", |w| {
                w.clients[client].kept = kept(w, client);
                w.clients[client].to_count = false;
                if w.clients.iter().any(|client| client.to_count) {
                    return;
                }
                w.producer.sharing = false;
                let share = largest_share(setting, w);
                if share < w.control().share || setting.wrong == Some(Wrong::LeasesAreCountedFirst)
                {
                    store_share(setting, w, share);
                } else {
                    reserve(setting, w);
                }
            });
        }
    }
}
