// SPDX-License-Identifier: MPL-2.0

//! The device header: the part of the host half of a CUDA region that describes the device memory, its twin. The producer
//! writes it before it announces the region. Each consumer checks it.

use std::fmt;

use crate::abi::codec::Field;
use crate::abi::limits::MAX_SLOTS;

/// The identity of a device, the same in all processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The form of nvidia-smi and CUDA_VISIBLE_DEVICES.
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How the device memory of a region is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum TwinKind {
    /// Its descriptor is sent with the region's.
    Vmm = 1,
    /// Its handle is in the header.
    Legacy = 2,
    /// There is no memory: frames are in other regions, and this region has only their events.
    None = 3,
    /// Like `Legacy`, but the memory was allocated outside of xmem, and has no slots.
    Foreign = 4,
}

impl TwinKind {
    fn from_code(code: u32) -> Option<Self> {
        [Self::Vmm, Self::Legacy, Self::None, Self::Foreign]
            .into_iter()
            .find(|kind| *kind as u32 == code)
    }
}

/// An interprocess handle of the driver, for memory or for an event.
pub type IpcHandle = [u8; 64];
/// Bytes that are in the device memory, besides the header.
pub type Canary = [u8; 32];

const MAGIC: u64 = u64::from_le_bytes(*b"xmemdev\0");
/// Increased with each change of the header.
const FORMAT: u32 = 1;
/// The offset of the handles of the slots' events.
const EVENTS_AT: usize = 320;
/// Bytes at the beginning of each slot's host room: the word that states whether the frame is ready.
pub const SLOT_HEAD: usize = 64;
/// More than the memory of any device.
const MAX_DEVICE_LEN: u64 = 1 << 46;

/// The description of a region's device memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHeader {
    /// How the device memory is shared.
    pub kind: TwinKind,
    /// The device.
    pub uuid: Uuid,
    /// A random number. A process that finds its own nonce has made the region itself.
    pub nonce: [u8; 16],
    /// Size of the device memory in bytes.
    pub device_len: u64,
    /// The offset of the memory in the allocation that `handle` refers to.
    pub device_offset: u64,
    /// The number of slots.
    pub slots: u32,
    /// Bytes from one slot to the next on the device.
    pub device_stride: u64,
    /// Bytes from one slot to the next in the host half.
    pub host_stride: u64,
    /// First byte of the first slot in the host half.
    pub slots_at: u64,
    /// First byte of the canary on the device.
    pub canary_at: u64,
    /// The canary itself.
    pub canary: Canary,
    /// The handle of the memory; zeros for kinds other than `Legacy` and `Foreign`.
    pub handle: IpcHandle,
    /// The handle of the canary's memory, if that is another allocation (`Foreign`).
    pub canary_handle: IpcHandle,
    /// The events of the slots; zeros for a slot without an event.
    pub events: Vec<IpcHandle>,
}

/// The size of the header for this many slots, in bytes.
pub fn header_len(slots: u32) -> usize {
    (EVENTS_AT + slots as usize * size_of::<IpcHandle>()).next_multiple_of(4096)
}

