// SPDX-License-Identifier: MPL-2.0

//! `xmem list --remote HOST`. It runs the program `xmem-bridge`, because `xmem` does not depend on Zenoh.

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Serialize;
use xmem_core::discovery::printable;

use crate::Error;
use crate::cli::{Format, Remote};
use crate::format::{Table, json};

const TOOL: &str = "xmem-bridge";

/// A pool that another host exports.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// The argument of `xmem-bridge import`.
    source: String,
}

/// The path of `xmem-bridge` in the directory of this program. If it is not there, its name, for a search on PATH.
fn tool() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.with_file_name(TOOL);
    if beside.is_file() {
        beside
    } else {
        TOOL.into()
    }
}

fn arguments<'a>(host: &'a str, remote: &'a Remote) -> Vec<&'a OsStr> {
    let mut arguments: Vec<&OsStr> = vec!["list".as_ref()];
    for (option, file) in [
        ("--certificate", &remote.certificate),
        ("--key", &remote.key),
        ("--server-ca", &remote.server_ca),
    ] {
        if let Some(file) = file {
            arguments.extend([option.as_ref(), file.as_os_str()]);
        }
    }
    if remote.trusted_network {
        arguments.push("--trusted-network".as_ref());
    }
    arguments.extend::<[&OsStr; 2]>(["--".as_ref(), host.as_ref()]);
    arguments
}

pub(super) fn run(
    host: &str,
    remote: &Remote,
    format: Format,
    out: &mut impl Write,
) -> Result<(), Error> {
    let mut command = Command::new(tool());
    let listed = command.args(arguments(host, remote)).stdin(Stdio::null());
    let listed = listed.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!(
            "{TOOL} lists the pools of other hosts, and is not installed: run `cargo install --locked --path bridge` in the \
             sources of xmem, or put {TOOL} beside xmem or on PATH"
        ),
        _ => format!("cannot run {TOOL}: {error}"),
    })?;
    if !listed.status.success() {
        let text = String::from_utf8_lossy(&listed.stderr);
        let text = text.trim().lines().last().unwrap_or_default();
        let reason = text.strip_prefix("xmem-bridge: ").unwrap_or(text);
        return Err(format!("cannot list the pools of {host}: {}", printable(reason)).into());
    }
    let text = String::from_utf8(listed.stdout)?;
    let rows = text.lines().map(|name| Row {
        name: name.to_owned(),
        source: format!("{name}@{host}"),
    });
    let rows: Vec<Row> = rows.collect();
    if format == Format::Json {
        return json(out, &rows);
    }
    let mut table = Table::new("POOL  SOURCE", &[]);
    for row in rows {
        table.row([row.name, row.source]);
    }
    table.print(out)
}
