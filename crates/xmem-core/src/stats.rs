// SPDX-License-Identifier: MPL-2.0

//! Figures of a pool and its consumers.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::delivery::Delivery;
use xmem_shm::abi::budget::BudgetLimit;
use xmem_shm::abi::limits::{MAX_CONSUMERS, MAX_NAMED_ENTRIES};

/// The maximum number of devices in figures.
const MAX_DEVICES: usize = 256;
/// The maximum length of names and other texts in figures, in bytes. The values of the sticky state may be longer.
const MAX_TEXT: usize = 512;
/// The maximum of counts and sizes in figures. Sums of them do not overflow.
const MAX_COUNT: u64 = 1 << 50;
/// The maximum of `fps` in figures: the resolution of the times.
const MAX_FPS: f64 = 1e9;

/// A pool as its producer sees it. [`query`](crate::discovery::query) returns it too.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PoolStats {
    /// The pool's name.
    pub pool: String,
    /// The producer's process id, 0 if the process is in a PID namespace that is not visible.
    pub pid: u32,
    /// How the pool treats slow consumers.
    pub delivery: Delivery,
    /// Nanoseconds since the pool was created.
    pub up_ns: u64,
    /// Frames per second over the last two seconds, or over the last two frames if they are further apart. It decreases while
    /// a frame is late.
    pub fps: f64,
    /// Frames published.
    pub published: u64,
    /// Of these, frames that were written directly into their slot.
    pub zero_copy: u64,
    /// Of these, frames that the producer copied into a slot.
    pub copied: u64,
    /// Frames that were not published, because no slot was free.
    pub dropped: u64,
    /// Frames that were copied or dropped because the program that feeds the pool, such as a camera's driver, had few buffers
    /// left.
    pub scarce: u64,
    /// Slots that exist.
    pub slots: u32,
    /// Of these, slots that the producer's side or a consumer holds.
    pub slots_held: u32,
    /// Slots with frames that are kept for readers that have not read them yet
    /// ([`BufferPool::set_ref_count`](crate::BufferPool::set_ref_count)).
    pub unread: u32,
    /// Slots that are set aside for one size ([`BufferPool::preallocate_cpu`](crate::BufferPool::preallocate_cpu)).
    pub set_aside: u32,
    /// The bytes of the slots that are set aside.
    pub set_aside_bytes: u64,
    /// The most slots there may be.
    pub max_slots: u32,
    /// The setting that prevents the pool from granting the requested budgets: [`MaxSlots`](BudgetLimit::MaxSlots) or
    /// [`MaxBytes`](BudgetLimit::MaxBytes), else [`Asked`](BudgetLimit::Asked).
    #[serde(serialize_with = "name_of_limit", deserialize_with = "limit_of_name")]
    pub budget_limit: BudgetLimit,
    /// Regions in use.
    pub regions: u32,
    /// Bytes of all regions that are in use or that a consumer may still have mapped.
    pub bytes: u64,
    /// The CUDA devices that have slots, and how their memory is shared: such as `0 NVIDIA H200 (vmm)`.
    #[serde(deserialize_with = "at_most::<_, _, MAX_DEVICES>")]
    pub devices: Vec<String>,
    /// How many of these bytes are on devices.
    pub device_bytes: u64,
    /// The stream has ended.
    pub eos: bool,
    /// The sticky state's text entries (caps and so on).
    #[serde(deserialize_with = "at_most::<_, _, MAX_NAMED_ENTRIES>")]
    pub sticky: Vec<(String, String)>,
    /// The connected consumers.
    #[serde(deserialize_with = "at_most::<_, _, { MAX_CONSUMERS as usize }>")]
    pub consumers: Vec<ConsumerStats>,
    /// How often a consumer was disconnected because its lease page broke the protocol.
    pub cut_off: u64,
    /// How often a lossless producer stopped waiting for a consumer.
    pub timed_out: u64,
}

