// SPDX-License-Identifier: MPL-2.0

//! The connections to the processes that wrote buffers. Each is made when the first buffer of its process is read.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard};

use xmem_shm::abi::limits::ANSWER_TIME;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;

use super::error::GetError;
use super::number::Number;
use super::options::BufferPoolOptions;
use super::writer::{Record, pool_of, remove_if_killed};
use crate::consumer::Consumer;
use crate::error::{ConnectError, ReceiveError};
use crate::frame::lease::ReadLease;

/// Connections to processes that have ended. Buffers that they published can be read as long as these are kept.
const MOST_LOST: usize = 16;

/// The connection to one process.
#[derive(Debug)]
pub(super) struct Connection {
    writer: u8,
    consumer: Consumer,
    /// By slot: the newest generation that was read.
    got: Mutex<HashMap<u32, u32>>,
}

impl Connection {
    fn is_lost(&self) -> bool {
        self.consumer.is_lost()
    }

    /// `None`: nothing is published there under this number.
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
    pub(super) fn count_read(&self, lease: &ReadLease) -> Result<(), ReceiveError> {
        let (slot, generation) = (lease.info().slot, lease.info().generation);
        // The first read of a process shows in its lease page.
        let before = lock(&self.got).insert(slot, generation);
        if before == Some(generation) {
            let message = ToProducer::ReadAgain { slot, generation };
            let link = self.consumer.session().link();
            let sent = link.send_before(&message, Deadline::after(Some(ANSWER_TIME)));
            // Where the writer has ended nothing counts any more.
            if sent.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                return Err(ReceiveError::Timeout);
            }
        }
        Ok(())
    }
}

/// The oldest first.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Vec<Arc<Connection>>>);

impl Connections {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        lock(&self.0)
    }

    /// Reads a buffer of another process.
    pub(super) fn read(
        &self,
        options: &BufferPoolOptions,
        number: Number,
    ) -> Result<(ReadLease, Number, Arc<Connection>), GetError> {
        let index = number.pack();
        let known = self.of(number.writer);
        let has_writer = known.iter().any(|connection| !connection.is_lost());
        let joined = if has_writer {
            None
        } else {
            self.join(options, number.writer)?
        };
        let mut failure = None;
        for connection in joined.iter().chain(known.iter().rev()) {
            match connection.read(number) {
                Ok(Some((lease, found))) => return Ok((lease, found, connection.clone())),
                Ok(None) => {}
                Err(ReceiveError::OverBudget { budget }) => {
                    return Err(GetError::OverBudget { budget });
                }
                // Where the writer has ended, this process can read what it had mapped before.
                Err(_) if connection.is_lost() => {}
                Err(error) => failure = Some(error),
            }
        }
        Err(match failure {
            Some(error) => error.into(),
            None if has_writer || joined.is_some() => GetError::Empty { index },
            None => GetError::NoWriter {
                index,
                pool: options.name().to_owned(),
            },
        })
    }

    fn of(&self, writer: u8) -> Vec<Arc<Connection>> {
        let all = self.lock();
        let of_writer = all.iter().filter(|known| known.writer == writer);
        of_writer.cloned().collect()
    }

    /// Joins the pool of a process. `None`: there is none.
    fn join(
        &self,
        options: &BufferPoolOptions,
        writer: u8,
    ) -> Result<Option<Arc<Connection>>, GetError> {
        let pool = pool_of(options.name(), writer);
        let consumer = match options.consumer(&pool).connect() {
            Ok(consumer) => consumer,
            Err(ConnectError::NotFound { .. }) => {
                remove_if_killed(&pool);
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        if !consumer.control().constants().shape.by_number {
            return Ok(None);
        }
        let connection = Arc::new(Connection {
            writer,
            consumer,
            got: Mutex::default(),
        });
        let mut all = self.lock();
        all.push(connection.clone());
        let lost = all.iter().filter(|known| known.is_lost()).count();
        let mut spare = lost.saturating_sub(MOST_LOST);
        let gone: Vec<_> = all
            .extract_if(.., |known| {
                let goes = spare > 0 && known.is_lost();
                spare -= usize::from(goes);
                goes
            })
            .collect();
        drop(all);
        // A thread may end here.
        drop(gone);
        Ok(Some(connection))
    }
}
