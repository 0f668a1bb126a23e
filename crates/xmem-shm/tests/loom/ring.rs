// SPDX-License-Identifier: MPL-2.0

//! The ring of entries, and its head.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use xmem_shm::protocol::ring;

use crate::{check, spawn};

/// An entry with two words of payload.
pub(crate) fn entry() -> [AtomicU64; 3] {
    [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]
}

#[test]
fn ring_entries_are_never_mixed() {
    check(None, || {
        let entry = Arc::new(entry());
        let reader = spawn(entry.clone(), |entry| {
            let mut words = [0; 2];
            for sequence in [3, 7] {
                if ring::read(&entry[..], sequence, &mut words) {
                    assert_eq!(words, [sequence * 10, sequence * 10 + 1]);
                }
            }
        });
        for sequence in [3, 7] {
            let payload = [sequence * 10, sequence * 10 + 1];
            ring::write(&entry[..], sequence, &payload, None);
        }
        reader.join().unwrap();
        let mut words = [0; 2];
        assert!(!ring::read(&entry[..], 3, &mut words));
        assert!(ring::read(&entry[..], 7, &mut words));
    });
}

#[test]
fn the_newest_entry_of_a_slot_is_never_mixed() {
    check(None, || {
        let entry = Arc::new(entry());
        let reader = spawn(entry.clone(), |entry| {
            let mut words = [0; 2];
            if let Some(sequence) = ring::read_any(&entry[..], &mut words) {
                assert_eq!(words, [sequence * 10 + 10, sequence * 10 + 11]);
            }
        });
        ring::write(&entry[..], 0, &[10, 11], None);
        ring::write(&entry[..], 1, &[20, 21], None);
        reader.join().unwrap();
    });
}

/// The extension belongs to the entry, although it is read later.
#[test]
fn an_extension_is_of_its_entry() {
    check(None, || {
        let entry = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let more = Arc::new([AtomicU64::new(0)]);
        let write = |sequence: u64| {
            let extension = (&more[..], &[sequence * 10 + 1][..]);
            ring::write(&entry[..], sequence, &[sequence * 10], Some(extension));
        };
        write(0);
        let reader = spawn((entry.clone(), more.clone()), |(entry, more)| {
            let (mut word, mut extension) = ([0], [0]);
            let Some(sequence) = ring::read_any(&entry[..], &mut word) else {
                return;
            };
            if ring::read_extension(&entry[..], &more[..], sequence, &mut extension) {
                assert_eq!(word[0] + 1, extension[0]);
            }
        });
        write(1);
        write(2);
        reader.join().unwrap();
    });
}

/// The entry is valid when the head includes it.
#[test]
fn the_head_comes_after_its_entry() {
    check(None, || {
        let entry = Arc::new(entry());
        let head = Arc::new(AtomicU64::new(0));
        let reader = spawn((entry.clone(), head.clone()), |(entry, head)| {
            if head.load(Ordering::Relaxed) == 1 {
                fence(Ordering::Acquire);
                let mut words = [0; 2];
                assert!(ring::read(&entry[..], 0, &mut words));
                assert_eq!(words, [10, 11]);
            }
        });
        ring::write(&entry[..], 0, &[10, 11], None);
        head.store(1, Ordering::Release);
        reader.join().unwrap();
    });
}

#[test]
#[should_panic]
fn wrong_a_reader_that_does_not_look_again() {
    check(None, || {
        let entry = Arc::new(entry());
        ring::write(&entry[..], 0, &[10, 11], None);
        let reader = spawn(entry.clone(), |entry| {
            if entry[0].load(Ordering::Acquire) == 2 {
                let words = [1, 2].map(|at| entry[at].load(Ordering::Relaxed));
                assert_eq!(words, [10, 11]);
            }
        });
        ring::write(&entry[..], 1, &[20, 21], None);
        reader.join().unwrap();
    });
}
