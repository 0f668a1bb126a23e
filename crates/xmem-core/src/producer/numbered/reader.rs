// SPDX-License-Identifier: MPL-2.0

//! A process that reads the buffers of another one.

use std::fmt;

use crate::producer::pool::consumer::ConsumerRecord;

/// A process that is connected to this process and reads its buffers: see [`BufferPool::readers`](crate::BufferPool::readers).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reader {
    id: u64,
    pid: u32,
    name: String,
}

impl Reader {
    pub(in crate::producer) fn of(consumer: &ConsumerRecord) -> Self {
        Self {
            id: consumer.id(),
            pid: consumer.pid(),
            name: consumer.name().to_owned(),
        }
    }

    /// The number of its connection. Each connection to this process has its own.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The process ID as this process sees it. 0 if it cannot, for example from another PID namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The name of the program.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, pid, name } = self;
        write!(f, "reader {id} ({name:?}, process {pid})")
    }
}