/// One consumer as the producer sees it. The consumer itself reports `received`, `missed`, `copied`, `dropped` and
/// `latency_ns`.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ConsumerStats {
    /// Number of the connection in its pool.
    pub id: u64,
    /// Its process id in the PID namespace of the producer; 0 if the process is not visible there.
    pub pid: u32,
    /// Its user; `u32::MAX` if the system does not report it (gVisor before November 2025).
    pub uid: u32,
    /// The name that it connected with.
    pub name: String,
    /// The name of a pool that forwards frames of this pool to the consumer. Empty if it receives
    /// frames of this pool itself.
    pub via: String,
    /// How many slots it may hold at once. The number decreases when consumers connect, and increases when they disconnect.
    pub budget: u32,
    /// Slots it holds.
    pub held: u32,
    /// Frames it received.
    pub received: u64,
    /// Frames that the pool had released before the consumer received them. Events do not count.
    pub missed: u64,
    /// Frames that it left out because it limits its rate ([`ConsumerBuilder::max_rate`](crate::ConsumerBuilder::max_rate)).
    pub skipped: u64,
    /// Frames that it copied because its budget was used up or its downstream needed another layout.
    pub copied: u64,
    /// Frames that it received and dropped, because its budget was used up or it could not use them.
    pub dropped: u64,
    /// Nanoseconds since the oldest frame it holds was published, 0 when it holds none.
    pub oldest_held_age_ns: u64,
    /// Nanoseconds from publish to receive, smoothed over the last frames.
    pub latency_ns: u64,
    /// How it opened the device memory of frames: `vmm`, `legacy`, `same process`, or `none: ` and the reason. Empty
    /// until it uses any.
    pub device: String,
    /// How long a lossless producer has been waiting for this consumer, in nanoseconds. 0 if it does not wait.
    pub waited_for_ns: u64,
    /// It has disconnected, and is listed only while it holds frames.
    pub leaving: bool,
}

impl PoolStats {
    /// Whether a producer can have such figures. They come from another process, and whatever is printed or added up depends on
    /// them.
    pub(crate) fn is_possible(&self) -> bool {
        let counts = [
            self.published,
            self.zero_copy,
            self.copied,
            self.dropped,
            self.scarce,
            self.set_aside_bytes,
            self.bytes,
            self.device_bytes,
            self.cut_off,
            self.timed_out,
        ];
        let keys = self.sticky.iter().map(|(key, _)| key);
        (0.0..=MAX_FPS).contains(&self.fps)
            && counts.iter().all(|count| *count <= MAX_COUNT)
            && are_short(std::iter::once(&self.pool).chain(&self.devices).chain(keys))
            && self.consumers.iter().all(ConsumerStats::is_possible)
    }
}

impl ConsumerStats {
    fn is_possible(&self) -> bool {
        let counts = [
            self.received,
            self.missed,
            self.skipped,
            self.copied,
            self.dropped,
        ];
        counts.iter().all(|count| *count <= MAX_COUNT)
            && are_short([&self.name, &self.via, &self.device].into_iter())
    }
}

fn are_short<'a>(mut texts: impl Iterator<Item = &'a String>) -> bool {
    texts.all(|text| text.len() <= MAX_TEXT)
}

fn name_of_limit<S: Serializer>(limit: &BudgetLimit, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(limit)
}

fn limit_of_name<'de, D: Deserializer<'de>>(from: D) -> Result<BudgetLimit, D::Error> {
    let name = String::deserialize(from)?;
    let limits = [
        BudgetLimit::Asked,
        BudgetLimit::MaxSlots,
        BudgetLimit::MaxBytes,
    ];
    let limit = limits.into_iter().find(|limit| limit.to_string() == name);
    limit.ok_or_else(|| D::Error::custom("no such limit"))
}

/// Reads a list, and fails at the first value above the limit. A list of small values takes far more memory than its text.
fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MOST: usize>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T, const MOST: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for List<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MOST} values")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(value) = from.next_element()? {
                if list.len() == MOST {
                    return Err(A::Error::invalid_length(MOST + 1, &self));
                }
                list.push(value);
            }
            Ok(list)
        }
    }

    from.deserialize_seq(List::<T, MOST>(PhantomData))
}

/// A consumer's own figures.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveStats {
    /// Frames received.
    pub received: u64,
    /// Frames that the pool had released before the consumer received them. Events do not count.
    pub missed: u64,
    /// Frames left out because of [`ConsumerBuilder::max_rate`](crate::ConsumerBuilder::max_rate).
    pub skipped: u64,
    /// Slots held.
    pub held: u32,
    /// How many slots may be held at once.
    pub budget: u32,
    /// The setting that limits the budget.
    pub budget_limit: BudgetLimit,
    /// Nanoseconds from publish to receive, smoothed over the last frames.
    pub latency_ns: u64,
}

/// [`ConsumerStats::device`], once it is known.
pub(crate) fn device_words(works: bool, how: &str) -> String {
    if works {
        how.to_owned()
    } else {
        format!("none: {how}")
    }
}
