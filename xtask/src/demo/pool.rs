// SPDX-License-Identifier: MPL-2.0

//! The state of the pool, from the output of `xmem-demo`.

use serde_json::Value;

use crate::Result;

use super::stage::{POOL, Stage};

#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub(super) pid: u32,
    pub(super) published: u64,
    pub(super) copied: u64,
    pub(super) slots: u64,
    pub(super) slots_held: u64,
    pub(super) consumers: Vec<Consumer>,
}

#[derive(Debug, Clone)]
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
        let json: Value = serde_json::from_slice(&output.stdout)?;
        let consumers = json["consumers"].as_array().map(Vec::as_slice);
        let mut consumers: Vec<_> = consumers
            .unwrap_or_default()
            .iter()
            .map(Consumer::from)
            .collect();
        // Consumers keep their order in the table after they reconnect.
        consumers.sort_by_key(|consumer| consumer.pid);
        Ok(Some(Self {
            pid: number(&json, "pid") as u32,
            published: number(&json, "published"),
            copied: number(&json, "copied"),
            slots: number(&json, "slots"),
            slots_held: number(&json, "slots_held"),
            consumers,
        }))
    }

    pub(super) fn consumer(&self, pid: u32) -> Option<&Consumer> {
        self.consumers.iter().find(|consumer| consumer.pid == pid)
    }
}

impl From<&Value> for Consumer {
    fn from(json: &Value) -> Self {
        Self {
            pid: number(json, "pid") as u32,
            name: json["name"].as_str().unwrap_or_default().to_owned(),
            received: number(json, "received"),
            missed: number(json, "missed"),
            copied: number(json, "copied"),
            held: number(json, "held"),
            latency_ns: number(json, "latency_ns"),
        }
    }
}

fn number(json: &Value, key: &str) -> u64 {
    json[key].as_u64().unwrap_or_default()
}
