// SPDX-License-Identifier: MPL-2.0

//! A process of a buffer pool that executes one step per command.

use std::error::Error;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use xmem_core::{AccessMode, BufferGuard, BufferPool, GetError, WriteAccessError};

use crate::support::child::reply;
use crate::support::victim::do_steps;
use crate::support::*;

pub(crate) const LEN: usize = 5000;
pub(crate) const MAX_BUFFERS: usize = 8;

type Outcome = Result<u32, Box<dyn Error>>;

#[track_caller]
pub(crate) fn assert_whole(bytes: &[u8]) {
    assert_eq!(bytes.len(), LEN);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "it is torn");
}

pub(crate) fn open(pool: &str) -> BufferPool {
    BufferPool::options(pool)
        .max_buffers(MAX_BUFFERS as u32)
        .open()
        .unwrap()
}

struct Part {
    name: String,
    pool: Option<BufferPool>,
    /// The oldest first.
    guards: Vec<BufferGuard>,
    aside: Vec<u32>,
    /// The next value to write.
    byte: u8,
}

impl Part {
    fn pool(&mut self) -> &BufferPool {
        self.pool.get_or_insert_with(|| open(&self.name))
    }

    /// Writes half of the content. Publishing now would publish a torn buffer.
    fn begin(&mut self, mut guard: BufferGuard) -> Outcome {
        self.byte = self.byte.wrapping_add(1);
        guard.as_cpu_slice_mut()?[..LEN / 2].fill(self.byte);
        let index = guard.meta_index();
        self.guards.push(guard);
        Ok(index)
    }

    /// The newest guard, with its complete content.
    fn finish(&mut self) -> Result<BufferGuard, Box<dyn Error>> {
        let mut guard = self.guards.pop().ok_or("there is no guard")?;
        if guard.mode() == AccessMode::ReadWrite {
            guard.as_cpu_slice_mut()?.fill(self.byte);
        }
        Ok(guard)
    }

    fn newest(&self) -> Result<&BufferGuard, Box<dyn Error>> {
        Ok(self.guards.last().ok_or("there is no guard")?)
    }

    fn get(&mut self, index: u32) -> Result<BufferGuard, GetError> {
        let guard = self.pool().get(index)?;
        assert_whole(guard.as_cpu_slice().unwrap());
        Ok(guard)
    }

    fn step(&mut self, what: &str, index: u32, count: i32) -> Outcome {
        match what {
            "preallocate" => {
                self.aside = self.pool().preallocate_cpu(LEN, 2)?;
                Ok(self.aside[0])
            }
            "give-up" => {
                let aside = std::mem::take(&mut self.aside);
                Ok(self.pool().give_up(&aside) as u32)
            }
            "acquire" => {
                let guard = self.pool().acquire_cpu(LEN)?;
                self.begin(guard)
            }
            "count" => {
                self.pool().set_ref_count(index, count)?;
                Ok(index)
            }
            "forget" => Ok(self.finish()?.forget()?),
            "forget-to" => {
                let readers = self.pool().readers();
                let mut guard = self.finish()?;
                guard.set_readers(&readers)?;
                Ok(guard.forget()?)
            }
            "forget-timeout" => {
                let mut guard = self.finish()?;
                guard.set_timeout(Duration::from_millis(1))?;
                Ok(guard.forget()?)
            }
            "drop" => Ok(self.finish()?.meta_index()),
            "drop-all" => {
                self.guards.drain(..).for_each(BufferGuard::discard);
                while self.pool().release(index) {}
                Ok(0)
            }
            "get" => {
                let guard = self.get(index)?;
                self.guards.push(guard);
                Ok(index)
            }
            "clone" => {
                let clone = self.newest()?.clone_ref()?;
                self.guards.push(clone);
                Ok(index)
            }
            "edit" => {
                let guard = self.pool().get_mut(index)?;
                self.begin(guard)
            }
            "copy" => {
                let copy = self.newest()?.copy_to_cpu()?;
                self.begin(copy)
            }
            "discard" => {
                self.pool().discard(index)?;
                Ok(0)
            }
            "add-ref" => {
                self.pool().add_ref(index)?;
                Ok(index)
            }
            "release" => match self.pool().release(index) {
                true => Ok(index),
                false => Err("there was no reference".into()),
            },
            "connect" => {
                self.pool().connect(index)?;
                Ok(index)
            }
            "wait" => {
                self.pool().wait_until_read(Some(HANG))?;
                Ok(0)
            }
            // Guards keep their pool.
            "close" => {
                self.pool = None;
                self.guards.clear();
                Ok(0)
            }
            other => self.look(other, index),
        }
    }

    /// Checks of a process without faults.
    fn look(&mut self, what: &str, index: u32) -> Outcome {
        match what {
            "stale" => {
                assert!(matches!(
                    self.get(index),
                    Err(GetError::Empty { .. } | GetError::NoWriter { .. })
                ));
                let error = self.pool().get_mut(index).unwrap_err();
                assert!(
                    matches!(
                        error,
                        WriteAccessError::Get(GetError::Empty { .. } | GetError::NoWriter { .. })
                    ),
                    "{error}"
                );
                Ok(0)
            }
            // Each read of this process counts immediately.
            "rest" => {
                let mut reads = 0;
                loop {
                    match self.get(index) {
                        Ok(_) => reads += 1,
                        Err(GetError::Empty { .. }) => return Ok(reads),
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            "check" => {
                let read = self.guards.iter();
                let read = read.filter(|guard| guard.mode() == AccessMode::ReadOnly);
                read.for_each(|guard| assert_whole(guard.as_cpu_slice().unwrap()));
                // Complete, or an error.
                Ok(u32::from(self.get(index).is_ok()))
            }
            "readers" => Ok(self.pool().readers().len() as u32),
            "alone" => {
                eventually("it is gone", || self.pool().stats().consumers.is_empty());
                Ok(0)
            }
            // Each buffer can be acquired: none is lost.
            "fill" => {
                let aside = std::mem::take(&mut self.aside);
                self.pool().give_up(&aside);
                let pool = self.pool();
                let all: Result<Vec<_>, _> =
                    (0..MAX_BUFFERS).map(|_| pool.acquire_cpu(LEN)).collect();
                all?;
                Ok(0)
            }
            other => panic!("no step {other:?}"),
        }
    }
}

pub(crate) fn take_part(pool: &str, commands: &Receiver<String>) {
    let mut part = Part {
        name: pool.to_owned(),
        pool: Some(open(pool)),
        guards: Vec::new(),
        aside: Vec::new(),
        byte: 0,
    };
    reply("ready");
    do_steps(commands, |what, index, count| part.step(what, index, count));
}
