// SPDX-License-Identifier: MPL-2.0

//! The content of a frame: its producer, its number, and words that are computed from both.

const HEADER: usize = 16;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn seed(epoch: u64, number: u64) -> u64 {
    (epoch ^ number.rotate_left(17)).wrapping_mul(STEP)
}

/// Writes a frame to the whole slice.
pub(crate) fn write(bytes: &mut [u8], epoch: u64, number: u64) {
    let Some((header, words)) = bytes.split_at_mut_checked(HEADER) else {
        return;
    };
    header[..8].copy_from_slice(&epoch.to_le_bytes());
    header[8..].copy_from_slice(&number.to_le_bytes());
    let mut word = seed(epoch, number);
    for chunk in words.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
}

/// The epoch and the number of a frame. `None` if the content is not one complete frame.
pub(crate) fn read(bytes: &[u8]) -> Option<(u64, u64)> {
    let (header, words) = bytes.split_at_checked(HEADER)?;
    let epoch = u64::from_le_bytes(header[..8].try_into().ok()?);
    let number = u64::from_le_bytes(header[8..].try_into().ok()?);
    let mut word = seed(epoch, number);
    // Read all words even after a difference: the frame may change while it is read.
    let mut same = true;
    for chunk in words.chunks_exact(8) {
        same &= *chunk == word.to_le_bytes();
        word = word.wrapping_add(STEP);
    }
    same.then_some((epoch, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_is_detected() {
        let mut bytes = vec![0; 16 + 80];
        write(&mut bytes, 3, 4);
        assert_eq!(read(&bytes), Some((3, 4)));
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(read(&bytes), None, "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
