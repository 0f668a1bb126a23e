// SPDX-License-Identifier: MPL-2.0

//! Chains: a process takes frames of one pool and forwards them in another without a copy, and is killed.

mod support;

use std::sync::Mutex;
use std::sync::mpsc::channel;

use support::child::{self, Child, read_line, reply};
use support::*;
use xmem_core::{
    Attachments, Consumer, ConsumerBuilder, Delivery, ForwardError, FrameMeta, FrameParts, Parts,
    PoolEvent, Producer, PublishError, ReadLease, ReceiveError, SlotSpec, StartFrom, Wait,
};

const SIZE: usize = 300_000;

#[test]
fn child() {
    let Some((role, pools)) = child::role() else {
        return;
    };
    let (from, to) = pools.split_once(',').unwrap();
    if role == "end" {
        return end(to);
    }
    if role == "several" {
        return several(from, to);
    }
    assert_eq!(role, "middle");
    let mut middle = Middle::new(from, to);
    reply("ready");
    loop {
        read_line();
        reply(middle.pass_on());
    }
}

/// More than the consumer may hold.
const SEVERAL: usize = 5;

/// Forwards several frames as the parts of one, on command.
fn several(from: &str, to: &str) {
    let mut consumer = joining(from).max_held(32).connect().unwrap();
    let producer = Producer::builder(to).delivery(Delivery::Lossless);
    let producer = producer.build().unwrap();
    reply("ready");
    loop {
        read_line();
        let frames = [(); SEVERAL].map(|()| consumer.receive(Some(HANG)).unwrap());
        let mut parts = Parts::new();
        for frame in &frames {
            parts.append(
                producer
                    .forward_wait(frame, FrameParts::All, Wait::FOREVER)
                    .unwrap(),
            );
        }
        publish_parts(&producer, parts, FrameMeta::default()).unwrap();
        reply("sent");
    }
}

/// The two processes before it, and a consumer with a smaller budget than the number of parts.
fn over_budget() -> (Place, Place, Producer, Child, Consumer) {
    let (a, b) = (Place::new(), Place::new());
    let first = a.producer(|it| it.history(SEVERAL as u32).max_held(32));
    let middle = between("several", &a, &b);
    let last = joining(&b.pool()).max_held(2).parts(true);
    let last = last.connect().unwrap();
    (a, b, first, middle, last)
}

fn send_several(first: &Producer, middle: &mut Child) {
    for seed in 0..SEVERAL {
        publish(first, seed as u64, SIZE);
    }
    middle.send("pass");
    assert_eq!(middle.reply(), "sent");
}

/// The parts that have changed.
fn torn(frame: &ReadLease) -> Vec<usize> {
    let parts = frame.parts().iter().enumerate();
    parts
        .filter(|(seed, part)| difference(*seed as u64, part.map().unwrap()).is_some())
        .map(|(seed, _)| seed)
        .collect()
}

#[test]
fn parts_past_the_budget_can_be_copied() {
    let (_a, _b, first, mut middle, mut last) = over_budget();
    for _ in 0..2 {
        send_several(&first, &mut middle);
        let error = last.receive(Some(HANG)).unwrap_err();
        assert!(
            matches!(error, ReceiveError::OverBudget { budget: 2 }),
            "{error}"
        );
        let copied = last.receive_with(Some(HANG), |frame| (frame.parts().len(), torn(frame)));
        assert_eq!(copied.unwrap(), (SEVERAL, vec![]));
    }
    drop(last);
    eventually("nothing is held for it", || {
        first.stats().consumers.len() == 1
    });
}

#[test]
fn a_clone_past_the_budget_is_no_lease() {
    let (_a, _b, first, mut middle, mut last) = over_budget();
    send_several(&first, &mut middle);
    let kept = last.receive_with(Some(HANG), ReadLease::clone);
    assert!(
        matches!(kept, Err(ReceiveError::OverBudget { budget: 2 })),
        "{kept:?}"
    );
    let stats = last.stats();
    assert_eq!((stats.received, stats.missed), (0, 1));
}

