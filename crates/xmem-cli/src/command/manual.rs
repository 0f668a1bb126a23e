// SPDX-License-Identifier: MPL-2.0

//! `xmem completions` and `xmem man`, for packagers.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Error;
use crate::cli::Cli;

pub(crate) fn completions(shell: Shell, out: &mut impl Write) -> Result<(), Error> {
    // Written to memory first, because the generator panics if it cannot write.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "xmem", &mut text);
    out.write_all(&text)?;
    Ok(())
}

/// Writes `xmem.1` and a page for each command, such as `xmem-list.1`.
pub(crate) fn pages(directory: &Path) -> Result<(), Error> {
    clap_mangen::generate_to(Cli::command(), directory)
        .map_err(|error| format!("cannot write to {}: {error}", directory.display()))?;
    Ok(())
}
