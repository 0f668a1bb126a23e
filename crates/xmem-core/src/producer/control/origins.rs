// SPDX-License-Identifier: MPL-2.0

//! Pools of origin: consumers are sent them, and answer whether they can hold their frames.

use std::io;

use xmem_shm::abi::text::Text;
use xmem_shm::abi::wire::ToConsumer;
use xmem_shm::fault::{self, Point};

use super::{Connection, ControlThread, Next, Stage};
use crate::producer::pool::consumer::ConsumerRecord;
use crate::producer::pool::event::{Departure, PoolEvent};

impl ControlThread {
    /// Records a consumer's answer. After the last one that is needed, its cursor is set.
    pub(super) fn note_reach(
        &mut self,
        id: u64,
        consumer: &ConsumerRecord,
        pool_id: u64,
        yes: bool,
    ) -> Next {
        let arrives = consumer.reach().answer(pool_id, yes) && consumer.reach().is_awaited();
        // Wakes the threads that wait for answers.
        self.pool.notifier().notify();
        if arrives {
            return self.arrive(id, consumer);
        }
        Next::Stay
    }

    /// A consumer has answered for every pool of origin: sets its cursor.
    fn arrive(&mut self, id: u64, consumer: &ConsumerRecord) -> Next {
        let guard = self.pool.lock_on_own_thread();
        guard.set_start(consumer);
        consumer.reach().settle();
        drop(guard);
        fault::point(Point::ConsumerArrived);
        self.pool.notifier().notify();
        let Some(connection) = self.connections.get_mut(&id) else {
            return Next::Stay;
        };
        if connection.send(&ToConsumer::Arrived, &[]).is_err() {
            return Next::Close(Departure::Died);
        }
        connection.departure_reported = false;
        self.report(PoolEvent::Connected, consumer);
        Next::Stay
    }

    /// Announces a pool of origin to all consumers.
    pub(super) fn introduce(&self, pool_id: u64) {
        let Some(path) = self.path_of_origin(pool_id) else {
            return;
        };
        for connection in self.connections.values() {
            if let Stage::Joined(consumer) = &connection.stage
                && consumer.follows_stream()
            {
                // If its queue is full, the consumer asks when it takes a frame of this pool of origin.
                let _ = connection.send(&origin(pool_id, &path), &[]);
            }
        }
    }

    pub(super) fn send_origin(&self, connection: &Connection, pool_id: u64) -> io::Result<()> {
        match self.path_of_origin(pool_id) {
            Some(path) => connection.send(&origin(pool_id, &path), &[]),
            None => connection.send(&ToConsumer::NoOrigin { pool_id }, &[]),
        }
    }

    fn path_of_origin(&self, pool_id: u64) -> Option<String> {
        let guard = self.pool.lock_on_own_thread();
        guard.origins.path_of(pool_id).map(str::to_owned)
    }
}

/// Sends pools of origin to a consumer that joins.
pub(super) fn send_origins(connection: &Connection, origins: &[(u64, String)]) {
    for (pool_id, path) in origins {
        let _ = connection.send(&origin(*pool_id, path), &[]);
    }
}

fn origin(pool_id: u64, path: &str) -> ToConsumer {
    ToConsumer::Origin {
        pool_id,
        path: Text::new(path),
    }
}