#[test]
fn a_frame_whose_copy_the_killed_middle_left_is_intact_or_missed() {
    let (_a, _b, first, mut middle, mut last) = over_budget();
    send_several(&first, &mut middle);
    let mut runs = 0;
    let copied = last.receive_with(Some(HANG), |frame| {
        runs += 1;
        assert_eq!(torn(frame), [0; 0]);
        middle.kill();
        let mut seed = 1000;
        eventually("released slots are used again", || {
            publish(&first, seed, SIZE);
            seed += 1;
            !torn(frame).is_empty()
        });
    });
    assert!(
        matches!(copied, Err(ReceiveError::ProducerLost)),
        "{copied:?}"
    );
    let stats = last.stats();
    assert_eq!((runs, stats.received, stats.missed), (1, 0, 1));
}

/// Takes the newest frame on command, and reports its number.
fn end(pool: &str) {
    let mut consumer = joining(pool).connect().unwrap();
    reply("ready");
    loop {
        read_line();
        let frame = consumer.receive(Some(HANG)).unwrap();
        let seed = frame.meta().pts.unwrap();
        assert_content(&frame, seed);
        reply(seed);
    }
}

/// Forwards frames without a copy if possible.
struct Middle {
    consumer: Consumer,
    producer: Producer,
}

impl Middle {
    fn new(from: &str, to: &str) -> Self {
        Self::with(from, to, Delivery::Live)
    }

    fn with(from: &str, to: &str, delivery: Delivery) -> Self {
        let producer = Producer::builder(to).history(1).delivery(delivery);
        Self {
            // The number of frames that a lossless pool may be behind, and some more.
            consumer: joining(from).max_held(16).connect().unwrap(),
            producer: producer.build().unwrap(),
        }
    }

    fn pass_on(&mut self) -> &'static str {
        self.producer.wait_for_room(Wait::FOREVER).unwrap();
        let frame = self.consumer.receive(Some(HANG)).unwrap();
        let mut meta = FrameMeta::default();
        meta.pts = frame.meta().pts;
        match self
            .producer
            .forward_wait(&frame, FrameParts::All, Wait::FOREVER)
        {
            Ok(parts) => match publish_parts(&self.producer, parts, meta.clone()) {
                Ok(_) => return "forwarded",
                // In a live pool, a consumer may refuse in between.
                Err(error) => assert!(matches!(error, PublishError::NotReached), "{error:?}"),
            },
            Err(ForwardError::NotReached) => {}
            Err(error) => panic!("{error}"),
        }
        let bytes = bytes_of(&frame);
        let mut lease = self.producer.acquire(bytes.len()).unwrap();
        lease.as_mut_slice().copy_from_slice(bytes);
        let size = bytes.len() as u64;
        meta.size = size;
        lease.publish(meta).unwrap();
        "copied"
    }
}

fn publish_parts(
    producer: &Producer,
    parts: Parts,
    meta: FrameMeta,
) -> Result<ReadLease, PublishError> {
    let mut lease = producer
        .acquire(SlotSpec::new(1).attachments(parts.room()))
        .unwrap();
    lease.set_parts(parts);
    lease.publish(meta).map_err(|failure| failure.error)
}

fn joining(pool: &str) -> ConsumerBuilder {
    Consumer::builder(pool).max_held(4)
}

fn bytes_of(frame: &ReadLease) -> &[u8] {
    match frame.parts() {
        [] => frame.bytes().unwrap(),
        [part] => part.map().unwrap(),
        _ => panic!("one part"),
    }
}

#[track_caller]
fn assert_content(frame: &ReadLease, seed: u64) {
    assert_eq!(frame.meta().pts, Some(seed));
    assert_eq!(frame.meta().size as usize, SIZE);
    assert_eq!(difference(seed, bytes_of(frame)), None, "frame {seed}");
}

