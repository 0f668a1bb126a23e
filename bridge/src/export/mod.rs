// SPDX-License-Identifier: MPL-2.0

//! The command `xmem-bridge export POOL...`.

mod mailbox;
mod session;
mod source;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use xmem_core::monotonic_ns;

use crate::cli::Export;
use crate::link::{Link, Side};
use crate::report::line;
use crate::signals::Signals;
use crate::wire::{Down, Ids, Pulse, Up};
use crate::{Error, keys, lock, random};
use mailbox::Mailbox;
use session::Active;

/// The maximum number of sessions. Each session has a thread, and a consumer of a pool.
const MAX_SESSIONS: usize = 256;

/// The sessions of all importers.
#[derive(Debug)]
struct Sessions {
    link: Link,
    /// The names of the exported pools.
    pools: Vec<String>,
    /// By pool and importer.
    all: Mutex<HashMap<(String, u64), Active>>,
}

impl Sessions {
    /// Handles a message of an importer. It must not block, because it runs on a thread of Zenoh.
    fn handle(&self, key: &str, bytes: &[u8]) {
        let Some(pool) = keys::pool(key) else {
            return;
        };
        let up = match Up::decode(bytes) {
            Ok(up) => up,
            Err(error) => return log::debug!("{key}: {error}"),
        };
        match up {
            Up::Hello(hello) => {
                match self.session(pool, hello.importer, &hello.name) {
                    Ok(session) => session.heard(hello.sent, None),
                    Err(error) => {
                        let (importer, reason) = (hello.importer, error.to_string());
                        self.send(pool, importer, &Down::Refusal { importer, reason });
                    }
                };
            }
            Up::Credit(credit) => match self.find(pool, credit.ids) {
                Some(session) => session.heard(credit.sent, Some(credit)),
                // The session does not exist: for example, the exporter was restarted. A pulse of exporter 0 makes the importer
                // send a hello.
                None => {
                    let ids = Ids {
                        exporter: 0,
                        ..credit.ids
                    };
                    let now = monotonic_ns();
                    let pulse = Pulse {
                        ids,
                        echo: credit.sent,
                        received: now,
                        sent: now,
                        tai: None,
                    };
                    self.send(pool, ids.importer, &Down::Pulse(pulse));
                }
            },
            Up::Request(request) => {
                if let Some(session) = self.find(pool, request.ids) {
                    session.request(&request.name, &request.data);
                }
            }
        }
    }

    fn send(&self, pool: &str, importer: u64, down: &Down) {
        self.link.send(keys::down(pool, importer), down.encode());
    }

    /// The session of this stream. `None` if it has ended or belongs to another instance.
    fn find(&self, pool: &str, ids: Ids) -> Option<Arc<Mailbox>> {
        let all = lock(&self.all);
        let session = all.get(&(pool.to_owned(), ids.importer))?;
        let is_it = session.mailbox.ids() == ids && !session.is_over();
        is_it.then(|| session.mailbox.clone())
    }

    /// The session of an importer. Starts one if there is none.
    fn session(&self, pool: &str, importer: u64, name: &str) -> Result<Arc<Mailbox>, Error> {
        if !self.pools.iter().any(|it| it == pool) {
            return Err(format!("no pool {pool:?} is exported").into());
        }
        let mut all = lock(&self.all);
        all.retain(|_, session| !session.is_over());
        let key = (pool.to_owned(), importer);
        if let Some(session) = all.get(&key) {
            return Ok(session.mailbox.clone());
        }
        if all.len() >= MAX_SESSIONS {
            return Err("there are too many importers".into());
        }
        let instance = random();
        let session = session::start(&self.link, pool, importer, name, instance)?;
        let mailbox = session.mailbox.clone();
        all.insert(key, session);
        Ok(mailbox)
    }
}

pub(crate) fn run(export: &Export) -> Result<(), Error> {
    let signals = Signals::catch()?;
    let mut pools: Vec<String> = Vec::new();
    let mut refused = Vec::new();
    for pool in &export.pools {
        keys::check_name(pool)?;
        if pools.contains(pool) {
            continue;
        }
        pools.push(pool.clone());
        if let Some(reason) = source::refusal(pool) {
            refused.push(format!("pool {pool:?} cannot be exported: {reason}"));
        }
    }
    if refused.len() == pools.len() {
        return Err(refused.join("; ").into());
    }
    let endpoint = export.endpoint()?;
    // At a router, subscribe only to the keys of its own pools. Otherwise this exporter would refuse the importers of pools that
    // other exporters have.
    let (side, how, ups) = match export.router {
        Some(_) => {
            let pools = pools.iter().map(|pool| keys::up(pool));
            (Side::ConnectsToRouter, "over the router", pools.collect())
        }
        None => (Side::Listens, "at", vec![keys::ALL_UP.to_owned()]),
    };
    let link = Link::open(&endpoint, side)?;
    let sessions = Arc::new(Sessions {
        link: link.clone(),
        pools: pools.clone(),
        all: Mutex::default(),
    });
    let names = pools.join("\n");
    let _answers = link.answer(keys::POOLS, move || names.clone())?;
    let inlets = ups.into_iter().map(|key| {
        let taking = sessions.clone();
        link.inlet(key, move |key, bytes| taking.handle(key, bytes))
    });
    let _inlets = inlets.collect::<Result<Vec<_>, Error>>()?;
    // Its next producer may be acceptable. Until then its sessions refuse importers.
    for reason in refused {
        line(reason);
    }
    line(format_args!(
        "exports {} {how} {}",
        pools.join(", "),
        export.place()
    ));
    signals.wait();
    Ok(())
}
