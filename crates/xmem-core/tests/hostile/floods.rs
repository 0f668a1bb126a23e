// SPDX-License-Identifier: MPL-2.0

//! Many clients, and clients with many messages.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{Shutdown, shutdown};
use xmem_core::discovery::query;
use xmem_core::{ConnectError, Consumer, PoolEvent, Producer};

use crate::support::child::{Child, read_line, reply};
use crate::support::raw::{self, MAX_RIGHTS, Memory, Raw};
use crate::support::*;
use crate::victim::attack;
use crate::{Bystander, OnDrop};

#[test]
fn a_silent_client_is_disconnected() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let silent: Vec<Raw> = (0..10).map(|_| Raw::connect(&place.pool())).collect();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(50);
    assert_eq!(stats_of(&place.pool()).consumers.len(), 1);
    for raw in silent {
        assert!(raw.recv().is_none());
    }
    bystander.frames(50);
}

/// One kind of hostile client, by number. Returns the connection if it is to be kept open for a while.
fn nuisance(pool: &str, n: u32, null: &OwnedFd) -> Option<Raw> {
    let raw = Raw::try_connect(pool).ok()?;
    let join = raw::join(raw::VERSION, 1);
    // A disconnected client cannot send any more.
    let send = |bytes: &[u8], fds: &[BorrowedFd<'_>]| raw.send(bytes, fds).unwrap_or_default();
    match n % 9 {
        0 => return None,
        1 => {}
        2 => send(&join[..n as usize % join.len()], &[]),
        3 => send(&join, &[]),
        4 => send(&raw::query(raw::VERSION), &[]),
        5 => send(&join, &[null.as_fd(); 16]),
        6 => send(&vec![n as u8; n as usize % 1000 + 1], &[null.as_fd()]),
        7 => shutdown(&raw.0, Shutdown::Write).unwrap_or_default(),
        _ => {
            send(&join, &[]);
            let _ = shutdown(&raw.0, Shutdown::Read);
            send(&raw::get_region(1), &[]);
            return None;
        }
    }
    Some(raw)
}

/// A client that joins. If all slots are temporarily reserved for others, it gets an error and tries again.
pub(crate) fn late_consumer(pool: &str) -> Consumer {
    let start = std::time::Instant::now();
    loop {
        match Consumer::builder(pool).max_held(1).connect_wait(Some(HANG)) {
            Ok(consumer) => return consumer,
            Err(ConnectError::Refused { reason, .. })
                if reason.contains("max-slots") && start.elapsed() < HANG => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn ten_thousand(pool: &str, meanwhile: impl Fn() + Sync) {
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let count = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut open = VecDeque::new();
                loop {
                    let n = count.fetch_add(1, Ordering::Relaxed);
                    if n >= 10_000 {
                        break;
                    }
                    open.extend(nuisance(pool, n, &null));
                    if open.len() > 60 {
                        open.pop_front();
                    }
                }
            });
        }
        meanwhile();
    });
}

#[test]
fn ten_thousand_connections_shut_out_no_consumer() {
    attack("victim-live", |pool| {
        ten_thousand(pool, || {
            // A correct client can join nevertheless.
            for _ in 0..10 {
                assert_whole(&receive(&mut late_consumer(pool)));
            }
        });
    });
}

#[test]
fn ten_thousand_connections_to_a_producer_without_descriptors_shut_out_no_consumer() {
    attack("victim-few-descriptors", |pool| ten_thousand(pool, || {}));
}

/// A client that sent its request is not disconnected because of later clients that are silent.
#[test]
fn a_client_that_sent_its_request_is_answered_before_new_ones() {
    let place = Place::new();
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let held_up = std::sync::Arc::new(AtomicBool::new(false));
    let producer = Producer::builder(place.pool())
        .on_event({
            let held_up = held_up.clone();
            move |event| {
                if matches!(event, PoolEvent::Connected(_)) && !held_up.swap(true, Ordering::SeqCst)
                {
                    let _ = wait.lock().unwrap().recv();
                }
            }
        })
        .build()
        .unwrap();
    let _first = Raw::join(&place.pool(), 1);
    eventually("the control thread is stopped", || {
        held_up.load(Ordering::SeqCst)
    });
    let honest = Raw::connect(&place.pool());
    honest.send(&raw::join(raw::VERSION, 1), &[]).unwrap();
    // The number of connections that fit into the queue of the socket.
    let silent: Vec<Raw> = (0..120).map(|_| Raw::connect(&place.pool())).collect();
    go_on.send(()).unwrap();
    let (answer, fds) = honest.recv().expect("an answer");
    assert_eq!((answer[0], fds.len()), (1, 3), "a welcome");
    drop(silent);
    drop(honest);
    Bystander::new(&producer).frames(10);
}

