// SPDX-License-Identifier: MPL-2.0

//! Statistics as GstStructures. The fields are the same whether the element runs or not.

use gst::prelude::*;
use xmem_core::{BudgetLimit, ConsumerStats, PoolStats, ReceiveStats};

use crate::meta::Losses;

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
        .field("late", late)
        .field("memory-copies", memory_copies)
        .field("metas-dropped", losses.total())
        .field("dropped-metas", losses.by_name())
        .field("slots", stats.slots)
        .field("slots-held", stats.slots_held)
        .field("max-slots", stats.max_slots)
        .field("budget-limit", &stats.budget_limit)
        .field("regions", stats.regions)
        .field("bytes", stats.bytes)
        .field("devices", gst::Array::new(&stats.devices))
        .field("device-bytes", stats.device_bytes)
        .field("cut-off", stats.cut_off)
        .field("timed-out", stats.timed_out)
        .field("clients", gst::Array::from_values(clients))
        .build()
}

/// One consumer, as a structure of `clients` and as the argument of the sink's signals.
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
        .field("copied", client.copied)
        .field("dropped", client.dropped)
        .field("oldest-held-age", client.oldest_held_age_ns)
        .field("latency", client.latency_ns)
        .field("waited-for", client.waited_for_ns)
        .field("device", &client.device)
        .build()
}

/// What a source has counted itself, over all producers it was connected to.
#[derive(Debug, Default, Clone)]
pub(crate) struct SourceFigures {
    /// Frames handed downstream where they lie.
    pub(crate) zero_copy: u64,
    /// Frames copied first.
    pub(crate) copied: u64,
    /// Frames given up because the budget was used up.
    pub(crate) dropped: u64,
    /// Frames given up because the key frame that they need was not received.
    pub(crate) undecodable: u64,
    /// How often it found a producer again.
    pub(crate) reconnects: u64,
    /// Frames taken from the producers before the current one.
    received_before: u64,
    /// Frames missed from the producers before the current one.
    missed_before: u64,
    /// What the last producer granted, and what kept that small.
    last_budget: (u32, BudgetLimit),
    /// How long the last producer's frames were on their way.
    last_latency_ns: u64,
    /// How its device memory came here.
    last_device: String,
}

impl SourceFigures {
    /// Adds what was received from a producer that is left now.
    pub(crate) fn add(&mut self, past: &ReceiveStats, device: String) {
        self.received_before += past.received;
        self.missed_before += past.missed;
        self.last_budget = (past.budget, past.budget_limit);
        self.last_latency_ns = past.latency_ns;
        self.last_device = device;
    }
}

/// `application/x-xmemsrc-stats`. `current` and `device` are of the connection that there is, if there is one.
pub(crate) fn of_source(
    figures: &SourceFigures,
    current: &ReceiveStats,
    device: Option<&str>,
    held: u64,
    memory_copies: u64,
    losses: &Losses,
) -> gst::Structure {
    // Of a connection there is, 0 says that nothing is to be held.
    let (budget, budget_limit) = match device {
        Some(_) => (current.budget, current.budget_limit),
        None => figures.last_budget,
    };
    let latency = match current.latency_ns {
        0 => figures.last_latency_ns,
        latency => latency,
    };
    gst::Structure::builder("application/x-xmemsrc-stats")
        .field("received", figures.received_before + current.received)
        .field("missed", figures.missed_before + current.missed)
        .field("zero-copy", figures.zero_copy)
        .field("copied", figures.copied)
        .field("dropped", figures.dropped)
        .field("undecodable", figures.undecodable)
        .field("memory-copies", memory_copies)
        .field("metas-dropped", losses.total())
        .field("dropped-metas", losses.by_name())
        .field("held", held)
        .field("budget", budget)
        .field("budget-limit", budget_limit.to_string())
        .field("reconnects", figures.reconnects)
        .field("latency", latency)
        .field("device", device.unwrap_or(&figures.last_device))
        .build()
}
