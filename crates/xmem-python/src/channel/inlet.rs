// SPDX-License-Identifier: MPL-2.0

//! The thread that receives the messages of one pool, without the interpreter.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::geteuid;
use xmem_core::discovery::remove_stale;
use xmem_core::{Canceller, Consumer, ConsumerBuilder, MAX_REQUEST, ReadLease, ReceiveError};

use super::arrays::{self, Arrays};
use super::inbox::{Blocked, End, Inbox};
use super::incoming::{Incoming, Message};
use super::message::{Kind, Label};
use super::names::{self, MAKER, REFUSED, TAKEN};
use crate::addresses;
use crate::errors::errno_of;
use crate::pools::remove_left;

/// The time in which a process that joins must answer.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The interval of checks for a released lease.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The rules for receiving messages.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// The maximum number of frames of one sender that are held at one time.
    pub(super) budget: u32,
    /// The users whose pickles are accepted besides this user.
    pub(super) allow_uids: Vec<u32>,
    /// The number of this process.
    pub(super) me: u64,
}

impl Terms {
    pub(super) fn consumer(&self, pool: &str, inbox: &Inbox) -> ConsumerBuilder {
        Consumer::builder(pool)
            .max_held(self.budget)
            .parts(true)
            .canceller(&inbox.canceller)
    }

    /// Checks the user of the pool's producer, because unpickling runs the sender's code as this user.
    pub(super) fn check(&self, consumer: &Consumer) -> Result<(), String> {
        let own = geteuid().as_raw();
        match consumer.producer_uid() {
            Some(uid) if uid == own || self.allow_uids.contains(&uid) => Ok(()),
            Some(uid) => Err(format!(
                "pool {:?} belongs to user {uid}, and this process runs as user {own}: objects from that user can run any \
                 code in this process. If you trust that user, set allow_uids=[{uid}]",
                consumer.pool()
            )),
            None => Err(
                "the system does not report the pool's owner: in a user namespace, every user that the namespace does not \
                 map has the number 65534. Run both processes as another user"
                    .into(),
            ),
        }
    }
}

/// Starts the thread for a process that joins. The thread joins the pool of that process.
pub(super) fn connect(inbox: &Arc<Inbox>, terms: Terms, channel: &Path, id: u64) {
    if !inbox.add(id) {
        return;
    }
    let socket = names::socket_of(channel, id);
    let thread = std::thread::Builder::new().name("xmem-channel".into());
    let spawned = thread.spawn({
        let inbox = inbox.clone();
        move || {
            let connect = || {
                let path = socket
                    .to_str()
                    .ok_or("the name of its socket isn't UTF-8")?;
                let consumer = terms.consumer(path, &inbox);
                let consumer = consumer.connect_wait(Some(CONNECT_TIME));
                let consumer = consumer.map_err(|error| error.to_string())?;
                let checked = terms.check(&consumer);
                let (answer, why) = match &checked {
                    Ok(()) => (TAKEN, ""),
                    Err(why) => (REFUSED, why.as_str()),
                };
                let why = why.as_bytes();
                let _ = consumer.request(answer, &why[..why.len().min(MAX_REQUEST)]);
                checked.map(|()| consumer)
            };
            match connect() {
                Ok(consumer) => Inlet::new(consumer, inbox.clone(), terms, id).run(),
                Err(why) => {
                    inbox.note_refused(why.clone());
                    inbox.end(id, lost(why));
                }
            }
            // When this end was closed, a live sender removes its files itself, and `close` must not wait for that.
            if inbox.is_closed() {
                let _ = remove_stale(&socket);
            } else {
                remove_left(&socket);
            }
        }
    });
    match spawned {
        Ok(thread) => inbox.keep_thread(thread),
        Err(error) => inbox.end(id, lost(error.to_string())),
    }
}

fn closed(why: &str) -> End {
    let (why, is_lost) = (why.to_owned(), false);
    End { why, is_lost }
}

fn lost(why: impl Into<String>) -> End {
    let (why, is_lost) = (why.into(), true);
    End { why, is_lost }
}

/// Starts the thread for the maker's pool, which this process has joined already.
pub(super) fn follow(inbox: &Arc<Inbox>, terms: Terms, consumer: Consumer) -> std::io::Result<()> {
    inbox.add(MAKER);
    let thread = std::thread::Builder::new().name("xmem-channel".into());
    let thread = thread.spawn({
        let inbox = inbox.clone();
        move || Inlet::new(consumer, inbox, terms, MAKER).run()
    })?;
    inbox.keep_thread(thread);
    Ok(())
}

struct Inlet {
    consumer: Consumer,
    inbox: Arc<Inbox>,
    terms: Terms,
    sender: u64,
    /// Frames for references whose message has not arrived yet. `None`: the budget was used up.
    refs: HashMap<u64, Option<Arc<ReadLease>>>,
    /// Arrays on devices whose message has not arrived yet, by the first of their frames.
    devices: HashMap<u64, Vec<(u32, Arrays)>>,
    /// The first frame that arrived, for any receiver. Messages that began before it are not for this process.
    began: Option<u64>,
}

impl Inlet {
    fn new(consumer: Consumer, inbox: Arc<Inbox>, terms: Terms, sender: u64) -> Self {
        Self {
            consumer,
            inbox,
            terms,
            sender,
            refs: HashMap::new(),
            devices: HashMap::new(),
            began: None,
        }
    }