/// Forwards frames until they are not copied any more. Returns the next seed.
fn until_forwarded(
    first: &Producer,
    pass_on: &mut dyn FnMut() -> String,
    last: &mut Consumer,
    mut seed: u64,
) -> u64 {
    eventually("the last one reaches the first", || {
        publish(first, seed, SIZE);
        let how = pass_on();
        assert_content(&last.receive(Some(HANG)).unwrap(), seed);
        seed += 1;
        how.ends_with("forwarded")
    });
    seed
}

/// A process with this role between two pools.
#[track_caller]
fn between(role: &str, from: &Place, to: &Place) -> Child {
    Child::start(role, &format!("{},{}", from.pool(), to.pool())).ready()
}

/// Waits until all consumers have gone, and only the history has a slot.
#[track_caller]
fn until_released(first: &Producer) {
    eventually("slots come back", || {
        let stats = first.stats();
        stats.slots_held <= 1 && stats.consumers.is_empty()
    });
}

#[test]
fn a_frame_is_forwarded_in_place() {
    let (a, b) = (Place::new(), Place::new());
    let first = a.producer(|it| it.history(1));
    let mut middle = Middle::new(&a.pool(), &b.pool());
    let mut last = joining(&b.pool()).connect().unwrap();
    let mut other = joining(&b.pool()).parts(true).connect().unwrap();
    for seed in 0..30 {
        publish(&first, seed, SIZE);
        assert_eq!(middle.pass_on(), "forwarded", "from the first one on");
        let (frame, same) = (
            last.receive(Some(HANG)).unwrap(),
            other.receive(Some(HANG)).unwrap(),
        );
        assert_content(&frame, seed);
        assert_content(&same, seed);
        assert_eq!(
            frame.bytes().unwrap().len(),
            SIZE,
            "one part is a payload as any other"
        );
        assert!(same.parts()[0].fd().is_some());
        // Both hold the frame in the first pool, and `via` names the second pool.
        let stats = first.stats();
        let holders = stats.consumers.iter().filter(|it| !it.via.is_empty());
        let holders: Vec<_> = holders.map(|it| (it.held, it.leaving)).collect();
        assert_eq!(holders, [(1, false), (1, false)], "{stats:?}");
    }
    // There is one lease per consumer in the first pool, and all are released.
    drop((middle, last, other));
    publish(&first, 0, SIZE);
    until_released(&first);
}

#[test]
fn a_killed_middle_tears_no_frame() {
    let (a, b) = (Place::new(), Place::new());
    let first = a.producer(|it| it.history(1));
    let mut middle = between("middle", &a, &b);
    let mut last = joining(&b.pool()).connect().unwrap();
    let mut pass_on = || {
        middle.send("pass");
        middle.reply()
    };
    let seed = 7;
    publish(&first, seed, SIZE);
    assert_eq!(pass_on(), "forwarded");
    let frame = last.receive(Some(HANG)).unwrap();
    // This frame is in the pool, and not taken yet.
    publish(&first, seed + 1, SIZE);
    assert_eq!(pass_on(), "forwarded");
    middle.kill();
    eventually("the middle is gone", || {
        let consumers = first.stats().consumers;
        consumers.iter().all(|it| it.pid != middle.pid())
    });
    for seed in 1000..1300 {
        publish(&first, seed, SIZE);
    }
    assert_content(&frame, seed);
    match last.receive(Some(HANG)) {
        // Its slot may have been reused. Then the frame is missed, but never torn.
        Ok(frame) => assert_content(&frame, seed + 1),
        Err(error) => assert!(matches!(error, ReceiveError::ProducerLost), "{error}"),
    }
    drop((frame, last));
    until_released(&first);
}

