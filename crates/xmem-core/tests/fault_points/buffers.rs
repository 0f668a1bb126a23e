// SPDX-License-Identifier: MPL-2.0

//! Kills each process of a buffer pool at each fault point of each step, and after the step.
//!
//! A step is executed once to find its points, and once for each point.

use std::ops::RangeInclusive;

use xmem_core::fault::Point;

use crate::part::{LEN, assert_whole, open};
use crate::start;
use crate::support::child::Child;
use crate::support::victim::*;
use crate::support::*;
use crate::table::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Writer,
    Reader,
}
use Side::{Reader, Writer};

/// A step, described by a line of the tables below.
struct Step {
    /// The lines before the step, and the step. A line is `W` or `R` for the process, a command of `part.rs`, and a count or `old`
    /// for the previous buffer. A line that ends with `&` is still in progress when the next line begins.
    before: &'static str,
    step: &'static str,
    /// The points at which the process is killed: at least these.
    expected: Vec<(Side, &'static [Point])>,
    /// The number of remaining reads after the reader was killed during the step. The first number applies if it was killed after
    /// the step. `None`: the writer has closed, or the buffer is empty.
    left: Option<RangeInclusive<u32>>,
}

struct Scene {
    place: Place,
    writer: Child,
    reader: Child,
    index: u32,
    old: u32,
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        let mut children = [(); 2].map(|()| start("take-part", Kind::Live, &place));
        for child in &mut children {
            wait_for_reply(child, "ready");
        }
        let [writer, reader] = children;
        Self {
            place,
            writer,
            reader,
            index: 0,
            old: 0,
        }
    }

    fn child(&mut self, side: Side) -> &mut Child {
        match side {
            Writer => &mut self.writer,
            Reader => &mut self.reader,
        }
    }

    /// Executes the lines. Returns when all are done, or the process that may die has died.
    #[track_caller]
    fn run(&mut self, lines: &str, mortal: Option<Side>) {
        let mut later = Vec::new();
        for line in lines
            .split(';')
            .map(str::trim)
            .filter(|line| !line.is_empty())
        {
            let mut words: Vec<&str> = line.split(' ').collect();
            let is_later = words.last() == Some(&"&") && words.pop().is_some();
            let side = if words[0] == "W" { Writer } else { Reader };
            let (what, argument) = (words[1], words.get(2).copied().unwrap_or("0"));
            let (index, count) = match argument {
                "old" => (self.old, "0"),
                count => (self.index, count),
            };
            if what == "joined" {
                self.wait_for_reader(mortal);
                continue;
            }
            let was_there = self
                .child(side)
                .try_send(&format!("{what} {index} {count}"));
            assert!(was_there || mortal == Some(side), "{line}: it is gone");
            if is_later {
                later.push((side, what));
            } else if !self.end(side, what, mortal) {
                break;
            }
        }
        for (side, what) in later {
            self.end(side, what, mortal);
        }
    }

    /// Waits until the writer has the reader in its list, or one of them died.
    #[track_caller]
    fn wait_for_reader(&mut self, mortal: Option<Side>) {
        eventually("it joined", || {
            if mortal.is_some_and(|mortal| self.child(mortal).has_ended()) {
                return true;
            }
            self.writer.try_send("readers 0 0")
                && self
                    .writer
                    .next_line()
                    .is_none_or(|reply| reply == "done 1")
        });
    }

    /// Waits for the end of a command. Returns whether the process is alive.
    #[track_caller]
    fn end(&mut self, side: Side, what: &str, mortal: Option<Side>) -> bool {
        let Some(reply) = self.child(side).next_line() else {
            assert_eq!(mortal, Some(side), "{what}: it ended");
            return false;
        };
        let Some(answer) = reply.strip_prefix("done ") else {
            // A matching reply of the other process.
            assert!(
                mortal.is_some_and(|mortal| mortal != side),
                "{what}: {reply}"
            );
            return true;
        };
        if (side, what) == (Writer, "acquire") {
            (self.old, self.index) = (self.index, answer.parse().unwrap());
        }
        true
    }

    #[track_caller]
    fn ask(&mut self, side: Side, what: &str, index: u32) -> u32 {
        done(self.child(side), &format!("{what} {index} 0"))
    }

