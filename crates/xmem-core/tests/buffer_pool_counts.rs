// SPDX-License-Identifier: MPL-2.0

//! The number of reads before a buffer is empty, by several processes, and readers that do not read.

mod support;

use std::sync::mpsc;
use std::time::Duration;

use support::child::{self, Child, read_line, reply};
use support::{buffers::published, *};
use xmem_core::{BufferPool, GetError, Reader, Unread, WaitError, WriteAccessError};

/// More than fit as messages into a queue of a socket.
const READS: i32 = 3000;

fn is_empty(pool: &BufferPool, index: u32) -> bool {
    matches!(pool.get(index), Err(GetError::Empty { .. }))
}

/// A reader executes commands: connect, get and keep a buffer, get and drop one, drop a kept one. A writer publishes a buffer and
/// waits until it was read.
#[test]
fn child() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    let pool = BufferPool::new(&pool).unwrap();
    if role == "writer" {
        let mut buffer = pool.acquire_cpu(4).unwrap();
        buffer.as_cpu_slice_mut().unwrap().copy_from_slice(b"abcd");
        pool.set_ref_count(buffer.meta_index(), READS).unwrap();
        reply(buffer.forget().unwrap());
        pool.wait_until_read(Some(HANG)).unwrap();
        return reply("read");
    }
    reply("joined");
    let mut held = Vec::new();
    loop {
        let line = read_line();
        let (what, index) = line.split_once(' ').unwrap();
        let index = index.parse().unwrap();
        match what {
            "connect" => pool.connect(index).unwrap(),
            "keep" => held.push(pool.get(index).unwrap()),
            "read" => drop(pool.get(index).unwrap()),
            _ => held.clear(),
        }
        reply("done");
    }
}

fn reader(place: &Place) -> Child {
    let mut child = Child::start("reader", &place.pool());
    assert_eq!(child.reply(), "joined");
    child
}

#[track_caller]
fn run(child: &mut Child, what: &str, index: u32) {
    child.send(&format!("{what} {index}"));
    assert_eq!(child.reply(), "done");
}

/// A pool, and a channel with the buffers that are emptied at their timeouts.
fn with_reports(place: &Place) -> (BufferPool, mpsc::Receiver<Unread>) {
    let (sender, unread) = mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let options = BufferPool::options(&place.pool())
        .on_unread(move |unread: &Unread| sender.lock().unwrap().send(unread.clone()).unwrap());
    (options.open().unwrap(), unread)
}

/// Sections 6 and 8 of the design: acquire, set the count, forget, and read `count` times.
#[test]
fn as_many_reads_as_the_count_empty_a_buffer_of_one_process() {
    let place = Place::new();
    let pool = BufferPool::new(&place.pool()).unwrap();
    let before = pool.stats();
    for round in 0..10_000 {
        let index = published(&pool, b"abcd", 2);
        let first = pool.get(index).unwrap();
        // A clone shares the read of its guard.
        drop(first.clone_ref().unwrap());
        let second = pool.get(index).unwrap();
        drop(first);
        assert_eq!(second.as_cpu_slice().unwrap(), b"abcd", "round {round}");
        drop(second);
    }
    pool.wait_until_read(Some(HANG)).unwrap();
    let after = pool.stats();
    assert_eq!(after.slots_held, before.slots_held);
    assert!(after.slots <= 2, "{} buffers", after.slots);
}

#[test]
fn as_many_reads_as_the_count_empty_a_buffer_of_several_processes() {
    let place = Place::new();
    let pool = BufferPool::new(&place.pool()).unwrap();
    let mut readers = [reader(&place), reader(&place)];
    // More than the limit of buffers.
    for round in 0..300 {
        // One read by this process, two by one reader and one by another.
        let index = published(&pool, b"abcd", 4);
        drop(pool.get(index).unwrap());
        run(&mut readers[round % 2], "read", index);
        run(&mut readers[round % 2], "read", index);
        run(&mut readers[(round + 1) % 2], "read", index);
    }
    pool.wait_until_read(Some(HANG)).unwrap();
    let stats = pool.stats();
    assert_eq!(stats.slots_held, 0);
    assert!(stats.slots < 64, "{} buffers", stats.slots);
}

#[test]
fn every_read_of_a_process_that_is_killed_counts() {
    let place = Place::new();
    let pool = BufferPool::new(&place.pool()).unwrap();
    for steps in [
        &["keep", "keep"][..],
        &["read", "keep"],
        &["keep", "read"],
        &["read", "read"],
    ] {
        let index = published(&pool, b"abcd", 3);
        let mut killed = reader(&place);
        for step in steps {
            run(&mut killed, step, index);
        }
        killed.kill();
        // One of three reads remains.
        eventually("it is gone", || pool.stats().consumers.is_empty());
        assert_eq!(pool.get(index).unwrap().as_cpu_slice().unwrap(), b"abcd");
        assert!(is_empty(&pool, index), "{steps:?}");
    }
}

