// SPDX-License-Identifier: MPL-2.0

//! Memory that upstream allocated, as imported into pools.

use gst::glib;
use xmem_core::{ImportedMemory, Producer};

use crate::buffers::tied::{Tie, tied, untie, update};

/// For each sink that the memory comes by, behind a tee; and for earlier runs of one, as long as their pools are there.
#[derive(Debug, Default, Clone)]
pub(super) struct Imports(Vec<ImportedMemory>);

impl Tie for Imports {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-imports");
}

/// A producer's import of the memory.
pub(super) fn known(memory: &gst::MemoryRef, producer: &Producer) -> Option<ImportedMemory> {
    let Imports(imports) = tied(memory)?;
    imports.into_iter().find(|import| producer.owns(import))
}

/// Remembers it, for as long as the memory lives.
pub(super) fn remember(memory: &gst::MemoryRef, import: ImportedMemory) {
    let past: Vec<_> = update(memory, |Imports(imports)| {
        let past = imports.extract_if(.., |import| !import.is_used()).collect();
        imports.push(import);
        past
    });
    drop(past);
}

/// Makes consumers release a memory that is about to be freed.
pub(super) fn forget(memory: &gst::MemoryRef) {
    drop(untie::<Imports>(memory));
}
