// SPDX-License-Identifier: MPL-2.0

//! The connections to the processes that write buffers. A connection is made when the first buffer of its process is read.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use xmem_shm::lock::lock;

use super::error::GetError;
use super::number::Number;
use super::number::pool_of;
use super::options::BufferPoolOptions;
use super::writer::{Record, remove_if_killed};
use crate::consumer::Consumer;
use crate::error::{ConnectError, ReceiveError};
use crate::frame::lease::ReadLease;

/// The maximum number of kept connections to processes that have ended. Their published buffers can be read while these are
/// kept.
const MOST_LOST: usize = 4;
/// How long joining is tried again if a process accepts no connection, because its queue is full or it is ending.
const JOIN_TIME: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);
/// Threads that join the same process wait for each other. Threads that join different ones seldom do.
const LANES: usize = 16;

/// The connection to one process.
#[derive(Debug)]
pub(super) struct Connection {
    writer: u8,
    consumer: Consumer,
}

impl Connection {
    fn is_lost(&self) -> bool {
        self.consumer.is_lost()
    }

    /// `None`: nothing is published there with this number.
    fn read(&self, number: Number) -> Result<Option<(ReadLease, Number)>, ReceiveError> {
        let record = Record::read(self.consumer.control(), number.slot);
        let Some(Record { entry, meta, tag }) = record else {
            return Ok(None);
        };
        let found = Number { tag, ..number };
        if !number.means(found) {
            return Ok(None);
        }
        let lease = self.consumer.take_index(&entry, meta)?;
        Ok(lease.map(|lease| (lease, found)))
    }

    /// Counts a read of a buffer that this process holds.
    pub(super) fn count_read(&self, lease: &ReadLease) {
        let info = lease.info();
        let leases = self.consumer.session().leases();
        leases.count_read(info.slot, info.generation);
    }
}

fn has_writer(known: &[Arc<Connection>]) -> bool {
    known.iter().any(|connection| !connection.is_lost())
}

fn no_writer(options: &BufferPoolOptions, number: Number) -> GetError {
    GetError::NoWriter {
        index: number.pack(),
        pool: options.name().to_owned(),
    }
}

#[derive(Debug, Default)]
pub(super) struct Connections {
    /// Oldest first.
    all: Mutex<Vec<Arc<Connection>>>,
    joining: [Mutex<()>; LANES],
}

impl Connections {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        lock(&self.all)
    }

    /// Joins the pool of another process, unless this process already has.
    pub(super) fn connect(
        &self,
        options: &BufferPoolOptions,
        number: Number,
    ) -> Result<(), GetError> {
        let known = self.joined(options, number.writer)?;
        match has_writer(&known) {
            true => Ok(()),
            false => Err(no_writer(options, number)),
        }
    }

    /// Reads a buffer of another process.
    pub(super) fn read(
        &self,
        options: &BufferPoolOptions,
        number: Number,
    ) -> Result<(ReadLease, Number, Arc<Connection>), GetError> {
        let index = number.pack();
        let known = self.joined(options, number.writer)?;
        let mut failure = None;
        for connection in known.iter().rev() {
            match connection.read(number) {
                Ok(Some((lease, found))) => return Ok((lease, found, connection.clone())),
                Ok(None) => {}
                Err(ReceiveError::OverBudget { budget }) => {
                    return Err(GetError::OverBudget { budget });
                }
                // If the writer has ended, this process can still read buffers in regions that it has mapped.
                Err(_) if connection.is_lost() => {}
                Err(error) => failure = Some(error),
            }
        }
        Err(match failure {
            Some(error) => error.into(),
            None if has_writer(&known) => GetError::Empty { index },
            None => no_writer(options, number),
        })
    }

    /// The connections to a process. The present one is last, if there is one.
    fn joined(
        &self,
        options: &BufferPoolOptions,
        writer: u8,
    ) -> Result<Vec<Arc<Connection>>, GetError> {
        let known = self.of(writer);
        if has_writer(&known) {
            return Ok(known);
        }
        let lane = self.joining.get(usize::from(writer) % LANES);
        let _joining = lane.map(lock);
        let mut known = self.of(writer);
        if !has_writer(&known) {
            known.extend(self.join(options, writer)?);
        }
        Ok(known)
    }

    fn of(&self, writer: u8) -> Vec<Arc<Connection>> {
        let all = self.lock();
        let of_writer = all.iter().filter(|known| known.writer == writer);
        of_writer.cloned().collect()
    }

    /// Joins the pool of a process. `None`: it does not exist.
    fn join(
        &self,
        options: &BufferPoolOptions,
        writer: u8,
    ) -> Result<Option<Arc<Connection>>, GetError> {
        let pool = pool_of(options.name(), writer);
        let start = Instant::now();
        let consumer = loop {
            match options.consumer(&pool).connect() {
                Ok(consumer) => break consumer,
                Err(ConnectError::NotFound { .. }) => {
                    remove_if_killed(&pool);
                    return Ok(None);
                }
                Err(ConnectError::NoAnswer { .. }) if start.elapsed() < JOIN_TIME => {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error.into()),
            }
        };
        if !consumer.control().constants().shape.by_number {
            return Ok(None);
        }
        let connection = Arc::new(Connection { writer, consumer });
        let mut all = self.lock();
        all.push(connection.clone());
        let lost = all.iter().filter(|known| known.is_lost()).count();
        let mut spare = lost.saturating_sub(MOST_LOST);
        let gone: Vec<_> = all
            .extract_if(.., |known| {
                let is_removed = spare > 0 && known.is_lost();
                spare -= usize::from(is_removed);
                is_removed
            })
            .collect();
        drop(all);
        // Dropping it may end a thread, so the lock is released first.
        drop(gone);
        Ok(Some(connection))
    }
}
