// SPDX-License-Identifier: MPL-2.0

//! The receiver's side of the window. It also assembles items.

use std::time::Instant;

use super::{SILENCE, span};
use crate::wire::{Chunk, Place};

/// The destination of the bytes of an item.
pub trait Target {
    /// Writes bytes of the item, in order. `offset` is the number of bytes before them.
    fn write(&mut self, offset: u64, bytes: &[u8]);
}

/// An incomplete item.
#[derive(Debug)]
struct Partial<T> {
    item: u64,
    size: u64,
    filled: u64,
    target: T,
    /// The arrival of its last message.
    touched: Instant,
}

/// The state of the received stream. Incomplete items are discarded, and count as lost.
#[derive(Debug)]
pub struct Receiver<T> {
    position: u64,
    items: u64,
    lost: u64,
    partial: Option<Partial<T>>,
}

impl<T> Default for Receiver<T> {
    fn default() -> Self {
        Self {
            position: 0,
            items: 0,
            lost: 0,
            partial: None,
        }
    }
}

impl<T: Target> Receiver<T> {
    /// All messages before this position have arrived or are lost.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// All items up to this one have arrived or are lost.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The number of losses: gaps in the positions, and items that were incomplete or not accepted.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Handles the arrival of a message of `len` bytes. Returns `false` for a duplicate or late message, which has no effect.
    fn arrive(&mut self, place: Place, len: usize) -> bool {
        let Some(end) = span(place.position, len).map(|span| span.end) else {
            return false;
        };
        if place.position < self.position {
            return false;
        }
        if span(self.position, len).is_none_or(|span| span.start != place.position) {
            // Messages are missing. They may include the rest of this item, and whole items.
            self.partial = None;
            self.lost += 1;
        }
        self.position = end;
        true
    }

    /// Discards the incomplete item, if there is one.
    fn give_up(&mut self) {
        if self.partial.take().is_some() {
            self.lost += 1;
        }
    }

    fn done(&mut self, item: u64) {
        self.items = self.items.max(item);
    }

    /// Begins an item of `size` bytes, with a message of `len` bytes. `target` returns the destination of its bytes, or `None` if
    /// the item is not accepted. Returns the item if it has no bytes, since it is then complete.
    pub fn begin(
        &mut self,
        place: Place,
        len: usize,
        size: u64,
        now: Instant,
        target: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        if !self.arrive(place, len) {
            return None;
        }
        self.give_up();
        self.done(place.item.saturating_sub(1));
        let target = target();
        if size == 0 {
            self.done(place.item);
        }
        let Some(target) = target else {
            self.lost += 1;
            return None;
        };
        if size == 0 {
            return Some(target);
        }
        self.partial = Some(Partial {
            item: place.item,
            size,
            filled: 0,
            target,
            touched: now,
        });
        None
    }

    /// Adds bytes to an item, from a message of `len` bytes. Returns the item if it is complete.
    pub fn chunk(&mut self, chunk: &Chunk<'_>, len: usize, now: Instant) -> Option<T> {
        let (item, count) = (chunk.place.item, chunk.bytes.len() as u64);
        if !self.arrive(chunk.place, len) {
            return None;
        }
        self.done(item.saturating_sub(1));
        if chunk.last {
            self.done(item);
        }
        let partial = self.partial.as_mut()?;
        let end = partial.filled.checked_add(count);
        let fits = partial.item == item && partial.filled == chunk.offset;
        let end = end.filter(|end| fits && *end <= partial.size);
        let Some(end) = end else {
            self.give_up();
            return None;
        };
        partial.target.write(partial.filled, chunk.bytes);
        partial.filled = end;
        partial.touched = now;
        if end == partial.size {
            self.done(item);
            return self.partial.take().map(|partial| partial.target);
        }
        if chunk.last {
            self.give_up();
        }
        None
    }

    /// Handles a probe, a message of `len` bytes. Its item is the last one that the sender finished or gave up.
    pub fn probe(&mut self, place: Place, len: usize) {
        if !self.arrive(place, len) {
            return;
        }
        let is_over = |partial: &Partial<T>| partial.item <= place.item;
        if self.partial.as_ref().is_some_and(is_over) {
            self.give_up();
        }
        self.done(place.item);
    }