    /// After a death: asserts that the other process continues, together with a third one, and that no resources are left.
    #[track_caller]
    fn assert_others_go_on(mut self, dead: Side, left: Option<RangeInclusive<u32>>) {
        let index = self.index;
        let third = open(&self.place.pool());
        if dead == Writer {
            // Its buffers, and new ones, are complete.
            self.ask(Reader, "check", index);
        } else {
            self.ask(Writer, "alone", 0);
            // While a process has a buffer, others can get it, with any count.
            self.ask(Writer, "drop-all", index);
            if let Some(left) = left {
                let rest = self.ask(Writer, "rest", index);
                assert!(left.contains(&rest), "{rest} reads are left, not {left:?}");
            }
            self.ask(Writer, "fill", 0);
        }
        let other = if dead == Writer { Reader } else { Writer };
        // Each process reads what the other writes.
        let mut buffer = third.acquire_cpu(LEN).unwrap();
        buffer.as_cpu_slice_mut().unwrap().fill(7);
        let index = buffer.forget().unwrap();
        self.ask(other, "get", index);
        self.ask(other, "drop", 0);
        third.wait_until_read(Some(HANG)).unwrap();
        let index = self.ask(other, "acquire", 0);
        self.ask(other, "forget", 0);
        assert_whole(third.get(index).unwrap().as_cpu_slice().unwrap());
        drop(third);
        let child = self.child(other);
        child.send("end");
        assert!(child.ends());
        self.place.assert_clean();
    }
}

impl Step {
    /// The points that a process passes in this step, and how often.
    fn points(&self, victim: Side) -> Vec<(Point, u32)> {
        let mut scene = Scene::new();
        scene.run(self.before, None);
        record(scene.child(victim));
        scene.run(self.step, None);
        passed(scene.child(victim))
    }

    fn kill_at(&self, victim: Side, point: Point, arrival: u32) {
        let is_expected = arrival == 1 && self.expects(victim, point);
        let prepare = || {
            let mut scene = Scene::new();
            scene.run(self.before, None);
            scene
        };
        let scene = kill_at(
            &format!("{}: the {victim:?}", self.step),
            (point, arrival, is_expected),
            prepare,
            |scene| scene.child(victim),
            |scene| scene.run(self.step, Some(victim)),
        );
        if let Some(scene) = scene {
            scene.assert_others_go_on(victim, self.left.clone());
        }
    }

    fn expects(&self, victim: Side, point: Point) -> bool {
        let mut expected = self.expected.iter();
        expected.any(|(side, points)| *side == victim && points.contains(&point))
    }

    fn kill_after(&self, victim: Side) {
        let mut scene = Scene::new();
        scene.run(self.before, None);
        scene.run(self.step, None);
        scene.child(victim).kill();
        let left = self.left.as_ref().map(|left| *left.start()..=*left.start());
        scene.assert_others_go_on(victim, left);
    }

    fn kill_each(&self) {
        for victim in [Writer, Reader] {
            let points = self.points(victim);
            let expected = self.expected.iter().filter(|(side, _)| *side == victim);
            for point in expected.flat_map(|(_, points)| *points) {
                let is_passed = points.iter().any(|(passed, _)| passed == point);
                assert!(is_passed, "{}: {point:?} is not in {points:?}", self.step);
            }
            for (point, arrivals) in points {
                for arrival in 1..=arrivals.min(2) {
                    self.kill_at(victim, point, arrival);
                }
            }
            self.kill_after(victim);
        }
    }

    fn parse(row: &'static str) -> Self {
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let [before, step, expected, left] = columns[..] else {
            panic!("{row:?} has not four columns");
        };
        let words: Vec<&str> = expected.split_whitespace().collect();
        let expected = words
            .chunks(2)
            .map(|words| (side(words[0]), points(words[1])));
        let left = (left != "-").then(|| {
            let (first, last) = left.split_once(' ').unwrap_or((left, left));
            first.parse().unwrap()..=last.parse().unwrap()
        });
        Self {
            before,
            step,
            expected: expected.collect(),
            left,
        }
    }
}

fn side(word: &str) -> Side {
    match word {
        "W" => Writer,
        "R" => Reader,
        other => panic!("no process {other:?}"),
    }
}

fn points(name: &str) -> &'static [Point] {
    match name {
        "make" => &[
            Point::LockTaken,
            Point::SocketBound,
            Point::SocketListening,
            Point::ThreadStarted,
            Point::RegionMade,
            Point::RegionsListed,
        ],
        "claim" => &[
            Point::ClaimLooked,
            Point::ClaimAnnounced,
            Point::ClaimGained,
        ],
        "abandon" => &[Point::SlotAbandoned],
        "publish" => &[
            Point::EntryStamped,
            Point::EntryFilled,
            Point::EntryWritten,
            Point::SlotPublished,
            Point::HeadMoved,
        ],
        "ask" => &[Point::RingAsked],
        "finalize" => &[Point::FrameFinalized],
        "admit" => &[
            Point::Accepted,
            Point::Admitted,
            Point::LeasePageMade,
            Point::ConsumerListed,
        ],
        "join" => &[
            Point::Connected,
            Point::Answered,
            Point::ControlMapped,
            Point::PageMapped,
            Point::SessionStarted,
        ],
        "hold" => &[Point::HoldAnnounced, Point::HoldGained, Point::TakenStored],
        "read" => &[Point::ReadCounted],
        "release" => &[Point::ReleaseCleared],
        "leave" => &[Point::LeaveMarked, Point::LeaveDone],
        "close" => &[
            Point::ClosedMarked,
            Point::SocketRemoved,
            Point::LockRemoved,
        ],
        other => panic!("no points {other:?}"),
    }
}

