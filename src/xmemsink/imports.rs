// SPDX-License-Identifier: MPL-2.0

//! Upstream's own memory, imported into pools.

use gst::glib;
use xmem_core::{ImportedMemory, Producer};

use crate::buffers::tied::{Tie, tied, untie, update};

/// The imports of one memory: one for each sink that it reaches behind a tee, and for earlier runs of a sink while their pools
/// exist.
#[derive(Debug, Default, Clone)]
pub(super) struct Imports(Vec<ImportedMemory>);

impl Tie for Imports {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-imports");
}

/// The import of the memory into this producer's pool.
pub(super) fn known(memory: &gst::MemoryRef, producer: &Producer) -> Option<ImportedMemory> {
    let Imports(imports) = tied(memory)?;
    imports.into_iter().find(|import| import.is_of(producer))
}

/// Keeps the import while the memory exists.
pub(super) fn remember(memory: &gst::MemoryRef, import: ImportedMemory) {
    let past: Vec<_> = update(memory, |Imports(imports)| {
        let past = imports.extract_if(.., |import| !import.is_used()).collect();
        imports.push(import);
        past
    });
    drop(past);
}

/// Makes consumers release a memory. Called before it is freed.
pub(super) fn forget(memory: &gst::MemoryRef) {
    drop(untie::<Imports>(memory));
}
