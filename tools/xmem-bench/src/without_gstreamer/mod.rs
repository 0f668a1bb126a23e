// SPDX-License-Identifier: MPL-2.0

//! One side of a transport without GStreamer: a thread that sends or receives frames.

mod core;
#[cfg(feature = "iceoryx2")]
mod iceoryx2;
mod mapping;
mod ring;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::commands::{self, RECEIVING, SENDING};
use crate::figures::Meter;
use crate::pace::Pace;
use crate::transport::Transport;
use crate::{Endpoint, Error, stamp};

/// The timeout of a receive call, after which the thread checks whether to end. Frames arrive more often.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(1);

trait Publisher {
    /// Sends a frame. `write` fills it in the transport's memory.
    fn publish(
        &mut self,
        write: &mut dyn FnMut(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error>;
}

trait Subscriber {
    /// Waits for frames for at most [`RECEIVE_TIMEOUT`], and calls `read` for each one with the transport's memory.
    fn receive(&mut self, read: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error>;
}

pub(crate) fn producer(endpoint: &Endpoint, fps: u32) -> Result<(), Error> {
    let endpoint = endpoint.clone();
    run(move |meter, end| {
        let mut publisher = publisher(&endpoint)?;
        let mut pace = Pace::new(fps * endpoint.transport.topics());
        while !end.load(Ordering::Relaxed) {
            pace.wait(endpoint.transport.is_polled());
            publisher.publish(&mut |frame| stamp::write(frame, endpoint.touch))?;
            if meter.count() {
                println!("{SENDING}");
            }
        }
        Ok(())
    })
}

pub(crate) fn consumer(endpoint: &Endpoint) -> Result<(), Error> {
    let endpoint = endpoint.clone();
    run(move |meter, end| {
        let mut subscriber = subscriber(&endpoint)?;
        while !end.load(Ordering::Relaxed) {
            subscriber.receive(&mut |frame| {
                if stamp::read(frame, endpoint.touch, meter)? {
                    println!("{RECEIVING}");
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// The addresses of a process with several pools or services.
fn topics(endpoint: &Endpoint) -> impl Iterator<Item = String> {
    (0..endpoint.transport.topics()).map(|topic| format!("{}-{topic}", endpoint.socket))
}

/// Publishes by one sender after the other.
struct InTurn<P> {
    senders: Vec<P>,
    next: usize,
}

impl<P> InTurn<P> {
    fn new(
        endpoint: &Endpoint,
        sender: impl FnMut(String) -> Result<P, Error>,
    ) -> Result<Self, Error> {
        let senders = topics(endpoint).map(sender);
        Ok(Self {
            senders: senders.collect::<Result<_, _>>()?,
            next: 0,
        })
    }
}

impl<P: Publisher> Publisher for InTurn<P> {
    fn publish(
        &mut self,
        write: &mut dyn FnMut(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let next = self.next;
        self.next = (next + 1) % self.senders.len();
        self.senders[next].publish(write)
    }
}

fn publisher(endpoint: &Endpoint) -> Result<Box<dyn Publisher>, Error> {
    let size = endpoint.frames.size();
    Ok(match endpoint.transport {
        Transport::Ring => Box::new(ring::Sender::new(&endpoint.socket, size)?),
        #[cfg(feature = "iceoryx2")]
        Transport::Iceoryx2 | Transport::Iceoryx2Polled => {
            let is_polled = endpoint.transport.is_polled();
            Box::new(iceoryx2::Sender::new(&endpoint.socket, size, is_polled)?)
        }
        #[cfg(feature = "iceoryx2")]
        Transport::Iceoryx2Many => {
            let sender = |topic: String| iceoryx2::Sender::new(&topic, size, false);
            Box::new(InTurn::new(endpoint, sender)?)
        }
        Transport::CoreMany => {
            let sender = |topic: String| core::Sender::new(&topic, size);
            Box::new(InTurn::new(endpoint, sender)?)
        }
        _ => Box::new(core::Sender::new(&endpoint.socket, size)?),
    })
}

fn subscriber(endpoint: &Endpoint) -> Result<Box<dyn Subscriber>, Error> {
    let is_polled = endpoint.transport.is_polled();
    Ok(match endpoint.transport {
        Transport::Ring => Box::new(ring::Receiver::new(
            &endpoint.socket,
            endpoint.frames.size(),
        )?),
        #[cfg(feature = "iceoryx2")]
        Transport::Iceoryx2 | Transport::Iceoryx2Polled => {
            Box::new(iceoryx2::Receiver::new(&endpoint.socket, is_polled)?)
        }
        #[cfg(feature = "iceoryx2")]
        Transport::Iceoryx2Many => Box::new(iceoryx2::Receivers::new(topics(endpoint))?),
        Transport::CoreMany => Box::new(core::Receivers::new(topics(endpoint))?),
        _ => Box::new(core::Receiver::new(&endpoint.socket, is_polled)?),
    })
}

/// Runs `work` on a separate thread until standard input ends.
fn run(
    work: impl FnOnce(&Meter, &AtomicBool) -> Result<(), Error> + Send + 'static,
) -> Result<(), Error> {
    let meter = Arc::new(Meter::new()?);
    let end = Arc::new(AtomicBool::new(false));
    let worker = thread::spawn({
        let (meter, end) = (meter.clone(), end.clone());
        move || {
            let result = work(&meter, &end);
            if let (Err(error), false) = (&result, end.load(Ordering::Relaxed)) {
                // The measurement is invalid. The parent process reads the end of the output as a failure.
                eprintln!("xmem-bench: {error}");
                std::process::exit(1);
            }
        }
    });
    let served = commands::serve(&meter);
    end.store(true, Ordering::Relaxed);
    worker.join().map_err(|_| "the worker panicked")?;
    served
}