impl DeviceHeader {
    /// The header as bytes, padded to [`header_len`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(header_len(self.slots));
        let to = &mut bytes;
        MAGIC.put(to);
        FORMAT.put(to);
        (self.kind as u32).put(to);
        self.uuid.0.put(to);
        self.nonce.put(to);
        self.device_len.put(to);
        self.device_offset.put(to);
        u64::from(self.slots).put(to);
        self.device_stride.put(to);
        self.host_stride.put(to);
        self.slots_at.put(to);
        self.canary_at.put(to);
        self.canary.put(to);
        self.handle.put(to);
        self.canary_handle.put(to);
        debug_assert!(bytes.len() <= EVENTS_AT);
        bytes.resize(EVENTS_AT, 0);
        self.events.iter().for_each(|event| event.put(&mut bytes));
        bytes
    }

    /// The size of the header that begins with these bytes. `None`: it is not a header.
    pub fn len_of(start: &[u8]) -> Option<usize> {
        let at = 8 + 4 + 4 + 16 + 16 + 8 + 8;
        let slots = u64::take(&mut start.get(at..)?)?;
        let slots = u32::try_from(slots).ok()?;
        (slots <= MAX_SLOTS).then(|| header_len(slots))
    }

    /// Decodes the header that another process wrote into the beginning of a region of `host_len` bytes.
    pub fn decode(bytes: &[u8], host_len: usize) -> Result<Self, &'static str> {
        let from = &mut &*bytes;
        if next::<u64>(from)? != MAGIC {
            return Err("it has no device header");
        }
        if next::<u32>(from)? != FORMAT {
            return Err("its device header has another format");
        }
        let header = Self {
            kind: TwinKind::from_code(next(from)?)
                .ok_or("its kind of device memory is not known")?,
            uuid: Uuid(next(from)?),
            nonce: next(from)?,
            device_len: next(from)?,
            device_offset: next(from)?,
            slots: u32::try_from(next::<u64>(from)?).unwrap_or(u32::MAX),
            device_stride: next(from)?,
            host_stride: next(from)?,
            slots_at: next(from)?,
            canary_at: next(from)?,
            canary: next(from)?,
            handle: next(from)?,
            canary_handle: next(from)?,
            events: Vec::new(),
        };
        header.check(host_len)?;
        let mut events = bytes.get(EVENTS_AT..).unwrap_or_default();
        let events = (0..header.slots).map(|_| next(&mut events));
        Ok(Self {
            events: events.collect::<Result<_, _>>()?,
            ..header
        })
    }

    fn check(&self, host_len: usize) -> Result<(), &'static str> {
        if self.slots > MAX_SLOTS {
            return Err("it has too many slots");
        }
        let slots = u64::from(self.slots);
        // No product or sum overflows, because each factor is limited here.
        if self.device_len > MAX_DEVICE_LEN
            || self.device_offset > MAX_DEVICE_LEN
            || self.device_stride > MAX_DEVICE_LEN >> 16
            || self.canary_at > MAX_DEVICE_LEN
            || self.host_stride > MAX_DEVICE_LEN >> 16
            || self.slots_at > MAX_DEVICE_LEN
        {
            return Err("its sizes are impossible");
        }
        let canary_end = self.canary_at + size_of::<Canary>() as u64;
        let has_slots = match self.kind {
            _ if self.device_offset != 0 && self.kind != TwinKind::Foreign => {
                return Err("its device memory does not begin where it should");
            }
            TwinKind::Vmm | TwinKind::Legacy => {
                if self.canary_at < slots * self.device_stride
                    || canary_end > self.device_len
                    || slots == 0
                {
                    return Err("its slots do not fit into its device memory");
                }
                true
            }
            TwinKind::None => {
                if self.device_len != 0 || self.device_stride != 0 {
                    return Err("it has device memory of no kind");
                }
                true
            }
            TwinKind::Foreign => {
                if slots != 0 || self.device_len == 0 {
                    return Err("imported device memory has slots, or no bytes");
                }
                false
            }
        };
        let inside = self.slots_at >= header_len(self.slots) as u64
            && self.slots_at.is_multiple_of(8)
            && self.host_stride.is_multiple_of(8)
            && self.host_stride >= SLOT_HEAD as u64
            && self.slots_at + slots * self.host_stride <= host_len as u64;
        if has_slots && !inside {
            return Err("its slots lie outside of it");
        }
        Ok(())
    }

    /// The number that identifies the memory.
    pub fn number(&self) -> u128 {
        u128::from_ne_bytes(self.nonce)
    }

    /// The number of the slot with these bytes of the host half.
    pub fn slot_at(&self, offset: usize, len: usize) -> Option<u32> {
        let offset = (offset as u64).checked_sub(self.slots_at)?;
        // Without slots their size was not checked, and may be 0.
        if self.slots == 0 {
            return None;
        }
        if len as u64 != self.host_stride || !offset.is_multiple_of(self.host_stride) {
            return None;
        }
        u32::try_from(offset / self.host_stride)
            .ok()
            .filter(|slot| *slot < self.slots)
    }
}

fn next<T: Field>(from: &mut &[u8]) -> Result<T, &'static str> {
    T::take(from).ok_or("its device header is too short")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::device_header as sample;

    const LEN: usize = 1 << 16;

    #[test]
    fn round_trips() {
        let bytes = sample().encode();
        assert_eq!(DeviceHeader::decode(&bytes, LEN), Ok(sample()));
        assert_eq!(DeviceHeader::len_of(&bytes), Some(header_len(3)));
        for len in 0..bytes.len() {
            assert!(DeviceHeader::decode(&bytes[..len], LEN).is_err());
        }
        assert_eq!(
            sample().slot_at(sample().slots_at as usize + 512, 256),
            Some(2)
        );
        assert_eq!(
            sample().slot_at(sample().slots_at as usize + 768, 256),
            None
        );
        assert_eq!(sample().slot_at(sample().slots_at as usize + 8, 256), None);
        assert_eq!(sample().slot_at(0, 256), None);
        let empty = DeviceHeader {
            slots: 0,
            host_stride: 0,
            ..sample()
        };
        assert_eq!(empty.slot_at(sample().slots_at as usize, 0), None);
        assert_eq!(
            format!("{}", Uuid([0xab; 16])),
            "GPU-abababab-abab-abab-abab-abababababab"
        );
    }

    #[test]
    fn invalid_values_are_refused() {
        let wrong: [fn(&mut DeviceHeader); 11] = [
            |h| h.device_offset = 1,
            |h| h.slots = 4,
            |h| h.device_len = 3 * 4096 + 31,
            |h| h.device_len = u64::MAX,
            |h| h.device_stride = u64::MAX / 2,
            |h| h.host_stride = 32,
            |h| h.host_stride = 1 << 17,
            |h| h.slots_at = 64,
            |h| h.canary_at = 4096,
            |h| h.kind = TwinKind::None,
            |h| h.kind = TwinKind::Foreign,
        ];
        for change in wrong {
            let mut header = sample();
            change(&mut header);
            let bytes = header.encode();
            assert!(DeviceHeader::decode(&bytes, LEN).is_err(), "{header:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..600), len in any::<usize>(), honest in any::<bool>()
        ) {
            if honest {
                let start = sample().encode();
                let n = bytes.len().min(16);
                bytes[..n].copy_from_slice(&start[..n]);
            }
            if let Ok(header) = DeviceHeader::decode(&bytes, len) {
                prop_assert!(header.slots <= MAX_SLOTS);
            }
            let _ = DeviceHeader::len_of(&bytes);
        }
    }
}
