// SPDX-License-Identifier: MPL-2.0

//! All parts of a consumer's connection.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use xmem_shm::abi::layout::{Control, LeasePage};

use super::connection::{Connection, Terms};
use super::leases::Leases;
use super::link::Link;
use super::lookup::Layouts;
use super::origin::{Join, Origins};
use super::regions::MappedRegions;

/// The state of a consumer in a joined pool.
pub(crate) struct Session {
    connection: Arc<Connection>,
    leases: Arc<Leases>,
    regions: Arc<MappedRegions>,
    layouts: Layouts,
    origins: Arc<Origins>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.connection).finish()
    }
}

impl Session {
    /// `join` joins pools of origin.
    pub(super) fn new(
        socket: OwnedFd,
        control: Control,
        page: LeasePage,
        wake_socket: OwnedFd,
        terms: Terms,
        join: Option<Arc<Join>>,
    ) -> io::Result<Self> {
        let link = Arc::new(Link::new(socket)?);
        let connection = Arc::new(Connection::new(link, control, page, wake_socket, terms));
        Ok(Self {
            leases: Arc::new(Leases::new(&connection)),
            regions: Arc::new(MappedRegions::new(&connection)),
            layouts: Layouts::new(),
            origins: Arc::new(Origins::new(&connection, join)),
            connection,
        })
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        self.connection.link()
    }

    pub(crate) fn leases(&self) -> &Arc<Leases> {
        &self.leases
    }

    pub(crate) fn regions(&self) -> &Arc<MappedRegions> {
        &self.regions
    }

    pub(super) fn layouts(&self) -> &Layouts {
        &self.layouts
    }

    pub(super) fn origins(&self) -> &Arc<Origins> {
        &self.origins
    }
}