#[test]
fn over_three_hops_each_consumer_holds_the_frame_in_the_first_pool() {
    let (a, b, c) = (Place::new(), Place::new(), Place::new());
    let first = a.producer(|it| it.history(1));
    let mut one = between("middle", &a, &b);
    let mut two = between("middle", &b, &c);
    let mut last = joining(&c.pool()).connect().unwrap();
    let mut pass_on = || {
        one.send("pass");
        let first_hop = one.reply();
        two.send("pass");
        format!("{first_hop}, {}", two.reply())
    };
    let seed = 7;
    publish(&first, seed, SIZE);
    assert_eq!(pass_on(), "forwarded, forwarded");
    let frame = last.receive(Some(HANG)).unwrap();
    one.kill();
    two.kill();
    eventually("both are gone", || {
        let gone = |pid: u32| [one.pid(), two.pid()].contains(&pid);
        let consumers = first.stats().consumers;
        !consumers.iter().any(|consumer| gone(consumer.pid))
    });
    for seed in 1000..1300 {
        publish(&first, seed, SIZE);
    }
    assert_content(&frame, seed);
    drop((frame, last));
    until_released(&first);
}

#[test]
fn a_consumer_that_cannot_reach_the_first_pool_gets_copies_and_misses_nothing() {
    let (a, b) = (Place::new(), Place::new());
    // Space for the middle process and one more.
    let first = a.producer(|it| it.history(1).max_consumers(2));
    let mut middle = Middle::new(&a.pool(), &b.pool());
    let mut near = joining(&b.pool()).connect().unwrap();
    let mut seed = until_forwarded(&first, &mut || middle.pass_on().to_owned(), &mut near, 0);
    let mut far = joining(&b.pool()).connect().unwrap();
    for _ in 0..50 {
        publish(&first, seed, SIZE);
        assert_eq!(middle.pass_on(), "copied", "as long as one needs that");
        assert_content(&near.receive(Some(HANG)).unwrap(), seed);
        assert_content(&far.receive(Some(HANG)).unwrap(), seed);
        seed += 1;
    }
    assert_eq!(far.stats().missed, 0);
    drop(far);
    until_forwarded(&first, &mut || middle.pass_on().to_owned(), &mut near, seed);
}

/// Frames of two pools, some of their parts, and a slot of the forwarding pool form one frame.
#[test]
fn parts_of_several_frames_are_forwarded_as_one_frame() {
    let (a, b, c) = (Place::new(), Place::new(), Place::new());
    let firsts = [&a, &b].map(|place| Producer::builder(place.pool()).build().unwrap());
    let mut froms = [&a, &b].map(|place| joining(&place.pool()).parts(true).connect().unwrap());
    let to = Producer::builder(c.pool()).build().unwrap();
    let mut last = joining(&c.pool()).parts(true).connect().unwrap();
    for (seed, first) in firsts.iter().enumerate() {
        publish(first, seed as u64, SIZE);
    }
    let frames = froms
        .each_mut()
        .map(|from| from.receive(Some(HANG)).unwrap());
    let mut own = to.acquire(SIZE).unwrap();
    fill(7, own.as_mut_slice());
    let own = own.into_part();
    let mut parts = Parts::new();
    eventually("the last one reaches both", || {
        parts = Parts::new();
        parts.add_slot(&own, 0, SIZE as u64, 7);
        frames.iter().all(|frame| {
            let passed = to.forward(frame, FrameParts::Only(&[0]));
            passed.map(|passed| parts.append(passed)).is_ok()
        })
    });
    assert_eq!(
        to.forward(&frames[0], FrameParts::Only(&[])).unwrap().len(),
        0
    );
    let mut lease = to
        .acquire(SlotSpec::new(1).attachments(parts.room()))
        .unwrap();
    lease.set_parts(parts);
    lease.set_release_hook(move || drop(own));
    lease.publish(FrameMeta::default()).unwrap();
    let frame = last.receive(Some(HANG)).unwrap();
    drop((froms, frames));
    // Forwarded again, without the first part.
    let mut behind = Parts::new();
    let d = Place::new();
    let next = Producer::builder(d.pool()).build().unwrap();
    let mut end = joining(&d.pool()).parts(true).connect().unwrap();
    eventually("the end reaches the first two", || {
        let passed = next.forward(&frame, FrameParts::Only(&[1, 2]));
        passed.map(|passed| behind = passed).is_ok()
    });
    publish_parts(&next, behind, FrameMeta::default()).unwrap();
    let passed_on = end.receive(Some(HANG)).unwrap();
    drop((frame, last, to));
    let seeds = passed_on.parts().iter().enumerate().map(|(seed, part)| {
        assert_eq!(part.len(), SIZE);
        difference(seed as u64, part.map().unwrap())
    });
    assert_eq!(seeds.collect::<Vec<_>>(), [None, None]);
}

