// SPDX-License-Identifier: MPL-2.0

//! The state of the pool, from the output of `xmem-demo`.

use serde::Deserialize;

use crate::Result;

use super::stage::{POOL, Stage};

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Pool {
    pub(super) pid: u32,
    pub(super) published: u64,
    pub(super) copied: u64,
    pub(super) slots: u64,
    pub(super) slots_held: u64,
    pub(super) consumers: Vec<Consumer>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Consumer {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) received: u64,
    pub(super) missed: u64,
    pub(super) copied: u64,
    pub(super) held: u64,
    pub(super) latency_ns: u64,
}

impl Pool {
    /// `None` if the pool has no producer.
    pub(super) fn look(stage: &Stage) -> Result<Option<Self>> {
        let output = stage
            .command(Stage::built("xmem-demo"))
            .arg(POOL)
            .output()?;
        if !output.status.success() {
            return Ok(None);
        }
        let mut pool: Self = serde_json::from_slice(&output.stdout)?;
        // Consumers keep their order in the table after they reconnect.
        pool.consumers.sort_by_key(|consumer| consumer.pid);
        Ok(Some(pool))
    }

    pub(super) fn consumer(&self, pid: u32) -> Option<&Consumer> {
        self.consumers.iter().find(|consumer| consumer.pid == pid)
    }
}
