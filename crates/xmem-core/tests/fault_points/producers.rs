// SPDX-License-Identifier: MPL-2.0

//! Producers are killed, stopped, and get errors from system calls, one after another, with consumers that stay.

use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use xmem_core::CreateError;
use xmem_core::fault::{Point, Side};

use crate::stream::Stream;
use crate::support::child::Child;
use crate::support::victim::*;
use crate::support::*;
use crate::table::{Kind, REFUSALS, arrivals, is_passed, points};
use crate::{for_each_kind, start, victim, watchers, went_on};

for_each_kind! {
    producers_die: live_producers_die lossless_producers_die posix_shm_producers_die,
    producers_stop: live_producers_stop lossless_producers_stop posix_shm_producers_stop,
    producers_are_refused: live_producers_are_refused lossless_producers_are_refused
        posix_shm_producers_are_refused,
}

/// Two consumers without faults, one that joins and leaves, and one producer after another.
struct Audience {
    kind: Kind,
    watchers: [Child; 2],
    churn: Child,
}

impl Audience {
    fn start(kind: Kind, place: &Place) -> Self {
        let mut churn = start("churn", kind, place);
        churn.send("go");
        let mut audience = Self {
            kind,
            watchers: watchers(kind, place),
            churn,
        };
        audience.take_over(place);
        audience
    }

    /// Asserts that a new producer takes the pool over, all consumers join it, and it leaves no resources.
    #[track_caller]
    fn take_over(&mut self, place: &Place) {
        let mut stream = Stream::start(&place.pool(), self.kind, HANG).unwrap();
        let first = stream.seed + 1;
        std::thread::scope(|scope| {
            let (done, over) = channel::<()>();
            scope.spawn(move || {
                while over.try_recv() == Err(TryRecvError::Empty) {
                    stream.step();
                }
            });
            for watcher in &mut self.watchers {
                ask(watcher, &first.to_string(), "seen");
            }
            drop(done);
        });
        place.assert_clean();
    }

    fn end(mut self) {
        for watcher in &mut self.watchers {
            ask(watcher, "end", "left");
        }
        ask(&mut self.churn, "end", "ended");
        assert!(self.churn.ends());
    }
}

/// Creates the files of a killed producer: a socket, a lock, segments.
fn leave_a_mess(kind: Kind, place: &Place) -> Litter {
    let mut victim = victim("reproduce", kind, place, Point::HeadMoved, 40..41, "kill");
    assert_eq!(victim.dies_of(), SIGKILL);
    Litter::new(place)
}

/// Ensures that there is a segment without an owner, also if another test removes those of all pools.
struct Litter {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Litter {
    fn new(place: &Place) -> Self {
        let segment = format!("/dev/shm/{}{:016x}", place.segment_prefix(), 0);
        let (done, over) = channel::<()>();
        let thread = std::thread::spawn(move || {
            while over.try_recv() == Err(TryRecvError::Empty) {
                let _ = std::fs::File::create_new(&segment);
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = std::fs::remove_file(&segment);
        });
        Self {
            done: Some(done),
            thread: Some(thread),
        }
    }
}

impl Drop for Litter {
    fn drop(&mut self) {
        self.done = None;
        self.thread.take().map(JoinHandle::join);
    }
}

fn producers_die(kind: Kind) {
    let place = Place::new();
    let mut audience = Audience::start(kind, &place);
    for point in points(Side::Producer, kind) {
        for &arrival in arrivals(point) {
            let rare = matches!(point, Point::SegmentSwept | Point::StaleSocketRemoved);
            if rare && arrival > 1 {
                continue;
            }
            let litter = rare.then(|| leave_a_mess(kind, &place));
            let mut victim = victim(
                "reproduce",
                kind,
                &place,
                point,
                arrival..arrival + 1,
                "kill",
            );
            assert_eq!(
                victim.dies_of(),
                SIGKILL,
                "no producer came to {point:?} {arrival}"
            );
            drop(litter);
            println!("a producer died at {point:?} {arrival}");
            audience.take_over(&place);
        }
    }
    audience.end();
}

fn producers_stop(kind: Kind) {
    let place = Place::new();
    let mut audience = Audience::start(kind, &place);
    for point in points(Side::Producer, kind) {
        let rare = matches!(point, Point::SegmentSwept | Point::StaleSocketRemoved);
        let at = if rare { 1 } else { 2 };
        let litter = rare.then(|| leave_a_mess(kind, &place));
        let victim = victim("reproduce", kind, &place, point, at..at + 1, "stop");
        assert!(victim.stops(), "no producer came to {point:?}");
        drop(litter);
        println!("a producer stopped at {point:?}");
        // Another producer gets the pool, or an error that it is in use, without waiting.
        match Stream::start(&place.pool(), kind, HANG) {
            Ok(mut stream) => stream.step(),
            Err(CreateError::InUse { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        victim.go_on();
        went_on(victim);
        place.assert_clean();
    }
    audience.take_over(&place);
    audience.end();
}

fn producers_are_refused(kind: Kind) {
    use rustix::io::Errno;
    let place = Place::new();
    let mut audience = Audience::start(kind, &place);
    for (point, errno) in [
        (Point::MemfdCreate, Errno::MFILE),
        (Point::Fallocate, Errno::NOSPC),
        (Point::ShmCreate, Errno::NOSPC),
        (Point::Mmap, Errno::NOMEM),
        (Point::Send, Errno::TOOMANYREFS),
    ] {
        if !is_passed(point, kind) {
            continue;
        }
        for arrival in 1..=REFUSALS {
            let errno = errno.raw_os_error().to_string();
            let victim = victim(
                "reproduce",
                kind,
                &place,
                point,
                arrival..arrival + 2,
                &errno,
            );
            println!("a producer is refused {point:?} {arrival}");
            went_on(victim);
            place.assert_clean();
        }
    }
    audience.take_over(&place);
    audience.end();
}