#[test]
fn a_restarted_first_pool_is_joined_again() {
    let (a, b) = (Place::new(), Place::new());
    let mut first = a.producer(|it| it.history(1));
    let mut middle = Middle::new(&a.pool(), &b.pool());
    let mut last = joining(&b.pool()).connect().unwrap();
    let mut pass_on = || middle.pass_on().to_owned();
    let seed = until_forwarded(&first, &mut pass_on, &mut last, 0);
    publish(&first, seed, SIZE);
    middle.pass_on();
    let held = last.receive(Some(HANG)).unwrap();
    // More often than the number of origins that are remembered.
    for _ in 0..12 {
        drop(first);
        first = a.producer(|it| it.history(1));
        middle.consumer = joining(&a.pool()).connect().unwrap();
        let mut pass_on = || middle.pass_on().to_owned();
        until_forwarded(&first, &mut pass_on, &mut last, 5000);
    }
    assert_content(&held, seed);
}

#[test]
fn a_frame_that_cannot_be_forwarded_is_an_error() {
    let (a, b) = (Place::new(), Place::new());
    let first = a.producer(|it| it.backing(xmem_core::Backing::PosixShm));
    let own = publish(&first, 1, SIZE);
    let mut middle = Middle::new(&a.pool(), &b.pool());
    assert!(matches!(
        middle.producer.forward(&own, FrameParts::All),
        Err(ForwardError::NotReceived)
    ));
    publish(&first, 2, SIZE);
    let frame = middle.consumer.receive(Some(HANG)).unwrap();
    assert!(matches!(
        middle.producer.forward(&frame, FrameParts::All),
        Err(ForwardError::NoDescriptor)
    ));
}

/// A consumer that joins before the origin of the frames is known, and cannot reach it.
#[test]
fn a_consumer_that_cannot_reach_the_first_pool_reports_it_and_gets_copies() {
    for delivery in [Delivery::Live, Delivery::Lossless] {
        let (a, b) = (Place::new(), Place::new());
        let first = a.producer(|it| it.history(1).max_consumers(1));
        let mut middle = Middle::with(&a.pool(), &b.pool(), delivery);
        let mut far = joining(&b.pool()).connect().unwrap();
        let mut seed = 0;
        eventually("it gets copies", || {
            publish(&first, seed, SIZE);
            let how = middle.pass_on();
            seed += 1;
            how == "copied"
        });
        if delivery == Delivery::Lossless {
            assert_eq!(seed, 1, "nothing is passed on that it could not take");
        }
        let frame = loop {
            let frame = far.receive(Some(HANG)).unwrap();
            assert_content(&frame, frame.meta().pts.unwrap());
            if frame.meta().pts == Some(seed - 1) {
                break frame;
            }
        };
        let missed = far.stats().missed;
        assert!(delivery == Delivery::Live || missed == 0, "{missed}");
        drop(frame);
    }
}

/// Consumers join and leave repeatedly. None of them causes a copy, or misses frames that were forwarded after it joined.
#[test]
fn a_consumer_that_joins_a_forwarded_stream_causes_no_copy() {
    for delivery in [Delivery::Live, Delivery::Lossless] {
        let (a, b) = (Place::new(), Place::new());
        // The middle process holds the frames that its slowest consumer has not taken.
        let first = a.producer(|it| it.history(1).max_held(16));
        let mut middle = Middle::with(&a.pool(), &b.pool(), delivery);
        let mut near = joining(&b.pool()).connect().unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let passing = scope.spawn(|| {
                for seed in 0.. {
                    publish(&first, seed, SIZE);
                    assert_eq!(middle.pass_on(), "forwarded", "frame {seed}");
                    assert_content(&near.receive(Some(HANG)).unwrap(), seed);
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                }
            });
            for _ in 0..20 {
                let mut late = joining(&b.pool()).connect().unwrap();
                let mut last = None;
                for _ in 0..5 {
                    let frame = late.receive(Some(HANG)).unwrap();
                    let seed = frame.meta().pts.unwrap();
                    assert_content(&frame, seed);
                    if delivery == Delivery::Lossless {
                        assert!(last.is_none_or(|last| seed == last + 1), "{last:?} {seed}");
                    }
                    last = Some(seed);
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            passing.join().unwrap();
        });
    }
}