#[test]
fn reads_do_not_wait_for_a_writer_that_is_stopped() {
    let place = Place::new();
    let mut writer = Child::start("writer", &place.pool());
    let index = writer.reply().parse().unwrap();
    let pool = BufferPool::new(&place.pool()).unwrap();
    let first = pool.get(index).unwrap();
    writer.stop();
    for _ in 1..READS {
        drop(pool.get(index).unwrap());
    }
    writer.go_on();
    // They were counted, and none was counted twice.
    assert_eq!(first.as_cpu_slice().unwrap(), b"abcd");
    drop(first);
    assert_eq!(writer.reply(), "read");
}

#[test]
fn a_reference_without_a_guard_is_no_read() {
    let place = Place::new();
    let [owner, other] = [(); 2].map(|()| BufferPool::new(&place.pool()).unwrap());
    let index = published(&owner, b"abcd", 1);
    for pool in [&owner, &other] {
        pool.add_ref(index).unwrap();
        assert!(pool.release(index));
    }
    assert_eq!(owner.stats().unread, 1);
    drop(other.get(index).unwrap());
    owner.wait_until_read(Some(HANG)).unwrap();
    assert_eq!(owner.stats().unread, 0);
}

#[test]
fn an_unread_buffer_is_emptied_at_its_timeout() {
    let place = Place::new();
    let (pool, unread) = with_reports(&place);
    // A process is connected after its first read.
    let mut late = reader(&place);
    run(&mut late, "read", published(&pool, b"abcd", 1));
    let mut buffer = pool.acquire_cpu(4).unwrap();
    pool.set_ref_count(buffer.meta_index(), 2).unwrap();
    buffer.set_timeout(Duration::from_millis(1)).unwrap();
    let index = buffer.forget().unwrap();
    let both = unread.recv_timeout(HANG).unwrap();
    assert_eq!((both.index, both.count, both.missing), (index, 2, 2));
    let name = format!("process {}", late.pid());
    assert!(
        matches!(&both.readers[..], [reader] if reader.contains(&name)),
        "{both}"
    );
    assert_contains(&both.to_string(), &name);
    assert!(is_empty(&pool, index));
}

/// Publishes a buffer for these readers, which are connected.
fn published_for(pool: &BufferPool, readers: &[&Child]) -> u32 {
    let mut buffer = pool.acquire_cpu(4).unwrap();
    buffer.as_cpu_slice_mut().unwrap().copy_from_slice(b"abcd");
    let is_one = |reader: &Reader| readers.iter().any(|child| child.pid() == reader.pid());
    let mut connected = pool.readers();
    connected.retain(is_one);
    assert_eq!(connected.len(), readers.len());
    buffer.set_readers(&connected).unwrap();
    buffer.forget().unwrap()
}

fn connected_reader(place: &Place, pool: &BufferPool) -> Child {
    let mut child = reader(place);
    run(&mut child, "connect", pool.acquire_cpu(4).unwrap().buffer());
    child
}

#[test]
fn a_buffer_for_named_readers_is_kept_for_these_alone() {
    let place = Place::new();
    let pool = BufferPool::new(&place.pool()).unwrap();
    let mut named = [(); 2].map(|()| connected_reader(&place, &pool));
    let mut other = connected_reader(&place, &pool);
    let index = published_for(&pool, &[&named[0], &named[1]]);
    // Reads of other processes, of this process, and repeated reads do not count.
    for _ in 0..3 {
        drop(pool.get(index).unwrap());
        run(&mut other, "read", index);
        run(&mut named[0], "read", index);
    }
    run(&mut named[1], "keep", index);
    let waited = pool.wait_until_read(Some(Duration::from_millis(1)));
    assert_eq!(waited, Err(WaitError::Timeout));
    run(&mut named[1], "drop", index);
    pool.wait_until_read(Some(HANG)).unwrap();
    assert!(is_empty(&pool, index));
}

#[test]
fn a_named_reader_that_ends_is_done() {
    let place = Place::new();
    let pool = BufferPool::new(&place.pool()).unwrap();
    for steps in [&[][..], &["keep"], &["read"], &["read", "keep"]] {
        let [mut killed, mut stays] = [(); 2].map(|()| connected_reader(&place, &pool));
        let index = published_for(&pool, &[&killed, &stays]);
        for step in steps {
            run(&mut killed, step, index);
        }
        killed.kill();
        eventually("it is gone", || pool.readers().len() == 1);
        // The buffer is kept for the reader that has not read it.
        run(&mut stays, "read", index);
        pool.wait_until_read(Some(HANG)).unwrap();
        assert!(is_empty(&pool, index), "{steps:?}");
    }
}