    fn run(mut self) {
        let end = loop {
            if !self.inbox.wait_for_room(self.sender) {
                break closed("this end is closed");
            }
            if let Err(end) = self.take_one() {
                break end;
            }
        };
        self.inbox.end(self.sender, end);
    }

    /// `Err`: no more messages will arrive.
    fn take_one(&mut self) -> Result<(), End> {
        let me = self.terms.me;
        let (sequence, taken) = match self.consumer.receive(None) {
            Ok(lease) => (lease.info().sequence, sort(lease, me)),
            // Copied, so that sender and receiver never wait for each other.
            Err(ReceiveError::OverBudget { .. }) => {
                let canceller = self.inbox.canceller.clone();
                let copy =
                    |lease: &ReadLease| (lease.info().sequence, sort_copied(lease, me, &canceller));
                match self.consumer.receive_with(Some(RETRY_INTERVAL), copy) {
                    Ok(taken) => taken,
                    Err(ReceiveError::Timeout) => return Ok(()),
                    Err(error) => return self.handle_error(&error),
                }
            }
            Err(error) => return self.handle_error(&error),
        };
        let began = *self.began.get_or_insert(sequence);
        match taken {
            Sorted::NotOurs => self.inbox.set_blocked(self.sender, None),
            Sorted::Refs(sequence, lease) => {
                self.refs.insert(sequence, lease);
            }
            // This process does not have the other frames of the message.
            Sorted::Device(first, ..) if first < began => {}
            Sorted::Device(first, number, arrays) => {
                let of_message = self.devices.entry(first).or_default();
                of_message.push((number, arrays));
            }
            Sorted::Void(refs, device) => {
                refs.and_then(|sequence| self.refs.remove(&sequence));
                device.and_then(|first| self.devices.remove(&first));
            }
            // Some frames of the message were sent before this process joined. The first is the one for its references.
            Sorted::Message(_, refs, device)
                if refs.or(device).is_some_and(|first| first < began) =>
            {
                device.and_then(|first| self.devices.remove(&first));
                self.inbox.set_blocked(self.sender, None);
            }
            Sorted::Message(message, refs, device) => {
                let devices = device.and_then(|first| self.devices.remove(&first));
                let refs = refs.and_then(|sequence| self.refs.remove(&sequence).flatten());
                self.inbox.deliver(Incoming {
                    sender: self.sender,
                    message: *message,
                    refs,
                    devices: devices.unwrap_or_default(),
                });
            }
            Sorted::Invalid(why) => return Err(lost(why)),
        }
        Ok(())
    }

    fn handle_error(&self, error: &ReceiveError) -> Result<(), End> {
        match error {
            // `receive` raises this error. The message is not lost.
            ReceiveError::OverBudget { .. } | ReceiveError::Region(_) => {
                let why = format!("the next message cannot be received now: {error}");
                let errno = errno_of(error);
                self.inbox
                    .set_blocked(self.sender, Some(Blocked { why, errno }));
                std::thread::sleep(RETRY_INTERVAL);
                Ok(())
            }
            ReceiveError::Eos => Err(closed("the sender closed the channel")),
            ReceiveError::ProducerLost => Err(lost("the sender ended without closing its end")),
            error => Err(lost(error.to_string())),
        }
    }
}

/// A frame of a channel's pool, by its label.
enum Sorted {
    /// For another receiver.
    NotOurs,
    Refs(u64, Option<Arc<ReadLease>>),
    Device(u64, u32, Arrays),
    Void(Option<u64>, Option<u64>),
    Message(Box<Message>, Option<u64>, Option<u64>),
    Invalid(String),
}

fn sort_by_label(
    lease: &ReadLease,
    me: u64,
    refs: impl FnOnce() -> Option<Arc<ReadLease>>,
    device: impl FnOnce() -> Arrays,
    message: impl FnOnce() -> Result<Message, String>,
) -> Sorted {
    let Some(label) = Label::read(lease.meta()) else {
        return Sorted::Invalid("a frame in its pool isn't a message of a channel".into());
    };
    if label.to.is_some_and(|to| to != me) {
        return Sorted::NotOurs;
    }
    match label.kind {
        Kind::Refs => Sorted::Refs(lease.info().sequence, refs()),
        Kind::Device => {
            let first = label.device.unwrap_or(lease.info().sequence);
            Sorted::Device(first, label.number, device())
        }
        Kind::Void => Sorted::Void(label.refs, label.device),
        Kind::Message => match message() {
            Ok(message) => Sorted::Message(Box::new(message), label.refs, label.device),
            Err(why) => Sorted::Invalid(why),
        },
    }
}

fn sort(lease: ReadLease, me: u64) -> Sorted {
    let refs = || Some(Arc::new(lease.clone()));
    let device = || arrays::received(lease.clone());
    let message = || {
        let lease = Arc::new(lease.clone());
        addresses::note(&lease);
        Message::new(lease)
    };
    sort_by_label(&lease, me, refs, device, message)
}

/// Copies the frame, because the budget is used up.
fn sort_copied(lease: &ReadLease, me: u64, canceller: &Canceller) -> Sorted {
    // Not added to the list of addresses, because it is held only during this call.
    let copy = || Message::new(Arc::new(lease.clone()))?.to_private();
    let device = || arrays::copied(lease, canceller);
    sort_by_label(lease, me, || None, device, copy)
}
