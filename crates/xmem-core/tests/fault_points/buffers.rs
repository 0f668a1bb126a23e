// SPDX-License-Identifier: MPL-2.0

//! Buffers by number: their writer dies, and a reader dies.

use std::sync::mpsc::Receiver;

use xmem_core::fault::Point;
use xmem_core::{BufferPool, GetError};

use crate::start;
use crate::support::child::{Child, reply};
use crate::support::victim::*;
use crate::support::*;
use crate::table::Kind;

const LEN: usize = 5000;

fn write(buffers: &BufferPool, byte: u8) -> u32 {
    let mut buffer = buffers.acquire_cpu(LEN).unwrap();
    buffer.as_cpu_slice_mut().unwrap().fill(byte);
    buffers.set_ref_count(buffer.meta_index(), 2).unwrap();
    buffer.forget().unwrap()
}

#[track_caller]
fn assert_whole(bytes: &[u8]) {
    assert_eq!(bytes.len(), LEN);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
}

/// Writes buffers and prints their numbers, and edits and discards others.
pub(crate) fn write_buffers(pool: &str, commands: &Receiver<String>) {
    let buffers = BufferPool::new(pool).unwrap();
    reply("ready");
    let mut kept = Vec::new();
    for byte in (0..=u8::MAX).cycle() {
        match commands.recv().unwrap().as_str() {
            "end" => break,
            "write" => {
                let index = write(&buffers, byte);
                kept.push(index);
                reply(index);
            }
            _ => {
                let index = write(&buffers, byte);
                buffers.get_mut(index).unwrap().forget().unwrap();
                buffers.set_ref_count(index, 1).unwrap();
                drop(buffers.get(index).unwrap());
                let other = write(&buffers, byte);
                buffers.discard(other).unwrap();
                // Numbers that readers were killed with.
                kept.drain(..).for_each(|index| {
                    let _ = buffers.discard(index);
                });
                reply("wrote");
            }
        }
    }
}

/// Reads the buffers of the numbers that it gets.
pub(crate) fn read_buffers(pool: &str, commands: &Receiver<String>) {
    let buffers = BufferPool::new(pool).unwrap();
    reply("ready");
    while let Ok(number) = commands.recv().unwrap().parse() {
        let buffer = buffers.get(number).unwrap();
        assert_whole(buffer.as_cpu_slice().unwrap());
        drop(buffer);
        reply("read");
    }
}

fn written(writer: &mut Child) -> u32 {
    writer.send("write");
    writer.reply().parse().unwrap()
}

#[test]
fn a_writer_of_buffers_dies_at_each_of_its_points() {
    let place = Place::new();
    let reader = BufferPool::new(&place.pool()).unwrap();
    for point in [
        Point::ClaimAnnounced,
        Point::ClaimGained,
        Point::RegionMade,
        Point::SlotPublished,
        Point::EntryStamped,
        Point::EntryFilled,
        Point::EntryWritten,
        Point::HeadMoved,
        Point::RingAsked,
        Point::SlotAbandoned,
    ] {
        let mut writer = start("write-buffers", Kind::Live, &place);
        wait_for_reply(&mut writer, "ready");
        // One that is made after the first is read, so that its region has to be asked for.
        let held = (point != Point::RegionMade).then(|| {
            let index = written(&mut writer);
            (index, reader.get(index).unwrap())
        });
        arm_child(&mut writer, point, 1..2, "kill");
        writer.send("edit");
        assert_eq!(writer.dies_of(), SIGKILL, "{point:?}");
        if let Some((index, held)) = held {
            assert_whole(held.as_cpu_slice().unwrap());
            // It counted as one of two reads. What is published stays for those that have its memory.
            assert_whole(reader.get(index).unwrap().as_cpu_slice().unwrap());
        }
        let other = BufferPool::new(&place.pool()).unwrap();
        let index = write(&other, 7);
        for buffers in [&reader, &other] {
            assert_whole(buffers.get(index).unwrap().as_cpu_slice().unwrap());
        }
        eventually("it is released", || {
            matches!(reader.get(index), Err(GetError::Empty { .. }))
        });
    }
    drop(reader);
    place.assert_clean();
}

#[test]
fn a_reader_of_buffers_dies_at_each_of_its_points() {
    let place = Place::new();
    let mut writer = start("write-buffers", Kind::Live, &place);
    wait_for_reply(&mut writer, "ready");
    for point in [
        Point::ControlMapped,
        Point::PageMapped,
        Point::HoldAnnounced,
        Point::HoldGained,
        Point::TakenStored,
        Point::ReleaseCleared,
    ] {
        for arrival in 1..=2 {
            let mut reader = start("read-buffers", Kind::Live, &place);
            wait_for_reply(&mut reader, "ready");
            let is_late = !matches!(point, Point::ControlMapped | Point::PageMapped);
            if is_late && arrival == 2 {
                let index = written(&mut writer);
                ask(&mut reader, &index.to_string(), "read");
            }
            arm_child(&mut reader, point, 1..2, "kill");
            reader.send(&written(&mut writer).to_string());
            assert_eq!(reader.dies_of(), SIGKILL, "{point:?} {arrival}");
            // No buffer is in use for ever.
            ask(&mut writer, "edit", "wrote");
        }
    }
    writer.send("end");
    assert!(writer.ends());
    place.assert_clean();
}
