// SPDX-License-Identifier: MPL-2.0

//! The places of a frame's parts, if the frame is not in its slot. They are encoded in an attachment of the frame.

use crate::abi::codec::Field;
use crate::abi::limits::MAX_PARTS;

/// The name of the attachment.
pub const NAME: &str = "xmem:parts";

/// The place of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartPlace {
    /// The number of the region.
    pub region: u32,
    /// First byte in the region.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// A number that the publisher chose. xmem does not read it.
    pub tag: u32,
    /// The slot of the part, if the part was forwarded from another pool.
    pub origin: Option<Origin>,
}

/// A slot of another pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The pool, by the random number in its control memory.
    pub pool_id: u64,
    /// The number of the slot.
    pub slot: u32,
    /// The generation of the slot when the frame was held there. Never 0.
    pub generation: u32,
}

/// Size of an encoded place in bytes.
const PLACE_LEN: usize = 40;

/// The places as bytes, 40 for each.
pub fn encode(places: &[PartPlace]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(places.len() * PLACE_LEN);
    for place in places {
        place.region.put(&mut bytes);
        place.tag.put(&mut bytes);
        place.offset.put(&mut bytes);
        place.size.put(&mut bytes);
        let (pool_id, slot, generation) = place
            .origin
            .map_or((0, 0, 0), |o| (o.pool_id, o.slot, o.generation));
        pool_id.put(&mut bytes);
        slot.put(&mut bytes);
        generation.put(&mut bytes);
    }
    bytes
}

/// Decodes bytes that another process wrote. `None`: they are invalid.
pub fn decode(bytes: &[u8]) -> Option<Vec<PartPlace>> {
    let (places, []) = bytes.as_chunks::<PLACE_LEN>() else {
        return None;
    };
    if places.is_empty() || places.len() > MAX_PARTS {
        return None;
    }
    let place = |mut bytes: &[u8]| {
        let from = &mut bytes;
        let (region, tag) = (Field::take(from)?, Field::take(from)?);
        let (offset, size) = (Field::take(from)?, Field::take(from)?);
        let origin = Origin {
            pool_id: Field::take(from)?,
            slot: Field::take(from)?,
            generation: Field::take(from)?,
        };
        Some(PartPlace {
            region,
            tag,
            offset,
            size,
            origin: (origin.generation != 0).then_some(origin),
        })
    };
    places.iter().map(|bytes| place(bytes)).collect()
}

/// The total size of a frame in parts. `None`: it overflows.
pub fn total(places: &[PartPlace]) -> Option<u64> {
    places
        .iter()
        .try_fold(0u64, |total, place| total.checked_add(place.size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_round_trip_and_invalid_values_are_refused() {
        let place = PartPlace {
            region: 3,
            offset: 1 << 40,
            size: 77,
            tag: 9,
            origin: Some(Origin {
                pool_id: 5,
                slot: 1,
                generation: 2,
            }),
        };
        let places = vec![place; MAX_PARTS];
        let bytes = encode(&places);
        assert_eq!(decode(&bytes), Some(places));
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&encode(&[place; MAX_PARTS + 1])), None);
        let huge = PartPlace {
            size: u64::MAX,
            ..place
        };
        assert_eq!(total(&[huge, place]), None);
        assert_eq!(total(&[place, place]), Some(154));
    }
}
