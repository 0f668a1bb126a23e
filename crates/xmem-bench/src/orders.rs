// SPDX-License-Identifier: MPL-2.0

//! The commands to a side of a transport on its standard input, and its answers.

use std::io::{BufRead, Write};

use crate::Error;
use crate::figures::Meter;

/// A path that does not exist. Asking for it leaves a mark among the system calls.
pub(crate) const MARK: &str = "/xmem-bench-mark";

/// The first frame was sent.
pub(crate) const SENDING: &str = "sending";
/// The first frame has come.
pub(crate) const RECEIVING: &str = "receiving";
pub(crate) const MEASURE: &str = "measure";
pub(crate) const STOP: &str = "stop";

/// Measures between `measure` and `stop`, and returns when there are no more orders. Until then everything goes on, so
/// that a consumer that waits for a frame ends with the next one.
pub(crate) fn serve(meter: &Meter) -> Result<(), Error> {
    let mut start = None;
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            MEASURE => {
                start = Some(meter.start()?);
                mark();
            }
            STOP => {
                mark();
                let start = start.as_ref().ok_or("stop before measure")?;
                println!("{}", serde_json::to_string(&meter.figures_since(start)?)?);
                std::io::stdout().flush()?;
            }
            other => return Err(format!("unknown order {other:?}").into()),
        }
    }
    Ok(())
}

fn mark() {
    // That it is not there is the point.
    let _ = std::fs::metadata(MARK);
}
