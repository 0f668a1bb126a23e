// SPDX-License-Identifier: MPL-2.0

//! Writes arrays into the buffers of a pool, and prints the number of each buffer. `consumer` reads them:
//!
//! ```text
//! cargo run --example producer -- my_pool 20 | cargo run --example consumer -- my_pool
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::time::Duration;

use xmem_core::BufferPool;

const SIZE: usize = 1920 * 1080 * 3;
/// After this time a buffer that was not read is emptied.
const READ_WITHIN: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().ok_or("usage: producer POOL [BUFFERS]")?;
    let buffers = args.next().map_or(Ok(20), |text| text.parse())?;

    let pool = BufferPool::new(&name)?;
    // Sets memory aside before it is needed.
    pool.preallocate_cpu(SIZE, 8)?;
    for number in 0..buffers {
        let mut buffer = pool.acquire_cpu(SIZE)?;
        buffer.as_cpu_slice_mut()?.fill(number);
        // One `get`, in any process.
        pool.set_ref_count(buffer.meta_index(), 1)?;
        buffer.set_timeout(READ_WITHIN)?;
        let index = buffer.forget()?;
        if writeln!(io::stdout(), "{index}").is_err() {
            // The output was closed, for example by `| head`.
            break;
        }
    }
    // The buffers end with this process.
    pool.wait_until_read(None)?;
    Ok(())
}