/// Endless messages of several clients do not block others.
#[test]
fn endless_messages_delay_no_other_client() {
    type Message = fn(u32) -> Vec<u8>;
    let messages: [Message; 3] = [
        |_| raw::BELL.to_vec(),
        |n| raw::get_region(n % 3),
        |n| raw::get_sticky(u64::from(n % 3)),
    ];
    attack("victim-live", |pool| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _done = OnDrop(|| done.store(true, Ordering::Relaxed));
            // All join first: a later one may have to make space for others.
            let joined = messages.map(|message| (message, Raw::join(pool, 1)));
            for (n, (message, (raw, _joined))) in joined.into_iter().enumerate() {
                let done = &done;
                scope.spawn(move || {
                    let mut number = 0;
                    while !done.load(Ordering::Relaxed) {
                        number += 1;
                        let _ = raw.send(&message(number), &[]);
                        // Some read occasionally, some never, some one byte of each message.
                        if n % 2 == 0 && number % 8 == 0 {
                            let _ = rustix::net::recv(
                                &raw.0,
                                &mut [0u8][..],
                                rustix::net::RecvFlags::DONTWAIT,
                            );
                        }
                    }
                });
            }
            scope.spawn(|| {
                // Messages of the maximum length, and longer ones, before joining.
                while !done.load(Ordering::Relaxed) {
                    let raw = Raw::connect(pool);
                    for len in [512, 513, 60_000] {
                        let _ = raw.send(&vec![1; len], &[]);
                    }
                }
            });
            for _ in 0..50 {
                assert_whole(&receive(&mut late_consumer(pool)));
                eventually("figures", || query(pool).is_ok());
            }
        });
    });
}

/// Descriptors in each kind of message that a client can send.
#[test]
fn unexpected_descriptors_are_closed() {
    let open = |path| OwnedFd::from(std::fs::File::open(path).unwrap());
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let zoo = [open("/dev/null"), open("/"), pipe, raw::memory(4096, false)];
    attack("victim-live", |pool| {
        for count in [1, 2, 4, 5, 16, MAX_RIGHTS] {
            for first in [
                raw::join(raw::VERSION, 1),
                raw::query(raw::VERSION),
                raw::BELL.to_vec(),
            ] {
                let fds: Vec<_> = zoo.iter().map(AsFd::as_fd).cycle().take(count).collect();
                let raw = Raw::connect(pool);
                raw.send(&first, &fds).unwrap();
                let _ = raw.recv();
                for message in [
                    raw::get_region(1),
                    raw::get_sticky(1),
                    raw::BELL.to_vec(),
                    raw::LEAVE.to_vec(),
                ] {
                    let _ = raw.send(&message, &fds);
                    // Descriptors in flight count against all processes of this user.
                    eventually("it was read", || raw.unread() == 0);
                }
                let _ = shutdown(&raw.0, Shutdown::Write);
                while raw.recv().is_some() {}
            }
        }
        // A socket in its own queue stays open after its sender closes it.
        for _ in 0..100 {
            let (raw, _joined) = Raw::join(pool, 1);
            let _ = raw.send(raw::BELL, &[raw.0.as_fd()]);
        }
    });
}

/// A TCP connection whose peer reads nothing. Closing it takes ten minutes, unless the peer ends it.
fn lingering() -> (TcpListener, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    set_socket_linger(&stream, Some(Duration::from_secs(600))).unwrap();
    (listener, stream.into())
}

/// The client leaves the last descriptor of each connection to the producer.
#[test]
fn descriptors_that_take_long_to_close_hold_up_nobody() {
    attack("victim-live", |pool| {
        let mut ends = Vec::new();
        let mut send = |raw: Raw, message: &[u8]| {
            let (end, slow) = lingering();
            let _ = raw.send(message, &[slow.as_fd()]);
            // If the producer was faster, this copy is the last.
            std::thread::spawn(move || drop(slow));
            ends.push(end);
        };
        for _ in 0..3 {
            for message in [&raw::join(raw::VERSION, 1)[..], raw::BELL, b""] {
                send(Raw::connect(pool), message);
                send(Raw::join(pool, 1).0, message);
            }
        }
        assert_whole(&receive(&mut late_consumer(pool)));
    });
}

/// Descriptors in the queue of a client that does not read count against all processes of the producer's user.
#[test]
fn a_client_that_does_not_read_leaves_descriptors_for_others() {
    if !users::can_be_others() {
        return;
    }
    attack("victim-in-flight", |pool| {
        let join = || {
            let (raw, joined) = Raw::join(pool, 1);
            (raw.patient(), joined)
        };
        let silent: Vec<_> = (0..8).map(|_| join()).collect();
        for (raw, _) in &silent {
            for _ in 0..40 {
                raw.send(&raw::get_region(1), &[]).unwrap();
            }
        }
        // It has read all answers.
        for (raw, _) in &silent {
            eventually("the questions were read", || raw.unread() == 0);
        }
        assert_whole(&receive(&mut late_consumer(pool)));
    });
}

/// Leaves as many descriptors unread as possible, most of them in connections that the producer has closed.
pub(crate) fn unread(pool: &str) {
    let unread: Vec<Raw> = (0..200)
        .filter_map(|n| {
            let raw = Raw::try_connect(pool).ok()?;
            let _ = match n % 3 {
                0 => raw.send(&raw::query(raw::VERSION), &[]),
                _ => raw.send(&raw::join(raw::VERSION, 1), &[]),
            };
            if n % 3 == 1 {
                let _ = shutdown(&raw.0, Shutdown::Write);
            }
            eventually("the question was read", || raw.unread() == 0);
            Some(raw)
        })
        .collect();
    reply("left");
    read_line();
    drop(unread);
    reads(pool);
}

