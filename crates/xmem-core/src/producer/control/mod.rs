// SPDX-License-Identifier: MPL-2.0

//! The control thread: admits consumers, answers them, and detects their end. No frame passes through it.

mod answers;
mod join;
mod limits;
pub(super) mod listener;
pub(super) mod lock_file;
mod origins;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use xmem_shm::abi::layout::VERSION;
use xmem_shm::abi::text::Text;
use xmem_shm::abi::wire::{MAX_MESSAGE, MAX_QUEUED, ToConsumer};
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::monotonic_ns;
use xmem_shm::os::cred;
use xmem_shm::os::fork::KeptFromChildren;
use xmem_shm::os::socket;
use xmem_shm::os::thread::Thread;

use crate::producer::numbered::Timeouts;
use crate::producer::pool::Pool;
use crate::producer::pool::consumer::ConsumerRecord;
use crate::producer::pool::event::{Command, Departure, PoolEvent};
use crate::producer::pool::stats;
use crate::stats::ConsumerStats;
use limits::{InFlight, Unread, Warnings};
use listener::{Listener, PeerSocket};

/// The time in which a connection must send its first message.
const HANDSHAKE_TIME: Duration = Duration::from_secs(2);
/// The maximum number of connections without a first message.
const MAX_PENDING: usize = 64;
/// The number of messages of one connection that are answered before the other connections.
const MESSAGES_PER_TURN: usize = 16;
/// If a peer has more unread bytes than this, by the kernel's count, it is sent no descriptor: about five messages. See
/// [`limits`].
const MAX_UNREAD: usize = 4 << 10;
/// The same when the pool ends, for peers of this user and root: about 80 messages.
const MAX_UNREAD_AT_END: usize = 64 << 10;
/// After a pool is closed, it answers consumers that still have frames to take for this long after it last sent one what it had not
/// asked for.
const LINGER: Duration = Duration::from_millis(50);
/// The longest time after which a closed pool ends.
const LONGEST_END: Duration = Duration::from_secs(1);

const LISTENER: u64 = 0;
const COMMANDS: u64 = 1;
const FIRST_CONNECTION: u64 = 2;
/// A flag in an event's number: the event is from the connection's process, not from its socket.
const PROCESS: u64 = 1 << 63;

/// Starts the control thread.
pub(super) fn spawn(pool: &Arc<Pool>, listener: Listener) -> io::Result<Thread> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        &listener.socket,
        EventData::new_u64(LISTENER),
        EventFlags::IN,
    )?;
    epoll::add(
        &epoll,
        pool.commands().event(),
        EventData::new_u64(COMMANDS),
        EventFlags::IN,
    )?;
    // A sandbox that forbids the call shows here, not when the pool is in use.
    let mut none = [MaybeUninit::<Event>::uninit(); 1];
    epoll::wait(&epoll, &mut none, Some(&Timespec::default()))?;
    let thread = ControlThread {
        pool: pool.clone(),
        listener,
        epoll,
        connections: HashMap::new(),
        unread: HashMap::new(),
        next: FIRST_CONNECTION,
        has_released: false,
        timeouts: Timeouts::default(),
        spare: File::open("/dev/null").ok(),
        warnings: Warnings::default(),
    };
    Thread::spawn("xmem-producer", move || thread.run())
}

#[derive(Debug)]
enum Stage {
    /// It has not sent its first message.
    Pending(Instant),
    Joined(Arc<ConsumerRecord>),
    /// It has joined and takes no more frames. Its leases are valid until it closes.
    Leaving(Arc<ConsumerRecord>),
}

#[derive(Debug)]
struct Connection {
    _kept: KeptFromChildren,
    socket: PeerSocket,
    in_flight: InFlight,
    /// With more unread bytes it is sent no descriptor.
    max_unread: usize,
    /// Reports the end of the process. The socket may not, because a forked child may keep it open.
    process: Option<OwnedFd>,
    peer: cred::Peer,
    stage: Stage,
    /// The program was notified of the departure, or never of the consumer.
    departure_reported: bool,
}

