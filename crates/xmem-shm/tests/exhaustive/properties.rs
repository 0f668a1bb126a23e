// SPDX-License-Identifier: MPL-2.0

//! The properties of all states.

use super::setting::Setting;
use super::steps::Steps;
use super::world::*;

/// The violated property of a state. `None` if there is none.
pub(crate) fn flaw(setting: &Setting, world: &World) -> Option<&'static str> {
    world
        .flaw
        .or_else(|| torn(world))
        .or_else(|| written_while_held(world))
        .or_else(|| over_budget(setting, world))
        .or_else(|| wrongly_disconnected(setting, world))
        .or_else(|| waits_for_a_consumer(setting, world))
        .or_else(|| is_at_rest(world).then(|| leak(world)).flatten())
}

/// A held frame does not change, also if its producer is dead.
fn torn(world: &World) -> Option<&'static str> {
    let frames = world
        .clients
        .iter()
        .flat_map(|client| client.held.iter().chain([&client.old]));
    frames
        .filter(|held| held.frame != 0)
        .any(|held| world.bytes[held.place as usize] != held.frame)
        .then_some("a frame that is held is torn")
}

/// Detects a violation earlier than `torn`: the producer must not write a frame that a live consumer holds.
fn written_while_held(world: &World) -> Option<&'static str> {
    let App::Write { slot } = world.producer.app else {
        return None;
    };
    (0..CLIENTS)
        .any(|client| {
            world.is_producer_of(client) && world.clients[client].held[slot as usize].frame != 0
        })
        .then_some("a slot that is held is claimed")
}

fn over_budget(setting: &Setting, world: &World) -> Option<&'static str> {
    world
        .clients
        .iter()
        .any(|client| client.held_count() > setting.limit())
        .then_some("a consumer holds more than its budget")
}

/// `ConsumerRecord::protocol_violation` does not disconnect correct consumers.
fn wrongly_disconnected(setting: &Setting, world: &World) -> Option<&'static str> {
    if !setting.reserve || !world.producer.alive || world.producer.sharing {
        return None;
    }
    let words = &world.controls[world.life as usize - 1].words;
    let mut listed = world.clients.iter().filter(|client| client.listed);
    listed
        .any(|client| client.lease_count(words) > client.reserved)
        .then_some("a consumer that follows the rules is cut off")
}

/// A live producer can continue an operation independent of consumers. A lossless producer waits for a slot only outside of the
/// operation.
fn waits_for_a_consumer(setting: &Setting, world: &World) -> Option<&'static str> {
    if !world.producer.alive || world.producer.app == App::Idle || world.producer.sharing {
        return None;
    }
    if setting.lossless && matches!(world.producer.app, App::Written { .. }) {
        return None;
    }
    let mut out = Vec::new();
    super::producer::steps(setting, world, &mut Steps::new(world, &mut out));
    // The control thread and a crash do not help the publishing thread.
    (!out
        .iter()
        .any(|((who, what), _)| *who == "producer" && *what != "is killed"))
    .then_some("the producer waits for a consumer")
}

/// No operation is in progress, and every death was detected. Resources that exist in such a state would exist permanently.
pub(crate) fn is_at_rest(world: &World) -> bool {
    world.producer.alive
        && world.producer.app == App::Idle
        && world.producer.say_gone == 0
        && !world.producer.push_sticky
        && !world.producer.sharing
        && (0..CLIENTS).all(|n| {
            let client = &world.clients[n];
            !client.hung_up
                && client.to_consumer.is_empty()
                && client.to_producer.is_empty()
                && client.serving == Serving::No
                && client.user_sweep == Sweep::No
                && client.listener_sweep == Sweep::No
                && match client.user {
                    User::Out | User::Left | User::Dead => true,
                    // It has checked for retired regions. A consumer that checks later reports later.
                    User::Ready => {
                        client.session == world.life && client.swept == world.control_of(n).version
                    }
                    _ => false,
                }
        })
}

fn leak(world: &World) -> Option<&'static str> {
    let control = world.controls[world.life as usize - 1];
    let producer = &world.producer;
    for client in &world.clients {
        if client.user == User::Dead {
            return Some("a dead consumer's page still counts");
        }
        for (slot, lease) in client.leases.iter().enumerate() {
            let is_held = client.held[slot].frame != 0;
            if client.listed && *lease == control.words[slot].generation && *lease != 0 && !is_held
            {
                return Some("a lease keeps a slot that nobody holds");
            }
        }
        let connected = client.listed && client.session == world.life;
        if connected && client.mapped() & !client.sent != 0 {
            return Some("a consumer has memory mapped that its producer has forgotten");
        }
    }
    for slot in 0..SLOTS {
        let slot_id = slot as u8;
        let has_place = producer.places[slot].region != 0;
        let idle = producer.idle.get().contains(&slot_id);
        let kept = producer.history.get().contains(&slot_id);
        if has_place != (idle || kept) || (idle && kept) {
            return Some("a slot is lost to the producer");
        }
    }
    let mut after = *world;
    super::control::forget_retired(&mut after);
    after
        .producer
        .regions
        .iter()
        .any(|region| matches!(region.is, RegionIs::Retired(_)))
        .then_some("a region that nobody has mapped still counts")
}
