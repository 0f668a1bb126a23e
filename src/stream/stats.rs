// SPDX-License-Identifier: MPL-2.0

//! Statistics as GstStructures. A stopped element has the same fields.

use gst::prelude::*;
use xmem_core::{ConsumerStats, PoolStats, follow};

use crate::stream::meta::Losses;

/// `application/x-xmemsink-stats`.
pub(crate) fn of_sink(
    stats: &PoolStats,
    memory_copies: u64,
    late: u64,
    losses: &Losses,
) -> gst::Structure {
    let clients = stats
        .consumers
        .iter()
        .map(|client| of_client(client).to_send_value());
    gst::Structure::builder("application/x-xmemsink-stats")
        .field("published", stats.published)
        .field("zero-copy", stats.zero_copy)
        .field("copied", stats.copied)
        .field("dropped", stats.dropped)
        .field("scarce", stats.scarce)
        .field("late", late)
        .field("memory-copies", memory_copies)
        .field("metas-dropped", losses.total())
        .field("dropped-metas", losses.by_name())
        .field("slots", stats.slots)
        .field("slots-held", stats.slots_held)
        .field("max-slots", stats.max_slots)
        .field("budget-limit", stats.budget_limit.to_string())
        .field("regions", stats.regions)
        .field("bytes", stats.bytes)
        .field("devices", gst::Array::new(&stats.devices))
        .field("device-bytes", stats.device_bytes)
        .field("cut-off", stats.cut_off)
        .field("timed-out", stats.timed_out)
        .field("clients", gst::Array::from_values(clients))
        .build()
}

/// One consumer: an element of `clients`, and the argument of the sink's signals.
pub(crate) fn of_client(client: &ConsumerStats) -> gst::Structure {
    gst::Structure::builder("application/x-xmem-client")
        .field("id", client.id)
        .field("pid", client.pid)
        .field("uid", client.uid)
        .field("name", &client.name)
        .field("via", &client.via)
        .field("budget", client.budget)
        .field("held", client.held)
        .field("received", client.received)
        .field("missed", client.missed)
        .field("skipped", client.skipped)
        .field("copied", client.copied)
        .field("dropped", client.dropped)
        .field("oldest-held-age", client.oldest_held_age_ns)
        .field("latency", client.latency_ns)
        .field("waited-for", client.waited_for_ns)
        .field("device", &client.device)
        .build()
}

/// `application/x-xmemsrc-stats`.
pub(crate) fn of_source(
    stats: &follow::FollowerStats,
    zero_copy: u64,
    undecodable: u64,
    held: u64,
    memory_copies: u64,
    losses: &Losses,
) -> gst::Structure {
    let receive = &stats.receive;
    gst::Structure::builder("application/x-xmemsrc-stats")
        .field("received", receive.received)
        .field("missed", receive.missed)
        .field("skipped", receive.skipped)
        .field("zero-copy", zero_copy)
        .field("copied", stats.copied)
        .field("dropped", stats.dropped)
        .field("undecodable", undecodable)
        .field("memory-copies", memory_copies)
        .field("metas-dropped", losses.total())
        .field("dropped-metas", losses.by_name())
        .field("held", held)
        .field("budget", receive.budget)
        .field("budget-limit", receive.budget_limit.to_string())
        .field("reconnects", stats.reconnects)
        .field("latency", receive.latency_ns)
        .field("device", &stats.device)
        .build()
}