/// A consumer that was stopped before it could report whether it reaches the first pool does not delay others.
#[test]
fn a_stopped_consumer_causes_no_copy() {
    let (a, b) = (Place::new(), Place::new());
    let first = a.producer(|it| it.history(1));
    let mut middle = Middle::new(&a.pool(), &b.pool());
    let mut end = Child::start("end", &format!(",{}", b.pool())).ready();
    end.stop();
    let mut near = joining(&b.pool()).connect().unwrap();
    for seed in 0..30 {
        publish(&first, seed, SIZE);
        assert_eq!(middle.pass_on(), "forwarded");
        assert_content(&near.receive(Some(HANG)).unwrap(), seed);
    }
    end.go_on();
    end.send("take");
    assert_eq!(end.reply(), "29");
}

/// A consumer joins between `forward` and `publish`.
#[test]
fn a_consumer_that_joins_before_publish_is_detected() {
    let (a, b) = (Place::new(), Place::new());
    let first = a.producer(|it| it.history(1));
    let mut middle = Middle::new(&a.pool(), &b.pool());
    publish(&first, 1, SIZE);
    let frame = middle.consumer.receive(Some(HANG)).unwrap();
    let parts = middle
        .producer
        .forward(&frame, FrameParts::All)
        .expect("no consumer is there");
    let mut late = joining(&b.pool())
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    let mut attachments = Attachments::new();
    attachments.set("a", "b");
    let room = parts.room() + attachments.encoded_len();
    let mut lease = middle
        .producer
        .acquire(SlotSpec::new(1).attachments(room))
        .unwrap();
    lease.set_parts(parts);
    let meta = FrameMeta::default().attachments(attachments);
    match lease.publish(meta) {
        // The consumer has already joined the first pool.
        Ok(_) => assert_eq!(bytes_of(&late.receive(Some(HANG)).unwrap()).len(), SIZE),
        Err(failure) => assert!(matches!(failure.error, PublishError::NotReached)),
    }
}

/// The first pool does not answer, so its frame cannot be taken.
#[test]
fn a_stream_ends_while_a_consumer_joins_the_first_pool() {
    let (a, b) = (Place::new(), Place::new());
    let (entered, is_blocked) = channel();
    let (unblock, may_go_on) = channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let first = Producer::builder(a.pool()).on_event(move |event| {
        if let PoolEvent::Disconnected { .. } = event {
            let _ = entered.send(());
            let _ = may_go_on.lock().unwrap().recv();
        }
    });
    let first = first.build().unwrap();
    // Dropped before the producer, whose drop waits for the callback.
    let _unblock = unblock;
    let Middle {
        mut consumer,
        producer,
    } = Middle::new(&a.pool(), &b.pool());
    let mut last = joining(&b.pool()).connect().unwrap();
    publish(&first, 1, SIZE);
    let frame = consumer.receive(Some(HANG)).unwrap();
    drop(joining(&a.pool()).connect().unwrap());
    is_blocked.recv_timeout(HANG).unwrap();
    let parts = producer.forward(&frame, FrameParts::All).unwrap();
    publish_parts(&producer, parts, FrameMeta::default()).unwrap();
    producer.set_eos(true);
    drop(producer);
    let end = last.receive(Some(HANG));
    assert!(matches!(end, Err(ReceiveError::Eos)), "{end:?}");
    assert_eq!(last.stats().missed, 1);
}