impl Connection {
    fn send(&self, message: &ToConsumer, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if !fds.is_empty() && cred::unread(&self.socket)? > self.max_unread {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        socket::send(&self.socket, &message.encode(), fds)?;
        self.in_flight.add(fds.len());
        Ok(())
    }

    fn consumer(&self) -> Option<&Arc<ConsumerRecord>> {
        match &self.stage {
            Stage::Pending(_) => None,
            Stage::Joined(consumer) | Stage::Leaving(consumer) => Some(consumer),
        }
    }
}

/// What to do with a connection after a message.
enum Next {
    Stay,
    /// The message took time: handle the other connections first.
    Yield,
    Close(Departure),
}

struct ControlThread {
    pool: Arc<Pool>,
    listener: Listener,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    /// Connections that have ended, with unread descriptors.
    unread: HashMap<u64, Unread>,
    next: u64,
    /// A consumer has released a frame.
    has_released: bool,
    timeouts: Timeouts,
    /// Closed to get a descriptor when none is left, so that a connection can be accepted and refused.
    spare: Option<File>,
    warnings: Warnings,
}

impl ControlThread {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.timeout();
            let result = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            if let Err(error) = result
                && error != rustix::io::Errno::INTR
            {
                log::error!(
                    "pool {:?}: the control thread cannot wait: {error}",
                    self.pool.name()
                );
                break;
            }
            for event in &events {
                if !self.handle(event) {
                    return self.end();
                }
            }
            // Once for all messages, because it takes the pool's lock.
            if mem::take(&mut self.has_released) {
                self.pool.process_releases();
            }
            self.close_late();
            self.give_up_unread();
        }
        self.end();
    }

    /// The time until the first connection is late, or a frame times out.
    fn timeout(&self) -> Option<Timespec> {
        let oldest = self
            .connections
            .values()
            .filter_map(|connection| match connection.stage {
                Stage::Pending(since) => Some(since),
                _ => None,
            })
            .min();
        let late = oldest.map(|oldest| oldest + HANDSHAKE_TIME);
        let next = late.into_iter().chain(self.timeouts.next()).min()?;
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        left.try_into().ok()
    }

    /// Empties the buffers whose readers did not take them in time.
    fn give_up_unread(&mut self) {
        for unread in self.timeouts.give_up_unread(&self.pool) {
            self.call(PoolEvent::Unread(unread));
        }
    }

    fn close_late(&mut self) {
        let late: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                matches!(connection.stage, Stage::Pending(since) if since.elapsed() >= HANDSHAKE_TIME)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.close(id, Departure::CutOff);
        }
    }

    /// Returns whether to continue.
    fn handle(&mut self, event: &Event) -> bool {
        match event.data.u64() {
            LISTENER => self.accept(),
            COMMANDS => {
                let mut sticky = false;
                for command in self.pool.commands().take() {
                    match command {
                        Command::Stop => return false,
                        Command::Wake(id) => {
                            let connection = self.connections.get(&id);
                            if let Some(consumer) = connection.and_then(Connection::consumer) {
                                consumer.wake_by_socket();
                            }
                        }
                        Command::CutOff(id, reason) => {
                            let connection = self.connections.get(&id);
                            if let Some(consumer) = connection.and_then(Connection::consumer) {
                                let text = format_args!("cutting off {consumer}: {reason}");
                                self.warnings.warn(self.pool.name(), text);
                            }
                            self.close(id, Departure::CutOff);
                        }
                        Command::TimedOut(id) => self.timed_out(id),
                        Command::BudgetsCut(cut) => self.call(PoolEvent::BudgetsCut {
                            budget: cut.budget,
                            consumers: cut.consumers,
                            limit: cut.limit,
                        }),
                        Command::CannotGrow => {
                            let shortage =
                                self.pool.lock().and_then(|guard| guard.regions.shortage());
                            if let Some(error) = shortage {
                                self.call(PoolEvent::CannotGrow(error));
                            }
                        }
                        Command::HoldsUp(id) => {
                            let connection = self.connections.get(&id);
                            if let Some(consumer) = connection.and_then(Connection::consumer) {
                                self.report(PoolEvent::HoldsUp, consumer);
                            }
                        }
                        Command::PushSticky => sticky = true,
                        Command::Introduce(pool_id) => self.introduce(pool_id),
                        Command::RegionGone(id) => self.announce_gone(id),
                        Command::GiveUpAt {
                            slot,
                            generation,
                            index,
                            until,
                        } => self.timeouts.add(slot, generation, index, until),
                    }
                }
                if sticky {
                    self.push_sticky();
                }
            }
            id if id & PROCESS != 0 => {
                let id = id & !PROCESS;
                self.read_rest(id);
                self.close(id, Departure::Died);
            }
            id if self.unread.contains_key(&id) => self.close_if_read(id),
            id => self.read(id),
        }
        true
    }

    /// Closes the pool. Consumers that still have frames to take get what they have not asked for yet, since their programs may be busy,
    /// and answers.
    fn end(mut self) {
        // It is still open if the thread ends after an error.
        self.pool.close();
        let _ = epoll::delete(&self.epoll, &self.listener.socket);
        let mut until = Instant::now() + LINGER;
        let last = Instant::now() + LONGEST_END;
        let mut events = Vec::with_capacity(64);
        // On a busy machine, consumers may not read messages meanwhile.
        for connection in self.connections.values_mut() {
            if cred::is_own_or_root(connection.peer.uid) {
                connection.max_unread = MAX_UNREAD_AT_END;
                socket::allow_unread(&connection.socket, MAX_UNREAD_AT_END);
            }
        }
        let mut unsent = self.unsent();
        while self.lagging().next().is_some() && Instant::now() < until {
            let before = unsent.len();
            unsent.retain(|(consumer, it)| !self.has_sent(*consumer, it));
            if unsent.len() < before {
                until = last.min(Instant::now() + LINGER);
            }
            events.clear();
            // The kernel does not report that a consumer has read its messages.
            let turn = if unsent.is_empty() { 5 } else { 1 };
            let turn = Duration::from_millis(turn).try_into().ok();
            let _ = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                turn.as_ref(),
            );
            for event in &events {
                if event.data.u64() >= FIRST_CONNECTION {
                    self.handle(event);
                }
            }
        }
        self.pool.lock_on_own_thread().finalize_at_end();
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            self.close(id, Departure::Closed);
        }
    }

    /// The consumers that have not taken all frames, and their cursors.
    fn lagging(&self) -> impl Iterator<Item = (u64, u64)> {
        let head = self.pool.control().head();
        let joined = self.connections.iter().filter_map(|(id, connection)| {
            let Stage::Joined(consumer) = &connection.stage else {
                return None;
            };
            Some((*id, consumer.cursor()?))
        });
        joined.filter(move |(_, cursor)| *cursor < head)
    }

    fn accept(&mut self) {
        for _ in 0..MAX_PENDING {
            match self.listener.accept() {
                Ok(socket) => self.admit(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let text = format_args!("cannot accept a consumer: {error}");
                    self.warnings.warn(self.pool.name(), text);
                    // No descriptors are left, or a sandbox forbids the call. A connection that is not accepted would wake this
                    // thread again and again.
                    let had_spare = self.spare.take().is_some();
                    if !had_spare || self.listener.accept().is_err() {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    self.spare = File::open("/dev/null").ok();
                    return;
                }
            }
        }
    }

    fn admit(&mut self, socket: PeerSocket) {
        let peer = match cred::peer(&socket) {
            Ok(peer) => peer,
            Err(error) => {
                let text = format_args!("cannot identify a consumer: {error}");
                return self.warnings.warn(self.pool.name(), text);
            }
        };
        let access = &self.pool.settings().access;
        if let Err(reason) = access.check(&socket, peer, self.listener.group) {
            self.warnings
                .warn(self.pool.name(), format_args!("{reason}"));
            refuse(&socket, &reason);
            return;
        }
        let pending = || {
            self.connections
                .iter()
                .filter_map(|(id, connection)| match connection.stage {
                    Stage::Pending(since) => Some((since, *id)),
                    _ => None,
                })
        };
        if pending().count() >= MAX_PENDING
            && let Some((_, oldest)) = pending().min()
        {
            // If its message has arrived meanwhile, the connection is answered and no longer pending.
            self.read(oldest);
            let waits = |connection: &Connection| matches!(connection.stage, Stage::Pending(_));
            if self.connections.get(&oldest).is_some_and(waits) {
                self.close(oldest, Departure::CutOff);
            }
        }
        let id = self.next;
        self.next += 1;
        if epoll::add(
            &self.epoll,
            &socket,
            EventData::new_u64(id),
            EventFlags::IN | EventFlags::RDHUP,
        )
        .is_err()
        {
            return;
        }
        self.connections.insert(
            id,
            Connection {
                _kept: KeptFromChildren::new(&socket),
                socket,
                in_flight: InFlight::default(),
                max_unread: MAX_UNREAD,
                process: None,
                peer,
                stage: Stage::Pending(Instant::now()),
                departure_reported: false,
            },
        );
        fault::point(Point::Admitted);
    }

    fn read(&mut self, id: u64) {
        let mut buffer = [0; MAX_MESSAGE + 1];
        for _ in 0..MESSAGES_PER_TURN {
            let Some(connection) = self.connections.get(&id) else {
                return;
            };
            let next = match socket::recv_bytes(&connection.socket, &mut buffer) {
                Ok(Some(message)) => self.answer(id, message),
                Ok(None) => Next::Close(if matches!(connection.stage, Stage::Leaving(_)) {
                    Departure::Left
                } else {
                    Departure::Died
                }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let pid = connection.peer.pid;
                    let text = format_args!("cannot read a message of process {pid}: {error}");
                    self.warnings.warn(self.pool.name(), text);
                    Next::Close(Departure::CutOff)
                }
            };
            match next {
                Next::Stay => {}
                Next::Yield => return,
                Next::Close(reason) => return self.close(id, reason),
            }
        }
    }

    /// Reads the messages that a process sent before it died. The queue is bounded, and nothing is added to it.
    fn read_rest(&mut self, id: u64) {
        for _ in 0..MAX_QUEUED / MESSAGES_PER_TURN {
            self.read(id);
        }
    }

    fn timed_out(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if let Stage::Joined(consumer) = &connection.stage {
            let consumer = consumer.clone();
            connection.stage = Stage::Leaving(consumer.clone());
            connection.departure_reported = true;
            self.report(
                |consumer| PoolEvent::Disconnected {
                    consumer,
                    reason: Departure::TimedOut,
                },
                &consumer,
            );
        }
    }

    pub(super) fn close(&mut self, id: u64, reason: Departure) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        let _ = epoll::delete(&self.epoll, &connection.socket);
        if let Some(process) = &connection.process {
            let _ = epoll::delete(&self.epoll, process);
        }
        if let (Departure::CutOff, Some(consumer)) = (reason, connection.consumer()) {
            consumer.mark_cut_off();
        }
        let has_left = matches!(&connection.stage, Stage::Leaving(_)) && reason == Departure::Died;
        let reason = if has_left { Departure::Left } else { reason };
        let (consumer, is_reported) = (
            connection.consumer().cloned(),
            connection.departure_reported,
        );
        // Reads the figures while its page is still on the list.
        let event = consumer.as_ref().map(|consumer| PoolEvent::Disconnected {
            consumer: self.figures(consumer),
            reason,
        });
        self.pool.remove_consumer(id);
        fault::point(Point::ConsumerForgotten);
        self.end_connection(id, connection);
        fault::point(Point::ConnectionClosed);
        if let (Some(event), false) = (event, is_reported) {
            self.call(event);
        }
        if let Some(consumer) = consumer {
            log::info!(
                "pool {:?}: {consumer} is gone: {reason:?}",
                self.pool.name()
            );
        }
    }

    fn figures(&self, consumer: &ConsumerRecord) -> ConsumerStats {
        stats::of_consumer(&self.pool.lock_on_own_thread(), consumer, monotonic_ns())
    }

    fn report(&self, event: impl FnOnce(ConsumerStats) -> PoolEvent, consumer: &ConsumerRecord) {
        self.call(event(self.figures(consumer)));
    }

    fn call(&self, event: PoolEvent) {
        let Some(on_event) = &self.pool.settings().on_event else {
            return;
        };
        // A panic of the callback must not end this thread, because all consumers depend on it.
        if catch_unwind(AssertUnwindSafe(|| on_event(event))).is_err() {
            log::error!("pool {:?}: on_event panicked", self.pool.name());
        }
    }
}

fn refuse(socket: impl AsFd, reason: &str) {
    let message = ToConsumer::Refused {
        version: VERSION,
        reason: Text::new(reason),
    };
    let _ = socket::send(socket, &message.encode(), &[]);
}
