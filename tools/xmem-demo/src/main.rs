// SPDX-License-Identifier: MPL-2.0

//! Prints the figures of a pool as JSON, like `xmem show POOL --format json`. The command `xmem` takes longer to build than the rest
//! of the demo.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let pool = std::env::args().nth(1).ok_or("usage: xmem-demo POOL")?;
    println!(
        "{}",
        serde_json::to_string(&xmem_core::discovery::query(&pool)?)?
    );
    Ok(())
}
