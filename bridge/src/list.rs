// SPDX-License-Identifier: MPL-2.0

//! `xmem-bridge list HOST`

use std::io::{Write, stdout};

use xmem_core::printable;

use crate::cli::List;
use crate::link::{Link, Side};
use crate::{Error, keys};

pub(crate) fn run(list: &List) -> Result<(), Error> {
    let endpoint = list.client.endpoint(&list.host)?;
    let link = Link::open(&endpoint, Side::ConnectsOnce)?;
    let pools = link.ask(keys::POOLS);
    let pools = pools.ok_or_else(|| format!("{}: no exporter answers there", list.host))?;
    let mut out = stdout().lock();
    for pool in pools.lines() {
        writeln!(out, "{}", printable(pool))?;
    }
    Ok(())
}
