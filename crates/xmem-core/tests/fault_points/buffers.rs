// SPDX-License-Identifier: MPL-2.0

//! Pools whose buffers consumers write too: a writer dies, and the owner dies.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use xmem_core::fault::Point;
use xmem_core::{BufferPool, Producer, WriteAccessError};

use crate::start;
use crate::support::child::{Child, reply};
use crate::support::victim::*;
use crate::support::*;
use crate::table::Kind;

/// A pool whose buffers others write too.
pub(crate) fn own_buffers(pool: &str, commands: &Receiver<String>) {
    let buffers = BufferPool::options(pool)
        .peers_may_write(true)
        .open()
        .unwrap();
    assert!(buffers.is_owner());
    reply("ready");
    loop {
        match next_command(commands).as_deref() {
            Some("end") => break,
            Some(_) => {
                let mut buffer = buffers.acquire_cpu(5000).unwrap();
                buffer.as_cpu_slice_mut().unwrap().fill(7);
                let index = buffer.forget().unwrap();
                buffers.set_ref_count(index, 2).unwrap();
                // Taken back, so that nothing is left.
                buffers.discard(index).unwrap();
                reply("written");
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Writes and reads buffers of another process's pool.
pub(crate) fn write_buffers(pool: &str, commands: &Receiver<String>) {
    let buffers = BufferPool::new(pool).unwrap();
    assert!(!buffers.is_owner());
    reply("joined");
    commands.recv().unwrap();
    for number in (0..=u8::MAX).cycle() {
        if next_command(commands).is_some() {
            break;
        }
        let mut buffer = match buffers.acquire_cpu(5000) {
            Ok(buffer) => buffer,
            Err(WriteAccessError::Owner(_)) => break,
            Err(error) => panic!("{error}"),
        };
        let bytes = buffer.as_cpu_slice_mut().unwrap();
        bytes.fill(number);
        let index = match buffer.forget() {
            Ok(index) => index,
            Err(_) => break,
        };
        let Ok(buffer) = buffers.get(index) else {
            break;
        };
        assert!(
            buffer
                .as_cpu_slice()
                .unwrap()
                .iter()
                .all(|byte| *byte == number)
        );
        if number % 16 == 15 {
            reply("wrote");
        }
    }
    reply("over");
}

/// Requests a buffer of another process's pool, again and again.
pub(crate) fn try_buffers(pool: &str, commands: &Receiver<String>) {
    let buffers = BufferPool::new(pool).unwrap();
    reply("joined");
    while commands.recv().unwrap() != "end" {
        match buffers.acquire_cpu(5000) {
            Ok(_) => reply("granted"),
            Err(error) => reply(error),
        }
    }
}

/// An owner of buffers, and a process that writes some of them.
fn buffers(place: &Place) -> (Child, Child) {
    let mut owner = start("own-buffers", Kind::Live, place);
    wait_for_reply(&mut owner, "ready");
    let mut writer = start("write-buffers", Kind::Live, place);
    wait_for_reply(&mut writer, "joined");
    (owner, writer)
}

#[test]
fn a_writer_of_buffers_dies_with_its_grants() {
    let place = Place::new();
    let (mut owner, mut living) = buffers(&place);
    living.send("go");
    for point in [Point::GrantReceived, Point::Send, Point::Sent] {
        for arrival in 1..=4 {
            let mut writer = start("write-buffers", Kind::Live, &place);
            wait_for_reply(&mut writer, "joined");
            arm_child(&mut writer, point, arrival..arrival + 1, "kill");
            writer.send("go");
            assert_eq!(writer.dies_of(), SIGKILL, "{point:?} {arrival}");
            for _ in 0..2 {
                wait_for_reply(&mut living, "wrote");
            }
        }
    }
    living.send("end");
    // Its output may have filled the pipe meanwhile, and it may hold a buffer until that is read.
    while living.reply() != "over" {}
    eventually("every buffer is back", || {
        let stats = stats_of(&place.pool());
        stats.consumers.is_empty() && stats.slots_held == 0 && stats.cut_off == 0
    });
    ask(&mut owner, "write", "written");
    owner.send("end");
    assert!(owner.ends());
    place.assert_clean();
}

#[test]
fn a_grant_that_cannot_be_mapped_is_returned() {
    let place = Place::new();
    let mut owner = start("own-buffers", Kind::Live, &place);
    wait_for_reply(&mut owner, "ready");
    let mut writer = start("try-buffers", Kind::Live, &place);
    wait_for_reply(&mut writer, "joined");
    // More often than it may write at once.
    arm_child(&mut writer, Point::Mmap, 1..21, &libc::ENOMEM.to_string());
    for _ in 0..20 {
        writer.send("try");
        let reply = writer.reply();
        assert!(reply.contains("cannot map a region"), "{reply}");
    }
    ask(&mut writer, "try", "granted");
    eventually("every buffer is back", || {
        stats_of(&place.pool()).slots_held == 0
    });
    writer.send("end");
    assert!(writer.ends());
    owner.send("end");
    assert!(owner.ends());
    place.assert_clean();
}

#[test]
fn an_owner_of_buffers_dies_at_each_of_its_points() {
    let place = Place::new();
    for point in [Point::SlotGranted, Point::RingAsked] {
        for arrival in [1, 4] {
            let (mut owner, mut writer) = buffers(&place);
            arm_child(&mut owner, point, arrival..arrival + 1, "kill");
            writer.send("go");
            for _ in 0..4 {
                // To ask for a count is the owner's own.
                if point == Point::RingAsked {
                    owner.send("write");
                }
            }
            assert_eq!(owner.dies_of(), SIGKILL, "{point:?} {arrival}");
            while writer.next_line().is_some_and(|reply| reply != "over") {}
            assert!(writer.ends());
        }
    }
    drop(Producer::builder(&place.pool()).build().unwrap());
    place.assert_clean();
}
