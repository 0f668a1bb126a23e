// SPDX-License-Identifier: MPL-2.0

//! The place of a slot.

use crate::abi::entry::Storage;

/// The number of words of a place.
pub const PLACE_WORDS: usize = 3;

/// The place of a slot in shared form. A slot has one place until its region is retired.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SharedPlace {
    /// The region of the slot.
    pub region: u32,
    /// Its first byte in the region.
    pub offset: u64,
    /// Its size in bytes.
    pub len: u64,
    /// The kind of memory of its payload.
    pub storage: Storage,
    /// Number of the device of its payload, 0 for host memory.
    pub device_id: u8,
}

impl SharedPlace {
    /// The place as words.
    pub fn encode(&self) -> [u64; PLACE_WORDS] {
        let storage = match self.storage {
            Storage::Cpu => 0,
            Storage::Cuda => 1,
        };
        let memory = u32::from_le_bytes([storage, self.device_id, 0, 0]);
        let first = u64::from(self.region) | u64::from(memory) << 32;
        [first, self.offset, self.len]
    }

    /// Decodes words that another process wrote. `None`: the kind of memory is unknown.
    pub fn decode([first, offset, len]: [u64; PLACE_WORDS]) -> Option<Self> {
        let [storage, device_id, _, _] = ((first >> 32) as u32).to_le_bytes();
        Some(Self {
            region: first as u32,
            offset,
            len,
            storage: match storage {
                0 => Storage::Cpu,
                1 => Storage::Cuda,
                _ => return None,
            },
            device_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_refuses_invalid_values() {
        let place = SharedPlace {
            region: u32::MAX,
            offset: 4096,
            len: u64::MAX,
            storage: Storage::Cuda,
            device_id: 255,
        };
        assert_eq!(SharedPlace::decode(place.encode()), Some(place));
        assert_eq!(SharedPlace::decode([0; 3]), Some(SharedPlace::default()));
        assert_eq!(SharedPlace::decode([2 << 32, 0, 0]), None);
    }
}
