// SPDX-License-Identifier: MPL-2.0

//! A small frame through a pool, by xmem-core: the producer and the consumer are in one process, and no thread sleeps for a frame.

use std::path::PathBuf;

use xmem_core::{Consumer, FrameMeta, Producer};

use crate::Error;
use crate::direct::each_line;
use crate::mark::Mark;
use crate::side::announce;

const SIZE: usize = 4096;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Not used: the code that is counted is in this program
    #[arg(long)]
    plugin: Vec<PathBuf>,
    /// The path of the pool's socket
    pool: String,
}

pub(crate) fn pass(args: &Args) -> Result<(), Error> {
    let producer = Producer::builder(&args.pool).build()?;
    let mut consumer = Consumer::builder(&args.pool).connect()?;
    announce();
    each_line(|| {
        Mark::Acquire.set();
        let slot = producer.acquire(SIZE);
        Mark::Rest.set();
        let mut slot = slot?;
        slot.as_mut_slice().fill(1);
        Mark::Push.set();
        // With the end of the producer's own reference.
        let is_published = slot.publish(FrameMeta::new(SIZE)).is_ok();
        Mark::Take.set();
        let frame = consumer.receive(None);
        Mark::Rest.set();
        let frame = frame.map_err(|error| format!("published: {is_published}, {error}"))?;
        std::hint::black_box(frame.bytes()?);
        Mark::Release.set();
        drop(frame);
        Mark::Rest.set();
        Ok(())
    })
}
