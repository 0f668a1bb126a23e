// SPDX-License-Identifier: MPL-2.0

//! Reads buffers of a pool in place. Reads their numbers from standard input, one in each line. `producer` writes them:
//!
//! ```text
//! cargo run --example producer -- my_pool 20 | cargo run --example consumer -- my_pool
//! ```

use std::error::Error;
use std::io::{self, BufRead, Write};

use xmem_core::BufferPool;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: consumer POOL")?;
    let pool = BufferPool::new(&name)?;
    for line in io::stdin().lock().lines() {
        let index = line?.parse()?;
        let buffer = pool.get(index)?;
        let bytes = buffer.as_cpu_slice()?;
        let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
        writeln!(
            io::stdout(),
            "buffer {index}: {} bytes, mean {}",
            bytes.len(),
            sum / bytes.len().max(1) as u64
        )?;
        // Dropping the guard releases the buffer.
    }
    Ok(())
}
