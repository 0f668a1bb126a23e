// SPDX-License-Identifier: MPL-2.0

//! Entry points of `cargo xtask fuzz`, for bytes that another process could have written. Only in fuzzing builds.

use std::fs::File;
use std::os::unix::fs::FileExt;

use xmem_shm::abi::device_header::DeviceHeader;
use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::entry::Storage;
use xmem_shm::abi::extension::Extension;
use xmem_shm::abi::frame_layout::LayoutId;
use xmem_shm::abi::layout::{Control, VERSION};
use xmem_shm::abi::named::Sticky;
use xmem_shm::abi::parts;
use xmem_shm::abi::place::SharedPlace;
use xmem_shm::abi::wire::{ToConsumer, ToProducer};
use xmem_shm::os::memfd::{self, Seal};
use xmem_shm::protocol::lease::SlotWord;
use xmem_shm::protocol::ring::PAYLOAD_WORDS;
use xmem_shm::sync::Ordering;

use crate::stats::PoolStats;

fn words<const N: usize>(data: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(data.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// Messages in both directions. A message that can be decoded encodes to the same bytes.
pub fn messages(data: &[u8]) {
    if let Some(message) = ToProducer::decode(data) {
        assert_eq!(ToProducer::decode(&message.encode()), Some(message));
    }
    if let Some(message) = ToConsumer::decode(data) {
        assert_eq!(ToConsumer::decode(&message.encode()), Some(message));
    }
    let _ = ToProducer::version_of(data);
}

/// An entry of the ring.
pub fn entry(data: &[u8]) {
    device_header(data);
    let entry = Entry::of_words(1, words::<PAYLOAD_WORDS>(data));
    let extension = Extension::of_words(words(data.get(PAYLOAD_WORDS * 8..).unwrap_or_default()));
    let place = SharedPlace::decode(words(data));
    assert_eq!(place.and_then(|it| SharedPlace::decode(it.encode())), place);
    if let Ok(meta) = extension.describe(&entry) {
        let info = entry.info(Storage::Cpu, 0);
        let copy = Entry::new(&info, &meta, entry.attached(), None);
        let copied = Extension::of(&meta).describe(&copy);
        assert_eq!(copied.as_ref(), Ok(&meta));
    }
}

/// The header of a region with frames on a device.
pub fn device_header(data: &[u8]) {
    let _ = DeviceHeader::len_of(data);
    if let Ok(header) = DeviceHeader::decode(data, 1 << 20) {
        for at in (0..1 << 20).step_by(4096) {
            let slot = header.slot_at(at, header.host_stride as usize);
            assert!(slot.is_none_or(|slot| slot < header.slots));
        }
    }
}

/// A sticky state. Attachments have the same format, and the parts of a frame are an attachment.
pub fn sticky(data: &[u8]) {
    if let Some(sticky) = Sticky::decode(data) {
        assert_eq!(sticky.encode(), data);
        for (key, _) in sticky.iter() {
            let _ = sticky.text(key);
        }
    }
    if let Some(places) = parts::decode(data) {
        assert_eq!(parts::decode(&parts::encode(&places)), Some(places.clone()));
        let _ = parts::total(&places);
    }
}

/// The answer to a query.
pub fn stats(data: &[u8]) {
    if let Ok(stats) = serde_json::from_slice::<PoolStats>(data) {
        let text = serde_json::to_vec(&stats).unwrap_or_default();
        assert_eq!(serde_json::from_slice(&text).ok(), Some(stats));
    }
}

/// Control memory: the constants, the changing words, and the beginning of the rest. The first byte sets the length.
pub fn control(data: &[u8]) {
    let Some((size, data)) = data.split_first() else {
        return;
    };
    let len = 512 << (size % 12);
    let Ok(fd) = memfd::create("xmem-fuzz", len) else {
        return;
    };
    let file = File::from(fd);
    let data = &data[..data.len().min(len)];
    // Usually with valid first words, so that the others are read.
    let mut head = Vec::new();
    if size & 0x80 == 0 {
        head.extend_from_slice(b"xmemctl\0");
        head.extend_from_slice(&u64::from(VERSION).to_le_bytes());
    }
    let written = file
        .write_all_at(&head, 0)
        .and_then(|()| file.write_all_at(data, head.len() as u64));
    if written.is_err() || memfd::seal(&file, Seal::Everything).is_err() {
        return;
    }
    let Ok(control) = Control::open(&file) else {
        return;
    };
    let shape = control.constants().shape;
    let head = control.head();
    for sequence in [0, 1, head.wrapping_sub(1), head, u64::MAX] {
        let entry = control.read_entry(sequence);
        let extension = control.read_extension(sequence);
        let _ = entry.zip(extension).map(|(entry, it)| it.describe(&entry));
    }
    for slot in [0, 1, shape.max_slots - 1, shape.max_slots, u32::MAX] {
        let word = control
            .slot(slot)
            .map(|word| SlotWord(word.load(Ordering::Relaxed)));
        assert_eq!(word.is_some(), slot < shape.max_slots);
        let record = control.read_record(slot);
        let _ = (word.map(SlotWord::state), record, control.place(slot));
    }
    for number in 0..100 {
        let _ = LayoutId::new(number).map(|id| control.layout(id));
    }
    assert_eq!(control.region_ids().count(), shape.max_regions());
    let _ = (
        control.eos_at(),
        control.closed(),
        control.regions_version(),
    );
}
