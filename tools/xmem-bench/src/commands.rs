// SPDX-License-Identifier: MPL-2.0

//! The commands that a child process reads from its standard input, and its replies.

use std::io::{BufRead, Write};

use crate::Error;
use crate::figures::Meter;

/// A path that does not exist. A `stat` of it marks a position in the output of strace.
pub(crate) const MARK: &str = "/xmem-bench-mark";

/// The producer has sent its first frame.
pub(crate) const SENDING: &str = "sending";
/// The consumer has received its first frame.
pub(crate) const RECEIVING: &str = "receiving";
pub(crate) const MEASURE: &str = "measure";
pub(crate) const STOP: &str = "stop";

/// Measures between the commands `measure` and `stop`, until standard input ends. Frames continue after `stop`, so that a consumer
/// that waits for a frame can end.
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
            other => return Err(format!("unknown command {other:?}").into()),
        }
    }
    Ok(())
}

fn mark() {
    // The call fails; only the system call matters.
    let _ = std::fs::metadata(MARK);
}
