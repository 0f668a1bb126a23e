// SPDX-License-Identifier: MPL-2.0

//! The table of layouts in control memory. A row is written once and never changes, because a consumer may read it at any time.

use std::sync::Arc;

use xmem_shm::abi::frame_layout::FrameLayout;
use xmem_shm::abi::frame_layout::LayoutId;
use xmem_shm::abi::layout::Control;

/// The layouts in the table.
#[derive(Debug, Default)]
pub(in crate::producer) struct Layouts {
    rows: Vec<(LayoutId, Arc<FrameLayout>)>,
    /// The row of the last frame, because most frames have the layout of the previous one.
    last: usize,
}

impl Layouts {
    /// The number of a layout in the table. Adds it if the table has room. `None`: it has not.
    pub(in crate::producer) fn find(
        &mut self,
        layout: &Arc<FrameLayout>,
        control: &Control,
    ) -> Option<LayoutId> {
        let is_it = |(_, row): &(LayoutId, Arc<FrameLayout>)| row == layout;
        let last = self.rows.get(self.last);
        if let Some((id, _)) = last.filter(|row| is_it(row)) {
            return Some(*id);
        }
        if let Some(at) = self.rows.iter().position(is_it) {
            self.last = at;
            return self.rows.get(at).map(|(id, _)| *id);
        }
        let id = LayoutId::new(u16::try_from(self.rows.len() + 1).ok()?)?;
        control.set_layout(id, layout);
        self.last = self.rows.len();
        self.rows.push((id, layout.clone()));
        Some(id)
    }
}
