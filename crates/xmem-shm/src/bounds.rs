// SPDX-License-Identifier: MPL-2.0

//! Checks of ranges. The numbers may come from another process.

/// Whether `size` bytes from `at` on are inside of `len` bytes.
pub fn is_range_inside(at: u64, size: u64, len: u64) -> bool {
    at.checked_add(size).is_some_and(|end| end <= len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_size_overflows() {
        assert!(is_range_inside(0, 10, 10));
        assert!(is_range_inside(10, 0, 10));
        assert!(!is_range_inside(1, 10, 10));
        assert!(!is_range_inside(11, 0, 10));
        assert!(!is_range_inside(u64::MAX, 1, u64::MAX));
        assert!(!is_range_inside(1, u64::MAX, 10));
    }
}