#[test]
fn the_readers_of_a_buffer_are_checked_before_it_is_published() {
    let place = Place::new();
    let (pool, unread) = with_reports(&place);
    let peer = BufferPool::new(&place.pool()).unwrap();
    assert!(matches!(peer.connect(0), Err(GetError::NoWriter { .. })));
    assert_eq!(pool.readers(), []);
    let gone = connected_reader(&place, &pool);
    let [gone_reader] = &pool.readers()[..] else {
        panic!("{:?}", pool.readers());
    };
    drop(gone);
    eventually("it is gone", || pool.readers().is_empty());
    let [_one, late] = [(); 2].map(|()| connected_reader(&place, &pool));

    let mut buffer = pool.acquire_cpu(4).unwrap();
    let error = buffer
        .set_readers(std::slice::from_ref(gone_reader))
        .unwrap_err();
    let is_named = error.to_string().contains(&gone_reader.to_string());
    assert!(
        is_named && matches!(error, WriteAccessError::NotConnected { .. }),
        "{error}"
    );
    let error = buffer.set_readers(&[]).unwrap_err();
    assert!(matches!(error, WriteAccessError::NoReaders), "{error}");
    // The buffer is unchanged, and another guard cannot write it.
    let mut read = pool.get(buffer.forget().unwrap()).unwrap();
    let error = read.set_readers(&pool.readers()).unwrap_err();
    assert!(matches!(error, WriteAccessError::NotWriter), "{error}");
    drop(read);
    pool.wait_until_read(Some(HANG)).unwrap();

    // The report of a timeout lists only the named readers.
    let mut readers = pool.readers();
    readers.retain(|reader| reader.pid() == late.pid());
    let mut buffer = pool.acquire_cpu(4).unwrap();
    buffer.set_readers(&readers).unwrap();
    buffer.set_timeout(Duration::from_millis(1)).unwrap();
    let index = buffer.forget().unwrap();
    let report = unread.recv_timeout(HANG).unwrap();
    assert_eq!((report.index, report.count, report.missing), (index, 1, 1));
    let name = format!("process {}", late.pid());
    assert!(
        matches!(&report.readers[..], [late] if late.contains(&name)),
        "{report}"
    );
}

#[test]
fn each_process_waits_for_the_readers_of_its_own_buffers() {
    let place = Place::new();
    let [one, other] = [(); 2].map(|()| BufferPool::new(&place.pool()).unwrap());
    let index = published(&one, b"abcd", 1);
    assert_eq!(
        one.wait_until_read(Some(Duration::ZERO)),
        Err(WaitError::Timeout)
    );
    other.wait_until_read(Some(Duration::ZERO)).unwrap();
    let mut buffer = other.get(index).unwrap();
    let error = buffer.set_timeout(Duration::ZERO).unwrap_err();
    assert!(matches!(error, WriteAccessError::NotWriter), "{error}");
    drop(buffer);
    one.wait_until_read(Some(HANG)).unwrap();
}

#[test]
fn a_batch_of_sixteen_can_be_held() {
    let place = Place::new();
    let options = || BufferPool::options(&place.pool()).max_held(16);
    let (owner, peer) = (options().open().unwrap(), options().open().unwrap());
    let batch: Vec<u32> = (0..16).map(|_| published(&owner, b"abcd", 1)).collect();
    let batch: Vec<_> = batch
        .iter()
        .map(|index| peer.get(*index).unwrap())
        .collect();
    let next = published(&owner, b"abcd", 1);
    let error = peer.get(next).unwrap_err().to_string();
    assert_contains(&error, "max_held");
    drop(batch);
    peer.get(next).unwrap();
}

#[test]
fn a_full_pool_names_its_own_setting() {
    let place = Place::new();
    let pool = BufferPool::options(&place.pool())
        .max_buffers(4)
        .open()
        .unwrap();
    let _never_read: Vec<u32> = (0..4).map(|_| published(&pool, b"abcd", 1)).collect();
    let error = pool.acquire_cpu(4).unwrap_err();
    assert!(
        matches!(error, WriteAccessError::Full { max_buffers: 4, .. }),
        "{error}"
    );
    let error = error.to_string();
    // The name that the user passed, not that of this process's pool.
    let name = format!("pool {:?} are", place.pool());
    for word in [&name, "max_buffers (4)", "discard", "timeout"] {
        assert_contains(&error, word);
    }
    assert!(!error.contains("slots"), "{error}");
}
