// SPDX-License-Identifier: MPL-2.0

//! One side of a transport that needs no GStreamer: a thread that sends, or waits and receives.

mod core;
#[cfg(feature = "iceoryx2")]
mod iceoryx2;
mod mapping;
mod ring;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::figures::Meter;
use crate::orders::{self, RECEIVING, SENDING};
use crate::pace::Pace;
use crate::transport::Transport;
use crate::{Error, Place, stamp};

/// How long to wait for a frame before looking whether to end; frames come more often.
const LOOK: Duration = Duration::from_secs(1);

trait Publisher {
    /// Sends a frame that the function wrote into the transport's memory.
    fn publish(
        &mut self,
        write: &mut dyn FnMut(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error>;
}

trait Subscriber {
    /// Waits for frames, at most for [`LOOK`], and has the function read each one where it lies.
    fn receive(&mut self, read: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error>;
}

pub(crate) fn producer(place: &Place, fps: u32) -> Result<(), Error> {
    let place = place.clone();
    run(move |meter, end| {
        let mut publisher = publisher(&place)?;
        let mut pace = Pace::new(fps);
        while !end.load(Ordering::Relaxed) {
            pace.wait(place.transport.is_polled());
            publisher.publish(&mut |frame| stamp::write(frame, place.touch))?;
            if meter.count() {
                println!("{SENDING}");
            }
        }
        Ok(())
    })
}

pub(crate) fn consumer(place: &Place) -> Result<(), Error> {
    let place = place.clone();
    run(move |meter, end| {
        let mut subscriber = subscriber(&place)?;
        while !end.load(Ordering::Relaxed) {
            subscriber.receive(&mut |frame| {
                if stamp::read(frame, place.touch, meter)? {
                    println!("{RECEIVING}");
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}

fn publisher(place: &Place) -> Result<Box<dyn Publisher>, Error> {
    let size = place.frames.size();
    Ok(match place.transport {
        Transport::Ring => Box::new(ring::Sender::new(&place.socket, size)?),
        #[cfg(feature = "iceoryx2")]
        Transport::Iceoryx2 | Transport::Iceoryx2Polled => {
            let is_polled = place.transport.is_polled();
            Box::new(iceoryx2::Sender::new(&place.socket, size, is_polled)?)
        }
        _ => Box::new(core::Sender::new(&place.socket, size)?),
    })
}

fn subscriber(place: &Place) -> Result<Box<dyn Subscriber>, Error> {
    let is_polled = place.transport.is_polled();
    Ok(match place.transport {
        Transport::Ring => Box::new(ring::Receiver::new(&place.socket, place.frames.size())?),
        #[cfg(feature = "iceoryx2")]
        Transport::Iceoryx2 | Transport::Iceoryx2Polled => {
            Box::new(iceoryx2::Receiver::new(&place.socket, is_polled)?)
        }
        _ => Box::new(core::Receiver::new(&place.socket, is_polled)?),
    })
}

/// Does the work on a thread of its own for as long as there are orders.
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
                // The measurements are worthless now; the parent process sees the end of the output.
                eprintln!("xmem-bench: {error}");
                std::process::exit(1);
            }
        }
    });
    let served = orders::serve(&meter);
    end.store(true, Ordering::Relaxed);
    worker.join().map_err(|_| "the worker panicked")?;
    served
}
