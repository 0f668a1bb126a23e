// SPDX-License-Identifier: MPL-2.0

//! The command `xmem-bridge import POOL@HOST`.

mod assembly;
mod diagnosis;
mod inbound;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use xmem_core::key_frame::KeyFrame;
use xmem_core::{PoolEvent, Producer, monotonic_ns};

use crate::cli::Import;
use crate::clock::Clock;
use crate::link::{Fault, Link, Outlet, Side, Urgency};
use crate::report::{Minute, State, line};
use crate::signals::Signals;
use crate::window::CREDIT_TIME;
use crate::wire::{Down, Hello, Ids, Request, Up};
use crate::{Error, keys, lock, random};
use diagnosis::Diagnosis;
use inbound::{Figures, Inbound, RemotePool};

/// How long the importer prints a refusal as its state. The exporter repeats refusals.
const REFUSED: Duration = Duration::from_secs(3);

/// Wakes the main thread. Threads of Zenoh and of the pool call this, because they must not block.
fn wake(main: &SyncSender<()>) {
    // If the channel is full, the main thread was woken already.
    let _ = main.try_send(());
}

/// Sends the requests of local consumers to the exporter. It runs on the pool's control thread, which must not wait for a frame.
#[derive(Debug, Default)]
struct Requests {
    outlet: OnceLock<Outlet>,
    importer: u64,
    exporter: AtomicU64,
    clock: Arc<Mutex<Clock>>,
}

impl Requests {
    fn send(&self, name: String, mut data: Vec<u8>) {
        let ids = Ids {
            exporter: self.exporter.load(Ordering::Relaxed),
            importer: self.importer,
        };
        if let Some(mut key_frame) = KeyFrame::decode(&name, &data) {
            key_frame.at = key_frame.at.map(|at| lock(&self.clock).to_remote(at));
            data = key_frame.encode().to_vec();
        }
        if let Some(outlet) = self.outlet.get() {
            let request = Up::Request(Request { ids, name, data });
            outlet.send(request.encode(), Bytes::new());
        }
    }
}

/// The last refusal of the exporter: its reason, and the time of its arrival.
type Refused = Option<(String, Instant)>;