fn kill_each(table: &'static str) {
    let rows = table.lines().filter(|row| !row.trim().is_empty());
    rows.for_each(|row| Step::parse(row).kill_each());
}

#[test]
fn steps_before_a_buffer_is_published() {
    kill_each(
        "
                                           | W preallocate              | W make    | -
        W preallocate                      | W give-up                  |           | -
                                           | W acquire                  | W make    | 0
        W preallocate                      | W acquire                  | W claim   | 0
        W acquire                          | W count 3                  |           | 0
        W acquire                          | W drop                     | W abandon | 0
        W acquire; W count 2               | W drop                     | W publish | 1
        W acquire; W count 2               | W forget                   | W publish | 2
        W acquire; R connect               | W forget-to                | W publish | 0
        W acquire                          | W forget-timeout; W wait   | W publish | 0
        W acquire; R connect               | W forget-timeout; W wait   | W publish | 0
        W acquire; R connect; W count 2    | W forget                   | W publish | 2
        ",
    );
}

#[test]
fn steps_after_a_buffer_is_published() {
    kill_each(
        "
        W acquire; W forget                                | W count 3     | W ask      | 3
        W acquire; W count 2; W forget                     | W get         |            | 1
        W acquire; W count 2; W forget; W get              | W clone       |            | 1
        W acquire; W count 2; W forget; W get              | W drop        |            | 1
        W acquire; W forget; W get                         | W drop        | W finalize | 0
        W acquire; W count 2; W forget; W get              | W forget      |            | 1
        W acquire; W count 2; W forget; W get; W forget    | W release     |            | 1
        W acquire; W count 2; W forget                     | W add-ref     |            | 2
        W acquire; W count 2; W forget; W add-ref          | W release     |            | 2
        W acquire; W count 2; W forget                     | W edit        | W claim    | 0
        W acquire; W count 3; W forget; R get; R drop      | W edit        | W claim    | 0
        W acquire; W count 2; W forget; W edit             | W forget      | W publish  | 2
        W acquire; W count 2; W forget; W edit             | W drop        | W publish  | 1
        W acquire; W forget; W edit                        | W drop        | W abandon  | 0
        W acquire; W forget                                | W discard     | W abandon  | 0
        W acquire; W count 2; W forget; W get              | W copy        | W claim    | 1
        W acquire; W forget; W get; W drop; W acquire; W forget | W stale old |         | 1
        W acquire; W forget; R get                         | W close       | W close    | -
        W acquire; W forget                                | W close       | W close    | -
        ",
    );
}

#[test]
fn steps_of_a_reader() {
    kill_each(
        "
        W acquire; W forget                              | R connect; W joined     | W admit R join    | 1
        W acquire; W count 2; W forget                   | R get; W joined         | W admit R hold R read | 1 2
        W acquire; W count 2; R connect; W forget        | R get                   | R hold R read     | 1 2
        W acquire; W count 3; W forget; R get            | R get                   | R read            | 1 2
        W acquire; W count 2; W forget; R get            | R clone                 |                   | 1
        W acquire; W count 2; W forget; R get            | R drop                  | R release         | 1
        W acquire; W forget; R get                       | R drop; W wait          | R release         | 0
        W acquire; R connect; W forget-to                | R get; R drop; W wait   | R read R release  | 0
        W acquire; W count 2; W forget; R get            | R forget                |                   | 1
        W acquire; W count 2; W forget; R get; R forget  | R release               | R release         | 1
        W acquire; W count 2; W forget; R connect        | R add-ref               | R hold            | 2
        W acquire; W count 2; W forget; R add-ref        | R release               | R release         | 2
        W acquire; W forget; R get; R drop; W wait; W acquire; W forget | R stale old |                | 1
        W acquire; W forget; R get                       | W wait &; R drop        | R release         | 0
        W acquire; W forget; R get                       | R close; W wait         | R leave           | 0
        ",
    );
}

#[test]
fn steps_of_a_reader_that_copies() {
    kill_each(
        "
        W acquire; W count 2; W forget; R connect       | R edit      | R hold R make R read | 1 2
        W acquire; W count 2; W forget; R edit          | R forget    | R publish      | 1
        W acquire; W count 2; W forget; R edit          | R drop      | R abandon      | 1
        W acquire; W count 2; W forget; R get           | R copy      | R make         | 1
        W acquire; W count 2; W forget; R get; R copy   | R forget    | R publish      | 1
        ",
    );
}