/// Joins, and takes a frame.
pub(crate) fn reads(pool: &str) {
    assert_whole(&receive(&mut late_consumer(pool)));
    reply("served");
}

#[test]
fn users_that_leave_descriptors_unread_shut_out_no_other() {
    if !users::can_be_others() {
        return;
    }
    attack("victim-in-flight", |pool| {
        let tools = Place::new();
        let program = users::program_for_all(tools.path());
        let start = |user, role| users::User::new(user).start(&program, role, pool);
        let mut one = start(70_001, "unread");
        assert_eq!(one.reply(), "left");
        let mut another = start(70_002, "late-consumer");
        assert_eq!(another.reply(), "served");
        let mut more: Vec<Child> = (70_003..70_008).map(|user| start(user, "unread")).collect();
        for child in &mut more {
            assert_eq!(child.reply(), "left");
        }
        reads(pool);
        // Clients that were refused descriptors get some when they have no unread ones.
        for child in more.iter_mut().chain([&mut one]) {
            child.send("go on");
        }
        assert_eq!(one.reply(), "served");
    });
}

/// Leaves its answer unread, and its own end of the connection in the producer's.
pub(crate) fn refers_to_itself(pool: &str) {
    for n in 0..200 {
        let Ok(raw) = Raw::try_connect(pool) else {
            continue;
        };
        let _ = raw.send(&raw::join(raw::VERSION, 1), &[]);
        eventually("the question was read", || raw.unread() == 0);
        // Also behind messages without bytes, and as the connection that another one has.
        if n % 2 == 0 {
            let _ = raw.send(b"", &[]);
        }
        let other = Raw::connect(pool);
        let _ = other.send(raw::BELL, &[raw.0.as_fd()]);
        let _ = raw.send(raw::BELL, &[raw.0.as_fd(), other.0.as_fd()]);
    }
}

/// Processes of two users, which have ended, leave the producer no descriptor and no debt.
#[test]
fn connections_that_refer_to_themselves_end_with_their_process() {
    if !users::can_be_others() {
        return;
    }
    attack("victim-in-flight", |pool| {
        let tools = Place::new();
        let program = users::program_for_all(tools.path());
        let start = |user, role| users::User::new(user).start(&program, role, pool);
        for user in [70_011, 70_012] {
            start(user, "refers-to-itself").done();
        }
        for user in [70_011, 70_013] {
            let mut child = start(user, "late-consumer");
            assert_eq!(child.reply(), "served");
        }
    });
}

/// Random words in the lease pages of several consumers at the same time.
#[test]
fn pages_that_change_all_the_time_harm_no_other() {
    for (role, rounds, frames) in [("victim-live", 4, 200), ("victim-lossless", 1, 20)] {
        attack(role, |pool| {
            std::thread::scope(|scope| {
                for kind in 0..4 {
                    scope.spawn(move || {
                        for round in 0..rounds {
                            let mut random = Random(kind * 100 + round);
                            write_all_over(pool, kind, frames, &mut random);
                        }
                    });
                }
            });
        });
    }
}

/// Until it is disconnected, or this number of frames was published.
fn write_all_over(pool: &str, kind: u64, frames: u64, random: &mut Random) {
    let (_raw, joined) = Raw::join(pool, 2);
    let (control, page) = (
        Memory::map(&joined.control, false),
        Memory::map(&joined.page, true),
    );
    let head = || control.words()[raw::HEAD].load(Ordering::Relaxed);
    let until = head() + frames;
    let start = std::time::Instant::now();
    while head() < until && page.words()[raw::FLAGS].load(Ordering::Relaxed) == 0 {
        assert!(start.elapsed() < HANG, "frames come no more");
        match kind {
            // Random words at random positions.
            0 => {
                let at = random.below(page.words().len() as u64) as usize;
                page.set(at, random.next() >> random.below(64));
            }
            // Valid leases, set and released, up to the number of slots.
            1 => {
                let slot = random.below(joined.max_slots.into()) as usize;
                let word = control.words()[raw::SLOTS + slot].load(Ordering::Relaxed);
                let lease = if random.below(3) == 0 { 0 } else { word >> 32 };
                page.halves()[raw::LEASES + slot].store(lease as u32, Ordering::Relaxed);
            }
            // A cursor that moves back and forth, and regions that are never released.
            2 => {
                page.set(raw::CURSOR, head().saturating_sub(random.below(50)));
                page.set(raw::REGIONS_SEEN, 0);
            }
            // Words that the producer does not check: figures, the futex, the taken words.
            _ => {
                page.set(3 + random.below(13) as usize, random.next());
                let slot = random.below(joined.max_slots.into()) as usize;
                let taken = raw::LEASES + joined.max_slots as usize + slot;
                page.halves()[taken].store(random.next() as u32, Ordering::Relaxed);
            }
        }
    }
}