    /// Discards an item to which nothing was added for [`SILENCE`].
    pub fn look(&mut self, now: Instant) {
        let is_old =
            |partial: &Partial<T>| now.saturating_duration_since(partial.touched) >= SILENCE;
        if self.partial.as_ref().is_some_and(is_old) {
            self.give_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::Ids;

    impl Target for Vec<u8> {
        fn write(&mut self, offset: u64, bytes: &[u8]) {
            assert_eq!(offset, self.len() as u64);
            self.extend(bytes);
        }
    }

    enum Message {
        Begin(Place, u64),
        Chunk(Place, u64, bool, Vec<u8>),
        Probe(Place),
    }

    const LEN: usize = 100;

    /// The messages of items with these sizes, in chunks of ten bytes, and a probe at the end.
    fn messages(sizes: &[usize]) -> Vec<Message> {
        let mut all = Vec::new();
        let mut position = 0;
        let mut next = |item| {
            let span = span(position, LEN).unwrap();
            position = span.end;
            Place {
                ids: Ids::default(),
                position: span.start,
                item,
            }
        };
        for (item, size) in (1..).zip(sizes) {
            all.push(Message::Begin(next(item), *size as u64));
            let bytes: Vec<u8> = (0..*size).map(|at| (item as usize + at) as u8).collect();
            for (at, part) in bytes.chunks(10).enumerate() {
                let is_last = at * 10 + part.len() == *size;
                let chunk = Message::Chunk(next(item), at as u64 * 10, is_last, part.to_vec());
                all.push(chunk);
            }
        }
        all.push(Message::Probe(next(sizes.len() as u64)));
        all
    }

    fn feed(receiver: &mut Receiver<Vec<u8>>, message: &Message) -> Option<Vec<u8>> {
        let now = Instant::now();
        match message {
            Message::Begin(place, size) => {
                receiver.begin(*place, LEN, *size, now, || Some(Vec::new()))
            }
            Message::Chunk(place, offset, last, bytes) => {
                let chunk = Chunk {
                    place: *place,
                    offset: *offset,
                    last: *last,
                    bytes,
                };
                receiver.chunk(&chunk, LEN, now)
            }
            Message::Probe(place) => {
                receiver.probe(*place, LEN);
                None
            }
        }
    }

    fn is_whole(bytes: &[u8]) -> bool {
        let first = bytes.first().copied().unwrap_or_default();
        bytes
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == first.wrapping_add(at as u8))
    }

    proptest! {
        #[test]
        fn whatever_is_lost_or_doubled_items_are_whole_and_the_probe_frees_all(
            sizes in prop::collection::vec(0..60usize, 1..8),
            fates in prop::collection::vec(0..10u8, 80),
        ) {
            let mut receiver = Receiver::default();
            let messages = messages(&sizes);
            let (last, others) = messages.split_last().unwrap();
            let mut whole = Vec::new();
            for (message, fate) in others.iter().zip(&fates) {
                let times = match fate { 0 => 0, 1 => 2, _ => 1 };
                for _ in 0..times {
                    whole.extend(feed(&mut receiver, message));
                }
            }
            let is_complete = others.len() <= fates.len() && fates[..others.len()].iter().all(|fate| *fate != 0);
            prop_assert!(feed(&mut receiver, last).is_none());
            for bytes in &whole {
                prop_assert!(is_whole(bytes) && sizes.contains(&bytes.len()));
            }
            prop_assert_eq!(receiver.items(), sizes.len() as u64);
            let Message::Probe(end) = last else { panic!("the last message is a probe") };
            prop_assert_eq!(Some(receiver.position()), span(end.position, LEN).map(|span| span.end));
            prop_assert!(receiver.partial.is_none());
            if is_complete {
                prop_assert_eq!((whole.len(), receiver.lost()), (sizes.len(), 0));
            } else {
                prop_assert!(receiver.lost() > 0);
            }
        }

        #[test]
        fn no_sequence_of_messages_makes_it_panic_or_write_too_much(
            all in prop::collection::vec((0..3u8, 0..5u64, 0..2000u64, 0..50u64, any::<bool>()), 0..60),
        ) {
            let mut receiver = Receiver::default();
            for (kind, item, position, number, last) in all {
                let place = Place { ids: Ids::default(), position: position * 260, item };
                let message = match kind {
                    0 => Message::Begin(place, number),
                    1 => Message::Chunk(place, number, last, vec![0; 10]),
                    _ => Message::Probe(place),
                };
                if let Some(bytes) = feed(&mut receiver, &message) {
                    prop_assert!(bytes.len() < 50);
                }
            }
        }
    }

    #[test]
    fn an_item_that_is_not_taken_is_passed_over() {
        let mut receiver = Receiver::default();
        let messages = messages(&[30, 20]);
        let Message::Begin(place, size) = messages[0] else {
            panic!("the first message begins an item");
        };
        assert!(
            receiver
                .begin(place, LEN, size, Instant::now(), || None)
                .is_none()
        );
        let whole: Vec<_> = messages[1..]
            .iter()
            .filter_map(|it| feed(&mut receiver, it))
            .collect();
        assert_eq!((whole.len(), receiver.items(), receiver.lost()), (1, 2, 1));
    }

    #[test]
    fn an_item_without_progress_is_given_up() {
        let mut receiver = Receiver::default();
        let messages = messages(&[30]);
        feed(&mut receiver, &messages[0]);
        let now = Instant::now();
        receiver.look(now + SILENCE - Duration::from_secs(1));
        assert_eq!(receiver.lost(), 0);
        receiver.look(now + SILENCE);
        assert_eq!(receiver.lost(), 1);
        assert!(
            messages[1..]
                .iter()
                .all(|it| feed(&mut receiver, it).is_none())
        );
        assert_eq!(receiver.items(), 1);
    }

    #[test]
    fn a_position_at_the_end_of_numbers_is_ignored() {
        let mut receiver: Receiver<Vec<u8>> = Receiver::default();
        let place = Place {
            position: u64::MAX,
            ..Place::default()
        };
        receiver.probe(place, LEN);
        assert_eq!((receiver.position(), receiver.lost()), (0, 0));
    }
}
