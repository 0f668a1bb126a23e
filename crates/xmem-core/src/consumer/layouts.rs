// SPDX-License-Identifier: MPL-2.0

//! The layouts of a pool's frames. Each is copied out of shared memory and checked once, so later writes of the producer have
//! no effect on it.

use std::sync::{Arc, OnceLock};

use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::frame_layout::FrameLayout;
use xmem_shm::abi::frame_layout::LayoutId;
use xmem_shm::abi::frame_layout::MetaError;
use xmem_shm::abi::limits::MAX_LAYOUTS;
use xmem_shm::abi::meta::FrameMeta;

use super::connection::Connection;

type Checked = Result<Arc<FrameLayout>, MetaError>;

/// The layouts of one connection, by their rows in the pool's table.
pub(super) struct Layouts {
    connection: Arc<Connection>,
    checked: [OnceLock<Checked>; MAX_LAYOUTS],
}

impl Layouts {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        Self {
            connection: connection.clone(),
            checked: [const { OnceLock::new() }; MAX_LAYOUTS],
        }
    }

    /// The description of an entry's frame. `None`: the entry was overwritten.
    pub(super) fn describe(&self, entry: &Entry) -> Result<Option<FrameMeta>, MetaError> {
        if entry.has_extension() || entry.layout_number() == 0 {
            return self.describe_extended(entry);
        }
        let layout = self.get(entry.layout_number())?;
        Ok(Some(entry.meta(layout, None)))
    }

    #[cold]
    fn describe_extended(&self, entry: &Entry) -> Result<Option<FrameMeta>, MetaError> {
        let control = self.connection.control();
        let extension = entry.has_extension();
        let extension = extension.then(|| control.read_extension(entry.sequence()));
        let Some(Some(extension)) = extension else {
            return Ok(None);
        };
        if entry.layout_number() == 0 {
            return extension.describe(entry).map(Some);
        }
        let layout = self.get(entry.layout_number())?;
        Ok(Some(entry.meta(layout, Some(extension.reserved()))))
    }

    fn get(&self, number: u16) -> Checked {
        let id = LayoutId::new(number).ok_or(MetaError("a layout that there cannot be"))?;
        let Some(checked) = self.checked.get(id.index()) else {
            return Ok(Arc::default());
        };
        // The row was written before the entry that refers to it.
        let check = || FrameLayout::decode(&self.connection.control().layout(id)).map(Arc::new);
        checked.get_or_init(check).clone()
    }
}
