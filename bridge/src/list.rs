// SPDX-License-Identifier: MPL-2.0

//! The command `xmem-bridge list HOST`.

use std::io::{Write, stdout};

use crate::cli::List;
use crate::link::{Link, Side};
use crate::{Error, keys};

pub(crate) fn run(list: &List) -> Result<(), Error> {
    let endpoint = list.client.endpoint(&list.host)?;
    let link = Link::open(&endpoint, Side::ConnectsOnce)?;
    let answers = link.ask(keys::POOLS);
    if answers.is_empty() {
        return Err(format!("{}: no exporter answers there", list.host).into());
    }
    let mut out = stdout().lock();
    // A name becomes part of the argument of `import`.
    let is_pool = |pool: &&str| keys::check_name(pool).is_ok();
    let pools = answers.iter().flat_map(|answer| answer.lines());
    for pool in pools.filter(is_pool) {
        writeln!(out, "{pool}")?;
    }
    Ok(())
}
