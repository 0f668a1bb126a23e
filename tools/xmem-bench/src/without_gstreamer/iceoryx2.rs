// SPDX-License-Identifier: MPL-2.0

//! The crate iceoryx2: publish-subscribe with slices that are loaned in shared memory, and an event that wakes the consumer, as in
//! its example of event-based communication.

#![allow(unsafe_code)] // a loaned slice is not initialised

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher as Port;
use iceoryx2::port::subscriber::Subscriber as SubscriberPort;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::{event, publish_subscribe};
use iceoryx2::waitset::WaitSetGuard;

use super::{Publisher, RECEIVE_TIMEOUT, Subscriber};
use crate::Error;
use crate::run_dir::shm_prefix;

type Service = ipc::Service;

/// The queue has as many frames as xmem keeps for a consumer. Larger values cost memory, and page faults until all of it was used
/// once.
const QUEUE: usize = 4;
const HELD: usize = 2;
const SUBSCRIBERS: usize = 4;

pub(super) struct Sender {
    publisher: Port<Service, [u8], ()>,
    /// `None` if the receivers poll.
    notifier: Option<Notifier<Service>>,
    size: usize,
}

impl Sender {
    pub(super) fn new(name: &str, size: usize, is_polled: bool) -> Result<Self, Error> {
        let (frames, event) = services(name)?;
        let notifier = (!is_polled).then(|| event.notifier_builder().create());
        Ok(Self {
            publisher: frames
                .publisher_builder()
                .initial_max_slice_len(size)
                .create()?,
            notifier: notifier.transpose()?,
            size,
        })
    }
}

impl Publisher for Sender {
    fn publish(
        &mut self,
        write: &mut dyn FnMut(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let sample = self.publisher.loan_slice_uninit(self.size)?;
        // SAFETY: the kernel initialised the shared memory with zeros, and each byte is a valid u8.
        let mut sample = unsafe { sample.assume_init() };
        write(sample.payload_mut())?;
        sample.send()?;
        if let Some(notifier) = &self.notifier {
            notifier.notify()?;
        }
        Ok(())
    }
}

pub(super) struct Receiver {
    subscriber: SubscriberPort<Service, [u8], ()>,
    /// `None` if the receiver polls.
    listener: Option<Listener<Service>>,
}

impl Receiver {
    pub(super) fn new(name: &str, is_polled: bool) -> Result<Self, Error> {
        let (frames, event) = services(name)?;
        let listener = (!is_polled).then(|| event.listener_builder().create());
        let subscriber = frames.subscriber_builder().create()?;
        Ok(Self {
            subscriber,
            listener: listener.transpose()?,
        })
    }
}

impl Receiver {
    fn take(&self, read: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        while let Some(sample) = self.subscriber.receive()? {
            read(sample.payload())?;
        }
        Ok(())
    }
}

impl Subscriber for Receiver {
    fn receive(&mut self, read: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        if let Some(listener) = &self.listener {
            listener.timed_wait(|_| {}, RECEIVE_TIMEOUT)?;
        }
        self.take(read)
    }
}

/// The subscribers of several services.
pub(super) struct Receivers {
    waits: &'static WaitSet<Service>,
    receivers: BTreeMap<WaitSetAttachmentId<Service>, &'static Receiver>,
    _guards: Vec<WaitSetGuard<'static, 'static, Service>>,
}

impl Receivers {
    pub(super) fn new(names: impl Iterator<Item = String>) -> Result<Self, Error> {
        // The process has them until it ends. Guards borrow them.
        let waits: &WaitSet<Service> = Box::leak(Box::new(WaitSetBuilder::new().create()?));
        let (mut receivers, mut guards) = (BTreeMap::new(), Vec::new());
        for name in names {
            let receiver: &Receiver = Box::leak(Box::new(Receiver::new(&name, false)?));
            let listener = receiver.listener.as_ref().ok_or("no listener")?;
            let guard = waits.attach_notification(listener)?;
            receivers.insert(WaitSetAttachmentId::from_guard(&guard), receiver);
            guards.push(guard);
        }
        Ok(Self {
            waits,
            receivers,
            _guards: guards,
        })
    }
}

impl Subscriber for Receivers {
    fn receive(&mut self, read: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        let mut take = |event| -> Result<(), Error> {
            let receiver = self.receivers.get(&event).ok_or("an unknown event")?;
            if let Some(listener) = &receiver.listener {
                listener.try_wait(|_| {})?;
            }
            receiver.take(read)
        };
        let mut result = Ok(());
        let on_event = |event| {
            if let Err(error) = take(event) {
                result = Err(error);
            }
            CallbackProgression::Continue
        };
        self.waits
            .wait_and_process_once_with_timeout(on_event, RECEIVE_TIMEOUT)?;
        result
    }
}

type Services = (
    publish_subscribe::PortFactory<Service, [u8], ()>,
    event::PortFactory<Service>,
);

/// Both sides use the same settings, so they can start in any order.
fn services(socket: &str) -> Result<Services, Error> {
    let socket = std::path::Path::new(socket);
    let run_dir = socket.parent().ok_or("a socket without a folder")?;
    let mut config = Config::default();
    // The files of iceoryx2 are removed with the folder.
    config
        .global
        .set_root_path(&Path::new(run_dir.as_os_str().as_bytes())?);
    config.global.prefix = FileName::new(shm_prefix(socket)?.as_bytes())?;
    let node = NodeBuilder::new().config(&config).create::<Service>()?;
    let name: ServiceName = socket
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or("the name of the socket is not UTF-8")?
        .try_into()?;
    let frames = node
        .service_builder(&name)
        .publish_subscribe::<[u8]>()
        .history_size(0)
        .subscriber_max_buffer_size(QUEUE)
        .subscriber_max_borrowed_samples(HELD)
        .max_publishers(1)
        .max_subscribers(SUBSCRIBERS)
        .max_nodes(SUBSCRIBERS + 1)
        .open_or_create()?;
    let event = node
        .service_builder(&name)
        .event()
        .max_notifiers(1)
        .max_listeners(SUBSCRIBERS)
        .max_nodes(SUBSCRIBERS + 1)
        .open_or_create()?;
    Ok((frames, event))
}