pub(crate) fn run(import: &Import) -> Result<(), Error> {
    let signals = Signals::catch()?;
    let (pool, host) = import.source()?;
    keys::check_name(pool)?;
    let endpoint = import.client.endpoint(host)?;
    let local = import.name.as_deref().unwrap_or(pool);
    keys::check_name(local)?;
    let importer = random();
    let (main, woken) = sync_channel(1);
    let clock = Arc::<Mutex<Clock>>::default();
    let requests = Arc::new(Requests {
        importer,
        clock: clock.clone(),
        ..Requests::default()
    });
    let (waking, sending) = (main.clone(), requests.clone());
    let producer = Producer::builder(local).on_event(move |event| match event {
        PoolEvent::Request { name, data, .. } => sending.send(name, data),
        _ => wake(&waking),
    });
    let producer = match import.socket_mode {
        Some(mode) => producer.socket_mode(mode),
        None => producer,
    };
    let producer = producer.build()?;
    let link = Link::open(&endpoint, Side::Connects)?;
    let origin = format!("{pool}@{}", endpoint.address);
    let inbound = Inbound::new(producer.clone(), origin.clone(), importer, clock.clone());
    let inbound = Arc::new(Mutex::new(inbound));
    let refused = Arc::<Mutex<Refused>>::default();

    let up = || link.outlet(keys::up(pool), Urgency::Urgent);
    let credits = up()?;
    // This is the only call of `set`, so it cannot fail.
    let _ = requests.outlet.set(up()?);
    let (taking, waking) = (inbound.clone(), main.clone());
    let _data = link.inlet(keys::data(pool, importer), move |_, bytes| {
        if lock(&taking).data(bytes, Instant::now()) {
            wake(&waking);
        }
    })?;
    let (taking, waking, refusing) = (inbound.clone(), main.clone(), refused.clone());
    let _down = link.inlet(
        keys::down(pool, importer),
        move |_, bytes| match Down::decode(bytes) {
            Ok(Down::Pulse(pulse)) => {
                let mut inbound = lock(&taking);
                let had = inbound.ids();
                inbound.pulse(&pulse, Instant::now());
                let has = inbound.ids();
                drop(inbound);
                if has != had {
                    requests.exporter.store(has.exporter, Ordering::Relaxed);
                    wake(&waking);
                }
            }
            Ok(Down::Refusal {
                importer: id,
                reason,
            }) if id == importer => {
                *lock(&refusing) = Some((reason, Instant::now()));
            }
            Ok(Down::Refusal { .. }) => {}
            Err(error) => log::debug!("{error}"),
        },
    )?;

    let name = own_name(local);
    let (mut state, mut has_warned) = (State::default(), false);
    let mut minute = Minute::new(Instant::now());
    let is_quic = endpoint.identity.is_some();
    let mut diagnosis = is_quic.then(|| Diagnosis::new(endpoint, Instant::now()));
    line(format_args!("imports {origin} as pool {local}"));
    while !signals.came() {
        let now = Instant::now();
        let is_wanted = producer.num_consumers() > 0;
        let mut guard = lock(&inbound);
        let credit = guard.credit(is_wanted, now);
        let is_silent = guard.is_silent(now);
        let asks = !guard.has_exporter() || is_silent;
        let fault = diagnosis.as_mut().and_then(|it| it.poll(is_silent, now));
        let state_text = state_text(&guard, &lock(&refused), fault, now);
        let figures = guard.figures();
        let rough = guard.rough_times();
        drop(guard);
        let up = if asks {
            Up::Hello(Hello {
                importer,
                name: name.clone(),
                sent: monotonic_ns(),
            })
        } else {
            Up::Credit(credit)
        };
        credits.send(up.encode(), Bytes::new());
        state.set(&origin, &state_text);
        if let Some(error) = rough
            && !has_warned
        {
            has_warned = true;
            let milliseconds = error as f64 / 1e6;
            line(format_args!(
                "{origin}: the times may be wrong by {milliseconds:.2} ms, which is more than a frame: in xmemsrc, set \
                 timestamp-mode=arrival"
            ));
        }
        if minute.is_over(now) {
            let times = lock(&clock).to_string();
            report(&origin, &figures, &times);
        }
        let _ = woken.recv_timeout(CREDIT_TIME);
    }
    let figures = lock(&inbound).figures();
    let times = lock(&clock).to_string();
    report(&origin, &figures, &times);
    producer.close();
    Ok(())
}

/// The name of this importer in the exporter's lines: the local pool and the name of this host.
fn own_name(local: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{local}@{}", host.trim())
}

/// The state of the import, for the printed line.
fn state_text(inbound: &Inbound, refused: &Refused, fault: Option<&Fault>, now: Instant) -> String {
    let is_new = |at: Instant| now.saturating_duration_since(at) < REFUSED;
    if let Some((reason, at)) = refused
        && is_new(*at)
    {
        return format!("refused: {reason}");
    }
    if let Some(fault) = fault {
        return format!("no answer: {fault}");
    }
    let text = match inbound.remote() {
        _ if inbound.is_silent(now) || !inbound.has_exporter() => "no answer",
        _ if !inbound.wants() => "connected, and the pool here has no consumers",
        RemotePool::NoProducer => "connected, and the pool there has no producer",
        RemotePool::Ended => "the stream is over",
        RemotePool::Running => "receives",
    };
    text.to_owned()
}

fn report(origin: &str, figures: &Figures, times: &str) {
    let Figures {
        received,
        bytes,
        missed,
        lost,
        malformed,
    } = figures;
    line(format_args!(
        "{origin}: {received} frames, {} MB, {missed} missed, {lost} lost, {malformed} invalid messages, \
         {times}",
        bytes / 1_000_000
    ));
}
