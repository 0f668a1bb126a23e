// SPDX-License-Identifier: MPL-2.0

//! `xmem metrics`

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use xmem_core::discovery::printable;
use xmem_core::{ConsumerStats, PoolStats};

use crate::Error;
use crate::http::{self, error, response};
use crate::pools::{Pool, Shared, caps_summary};

const PATH: &str = "/metrics";
/// How long all requests share one answer of the producers.
const FRESH: Duration = Duration::from_millis(500);
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) fn run(listen: SocketAddr) -> Result<(), Error> {
    let pools = Shared::default();
    http::serve(listen, "statistics", PATH, move |request| {
        if request.path() != PATH {
            return error(StatusCode::NOT_FOUND, "the statistics are at /metrics");
        }
        match pools.get(FRESH).and_then(|pools| Ok(text(pools)?)) {
            Ok(text) => response(CONTENT_TYPE, text),
            Err(reason) => error(StatusCode::INTERNAL_SERVER_ERROR, &reason.to_string()),
        }
    })
}

fn text(pools: Arc<Vec<Pool>>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Pools(pools)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// The figures at one time.
#[derive(Debug)]
struct Pools(Arc<Vec<Pool>>);

type Labels = Vec<(&'static str, String)>;

impl Collector for Pools {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut write =
            |name, help, series: Vec<(Labels, Value)>| write(&mut encoder, name, help, series);
        let labels = |pool: &Pool| vec![("pool", printable(&pool.name))];
        let all = || self.0.iter().map(|pool| (labels(pool), pool));
        let live = || all().filter_map(|(labels, pool)| Some((labels, pool.stats.as_ref()?)));
        let info = |stats: &PoolStats| -> Value {
            let format = caps_summary(stats).unwrap_or_default();
            Box::new(Info::new(vec![
                ("format", printable(&format)),
                ("delivery", stats.delivery.to_string()),
            ]))
        };
        let is_live = all().map(|(labels, pool)| (labels, gauge(pool.stats.is_some())));
        write(
            "xmem_pool_live",
            "1 if the pool has a producer that answers",
            is_live.collect(),
        )?;
        write(
            "xmem_pool",
            "The format of the frames, and the delivery",
            live()
                .map(|(labels, stats)| (labels, info(stats)))
                .collect(),
        )?;
        for &(name, help, value) in POOL {
            let pools = live().map(|(labels, stats)| (labels, value(stats)));
            write(name, help, pools.collect())?;
        }
        for &(name, help, value) in CONSUMER {
            let consumers = live().flat_map(|(labels, stats)| {
                // Consumers with `via` are also listed by the pool from which they take frames.
                let own = stats.consumers.iter().filter(|it| it.via.is_empty());
                own.map(move |it| (consumer_labels(&labels, it), value(it)))
            });
            write(name, help, consumers.collect())?;
        }
        Ok(())
    }
}

fn consumer_labels(pool: &Labels, consumer: &ConsumerStats) -> Labels {
    let mut labels = pool.clone();
    labels.push(("consumer", printable(&consumer.name)));
    // A unique label, because two consumers may have the same name.
    labels.push(("id", consumer.id.to_string()));
    labels
}

type Value = Box<dyn EncodeMetric>;

fn counter(figure: u64) -> Value {
    Box::new(ConstCounter::new(figure))
}

fn gauge(figure: impl Into<f64>) -> Value {
    Box::new(ConstGauge::new(figure.into()))
}

fn count(figure: u64) -> Value {
    gauge(figure as f64)
}

fn seconds(ns: u64) -> Value {
    gauge(ns as f64 / 1e9)
}

type Figure<T> = (&'static str, &'static str, fn(&T) -> Value);

macro_rules! figures {
    ($($name:literal, $help:literal, $figure:expr;)*) => { &[$(($name, $help, $figure)),*] };
}

/// The encoder adds the suffix `_total` to the names of counters.
const POOL: &[Figure<PoolStats>] = figures! {
    "xmem_pool_up_seconds", "Since the producer made the pool", |it| seconds(it.up_ns);
    "xmem_pool_fps", "Frames per second", |it| gauge(it.fps);
    "xmem_pool_published", "Frames published", |it| counter(it.published);
    "xmem_pool_copied", "Frames that the producer copied into a slot", |it| counter(it.copied);
    "xmem_pool_dropped", "Frames that found no free slot", |it| counter(it.dropped);
    "xmem_pool_scarce", "Frames that were copied or dropped because upstream had few buffers left", |it| counter(it.scarce);
    "xmem_pool_slots", "Slots that exist", |it| gauge(it.slots);
    "xmem_pool_slots_held", "Slots that are in use", |it| gauge(it.slots_held);
    "xmem_pool_bytes", "Bytes of shared memory", |it| count(it.bytes);
    "xmem_pool_consumers", "Consumers", |it| count(it.consumers.len() as u64);
    "xmem_pool_cut_off", "Consumers that were disconnected for a broken lease page", |it| counter(it.cut_off);
    "xmem_pool_timed_out", "Consumers that were disconnected for holding up a lossless pool", |it| counter(it.timed_out);
};

const CONSUMER: &[Figure<ConsumerStats>] = figures! {
    "xmem_consumer_received", "Frames that the consumer took", |it| counter(it.received);
    "xmem_consumer_missed", "Frames that were gone before the consumer took them", |it| counter(it.missed);
    "xmem_consumer_skipped", "Frames that the consumer left out, because it limits its rate", |it| counter(it.skipped);
    "xmem_consumer_copied", "Frames that the consumer copied", |it| counter(it.copied);
    "xmem_consumer_dropped", "Frames that the consumer took and dropped", |it| counter(it.dropped);
    "xmem_consumer_budget", "Slots that the consumer may hold", |it| gauge(it.budget);
    "xmem_consumer_held", "Slots that the consumer holds", |it| gauge(it.held);
    "xmem_consumer_latency_seconds", "From publish to receive, smoothed", |it| seconds(it.latency_ns);
    "xmem_consumer_oldest_held_seconds", "Age of the oldest frame that the consumer holds", |it| seconds(it.oldest_held_age_ns);
    "xmem_consumer_waited_for_seconds", "How long a lossless producer has waited for the consumer", |it| seconds(it.waited_for_ns);
};

/// Writes one metric with all its series.
fn write(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: Vec<(Labels, Value)>,
) -> fmt::Result {
    let Some((_, first)) = series.first() else {
        return Ok(());
    };
    let kind = first.metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in &series {
        value.encode(family.encode_family(labels)?)?;
    }
    Ok(())
}
