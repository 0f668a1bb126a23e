// SPDX-License-Identifier: MPL-2.0

//! The messages of the control socket. One packet each, small, and never trusted.

use crate::abi::limits::MAX_REQUEST;
use crate::abi::meta::Text;
use crate::abi::start_from::StartFrom;

/// The first bytes of a hello.
const MAGIC: [u8; 8] = *b"xmem-hi\0";
/// The longest message in bytes. Receivers give one byte more, so that longer ones show.
pub const MAX_MESSAGE: usize = 512;
/// More messages than fit into a socket's queue.
pub const MAX_QUEUED: usize = 1024;

/// From a consumer to its producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToProducer {
    /// The first message of a consumer that wants frames.
    Join {
        /// The sender's [`VERSION`](crate::abi::layout::VERSION).
        version: u32,
        /// How many frames the consumer wants to hold at a time.
        max_held: u32,
        /// The frame to start with.
        start_from: StartFrom,
        /// The consumer's name, for statistics.
        name: Text<64>,
        /// It takes no frames here, it only holds some that a pool of this name passes on. Empty: it takes frames.
        via: Text<64>,
    },
    /// The first message of a process that only asks for statistics. `Stats` answers it and ends the connection.
    Query {
        /// The sender's [`VERSION`](crate::abi::layout::VERSION).
        version: u32,
    },
    /// "Send me this region."
    GetRegion {
        /// The number of the region.
        id: u32,
    },
    /// "Send me this version of the sticky state."
    GetSticky {
        /// The version.
        version: u64,
    },
    /// "I gave something back that you wait for."
    Bell,
    /// "I take no more frames." Held frames stay held.
    Leave,
    /// "I want to write": a new slot (pools with `peers_may_write`).
    AcquireSlot {
        /// A number that comes back with the answer.
        request: u32,
        /// The size of the slot in bytes.
        size: u64,
    },
    /// "I want to write this slot", granted if it is not held.
    AcquireIndex {
        /// A number that comes back with the answer.
        request: u32,
        /// The number of the slot.
        slot: u32,
    },
    /// "I am done writing": publish the slot, or take it back.
    Written {
        /// A number that comes back with the answer.
        request: u32,
        /// The number of the slot.
        slot: u32,
        /// The slot's generation, from `Granted`.
        generation: u32,
        /// Whether to publish the slot. If not, it is free again.
        publish: bool,
        /// Keep the slot until so many consumers took and released it.
        keep: u32,
        /// Bytes that were written.
        size: u64,
    },
    /// A request to the program that feeds the pool, such as for a key frame.
    Request {
        /// The name of the request.
        name: Text<32>,
        /// At most [`MAX_REQUEST`] bytes, which xmem does not read.
        data: Vec<u8>,
    },
    /// "I can hold frames in this pool myself", or "I cannot".
    Reaches {
        /// The pool of origin.
        pool_id: u64,
        /// Whether the consumer can hold frames there.
        yes: bool,
    },
    /// "Where is this pool, that a frame comes from?"
    GetOrigin {
        /// The pool of origin.
        pool_id: u64,
    },
    /// "I can use the device memory of your frames in this way", or "I cannot, and why".
    Device {
        /// Whether the consumer can use it.
        works: bool,
        /// The way, or the reason why not, in words.
        how: Text<256>,
    },
    /// "Your events cannot be opened here: mark frames when devices are done with them."
    MarkReady,
}

/// From a producer to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToConsumer {
    /// The answer to `Join`. With two descriptors: control memory, lease page.
    Welcome {
        /// The producer's [`VERSION`](crate::abi::layout::VERSION).
        version: u32,
        /// The number of this consumer in the pool.
        id: u64,
        /// How many frames the consumer may hold at a time.
        budget: u32,
        /// Whether consumers may write slots.
        peers_may_write: bool,
        /// The name of the pool.
        pool: Text<128>,
        /// How many `Origin` messages follow. If there are any, `Arrived` comes after the consumer has answered each with
        /// `Reaches`.
        origins: u32,
    },
    /// The answer to a first message that is not accepted.
    Refused {
        /// The producer's [`VERSION`](crate::abi::layout::VERSION).
        version: u32,
        /// Why, in words.
        reason: Text<256>,
    },
    /// With a descriptor, unless the region has a name; and with another descriptor, if it has device memory that has one.
    Region {
        /// The number of the region.
        id: u32,
        /// Its size in bytes.
        len: u64,
        /// The kind of its memory.
        kind: RegionKind,
        /// The name of its segment (`PosixShm`); empty for other kinds.
        name: Text<128>,
    },
    /// There is no such region (any more).
    NoRegion {
        /// The number of the region.
        id: u32,
    },
    /// With a descriptor: the sticky state.
    Sticky {
        /// Its version.
        version: u64,
    },
    /// That version is gone.
    NoSticky {
        /// The version that was asked for.
        version: u64,
    },
    /// With a descriptor: statistics as JSON.
    Stats,
    /// The right to write a slot, or the news that it is published.
    Granted {
        /// The number in the request.
        request: u32,
        /// The number of the slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
        /// The region that the slot lies in.
        region: u32,
        /// First byte of the slot in its region.
        offset: u64,
        /// Size of the slot in bytes.
        len: u64,
    },
    /// No right to write.
    Denied {
        /// The number in the request.
        request: u32,
        /// Why, in words.
        reason: Text<256>,
    },
    /// "Frames may come from this pool: join it, to hold them there."
    Origin {
        /// The pool of origin.
        pool_id: u64,
        /// The path of its socket.
        path: Text<128>,
    },
    /// No frames come from that pool any more.
    NoOrigin {
        /// The pool of origin.
        pool_id: u64,
    },
    /// The consumer has its place in the stream now.
    Arrived,
}

/// The kind of a region's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionKind {
    /// A sealed memfd. Its descriptor comes with the message.
    Memfd,
    /// A POSIX segment, opened by its name.
    PosixShm,
    /// Memory from outside of xmem, with parts of frames in it and no slots.
    Imported,
    /// The host half of a region whose frames lie on a device.
    Cuda,
}

struct Out(Vec<u8>);

impl Out {
    fn new(tag: u8) -> Self {
        Self(vec![tag])
    }
    fn u8(mut self, v: u8) -> Self {
        self.0.push(v);
        self
    }
    fn u32(mut self, v: u32) -> Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }
    fn u64(mut self, v: u64) -> Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }
    fn bytes(mut self, v: &[u8]) -> Self {
        self.0.extend_from_slice(v);
        self
    }
}

struct In<'a>(&'a [u8]);

impl In<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[v]| v)
    }
    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn text<const N: usize>(&mut self) -> Option<Text<N>> {
        self.array().map(Text::from_bytes)
    }
    fn rest(&mut self, max: usize) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.0);
        (rest.len() <= max).then(|| rest.to_vec())
    }
    /// A message has an end, and nothing after it.
    fn end<T>(self, message: T) -> Option<T> {
        self.0.is_empty().then_some(message)
    }
}

impl ToProducer {
    /// The message as a packet, at most [`MAX_MESSAGE`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            // The first messages of a connection begin with the magic and the version, in every version.
            Self::Join {
                version,
                max_held,
                start_from,
                name,
                via,
            } => Out::new(1)
                .bytes(&MAGIC)
                .u32(*version)
                .u32(*max_held)
                .u8(*start_from as u8)
                .bytes(name.as_bytes())
                .bytes(via.as_bytes()),
            Self::Query { version } => Out::new(2).bytes(&MAGIC).u32(*version),
            Self::GetRegion { id } => Out::new(3).u32(*id),
            Self::GetSticky { version } => Out::new(4).u64(*version),
            Self::Bell => Out::new(5),
            Self::Leave => Out::new(6),
            Self::AcquireSlot { request, size } => Out::new(7).u32(*request).u64(*size),
            Self::AcquireIndex { request, slot } => Out::new(8).u32(*request).u32(*slot),
            Self::Written {
                request,
                slot,
                generation,
                publish,
                keep,
                size,
            } => Out::new(9)
                .u32(*request)
                .u32(*slot)
                .u32(*generation)
                .u8((*publish).into())
                .u32(*keep)
                .u64(*size),
            Self::Request { name, data } => Out::new(10).bytes(name.as_bytes()).bytes(data),
            Self::Reaches { pool_id, yes } => Out::new(11).u64(*pool_id).u8((*yes).into()),
            Self::GetOrigin { pool_id } => Out::new(12).u64(*pool_id),
            Self::Device { works, how } => Out::new(13).u8((*works).into()).bytes(how.as_bytes()),
            Self::MarkReady => Out::new(14),
        }
        .0
    }

    /// Decodes a packet that another process sent. `None`: it is not valid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut m = In(bytes);
        let message = match m.u8()? {
            1 => {
                if m.array()? != MAGIC {
                    return None;
                }
                Self::Join {
                    version: m.u32()?,
                    max_held: m.u32()?,
                    start_from: StartFrom::from_code(m.u8()?)?,
                    name: m.text()?,
                    via: m.text()?,
                }
            }
            2 => {
                if m.array()? != MAGIC {
                    return None;
                }
                Self::Query { version: m.u32()? }
            }
            3 => Self::GetRegion { id: m.u32()? },
            4 => Self::GetSticky { version: m.u64()? },
            5 => Self::Bell,
            6 => Self::Leave,
            7 => Self::AcquireSlot {
                request: m.u32()?,
                size: m.u64()?,
            },
            8 => Self::AcquireIndex {
                request: m.u32()?,
                slot: m.u32()?,
            },
            9 => Self::Written {
                request: m.u32()?,
                slot: m.u32()?,
                generation: m.u32()?,
                publish: m.bool()?,
                keep: m.u32()?,
                size: m.u64()?,
            },
            10 => Self::Request {
                name: m.text()?,
                data: m.rest(MAX_REQUEST)?,
            },
            11 => Self::Reaches {
                pool_id: m.u64()?,
                yes: m.bool()?,
            },
            12 => Self::GetOrigin { pool_id: m.u64()? },
            13 => Self::Device {
                works: m.bool()?,
                how: m.text()?,
            },
            14 => Self::MarkReady,
            _ => return None,
        };
        m.end(message)
    }

    /// The protocol version of a first message, whatever the rest of it is.
    pub fn version_of(bytes: &[u8]) -> Option<u32> {
        let mut m = In(bytes);
        matches!(m.u8()?, 1 | 2).then_some(())?;
        (m.array()? == MAGIC).then_some(())?;
        m.u32()
    }
}

impl ToConsumer {
    /// The message as a packet, at most [`MAX_MESSAGE`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome {
                version,
                id,
                budget,
                peers_may_write,
                pool,
                origins,
            } => Out::new(1)
                .u32(*version)
                .u64(*id)
                .u32(*budget)
                .u8((*peers_may_write).into())
                .bytes(pool.as_bytes())
                .u32(*origins),
            Self::Refused { version, reason } => Out::new(2).u32(*version).bytes(reason.as_bytes()),
            Self::Region {
                id,
                len,
                kind,
                name,
            } => Out::new(3)
                .u32(*id)
                .u64(*len)
                .u8(match kind {
                    RegionKind::Memfd => 0,
                    RegionKind::PosixShm => 1,
                    RegionKind::Imported => 3,
                    RegionKind::Cuda => 4,
                })
                .bytes(name.as_bytes())
                // Version 5 has this field, and nothing uses it.
                .u64(0),
            Self::NoRegion { id } => Out::new(4).u32(*id),
            Self::Sticky { version } => Out::new(5).u64(*version),
            Self::NoSticky { version } => Out::new(6).u64(*version),
            Self::Stats => Out::new(7),
            Self::Granted {
                request,
                slot,
                generation,
                region,
                offset,
                len,
            } => Out::new(8)
                .u32(*request)
                .u32(*slot)
                .u32(*generation)
                .u32(*region)
                .u64(*offset)
                .u64(*len),
            Self::Denied { request, reason } => Out::new(9).u32(*request).bytes(reason.as_bytes()),
            Self::Origin { pool_id, path } => Out::new(10).u64(*pool_id).bytes(path.as_bytes()),
            Self::NoOrigin { pool_id } => Out::new(11).u64(*pool_id),
            Self::Arrived => Out::new(12),
        }
        .0
    }

    /// Decodes a packet that another process sent. `None`: it is not valid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut m = In(bytes);
        let message = match m.u8()? {
            1 => Self::Welcome {
                version: m.u32()?,
                id: m.u64()?,
                budget: m.u32()?,
                peers_may_write: m.bool()?,
                pool: m.text()?,
                origins: m.u32()?,
            },
            2 => Self::Refused {
                version: m.u32()?,
                reason: m.text()?,
            },
            3 => {
                let region = Self::Region {
                    id: m.u32()?,
                    len: m.u64()?,
                    kind: match m.u8()? {
                        0 => RegionKind::Memfd,
                        1 => RegionKind::PosixShm,
                        3 => RegionKind::Imported,
                        4 => RegionKind::Cuda,
                        _ => return None,
                    },
                    name: m.text()?,
                };
                m.u64()?;
                region
            }
            4 => Self::NoRegion { id: m.u32()? },
            5 => Self::Sticky { version: m.u64()? },
            6 => Self::NoSticky { version: m.u64()? },
            7 => Self::Stats,
            8 => Self::Granted {
                request: m.u32()?,
                slot: m.u32()?,
                generation: m.u32()?,
                region: m.u32()?,
                offset: m.u64()?,
                len: m.u64()?,
            },
            9 => Self::Denied {
                request: m.u32()?,
                reason: m.text()?,
            },
            10 => Self::Origin {
                pool_id: m.u64()?,
                path: m.text()?,
            },
            11 => Self::NoOrigin { pool_id: m.u64()? },
            12 => Self::Arrived,
            _ => return None,
        };
        m.end(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn to_producer() -> impl Strategy<Value = ToProducer> {
        prop_oneof![
            (any::<u32>(), any::<u32>(), 0..3u8, "[ -~]{0,80}").prop_map(
                |(version, max_held, start, name)| {
                    ToProducer::Join {
                        version,
                        max_held,
                        start_from: StartFrom::from_code(start).unwrap(),
                        name: Text::new(&name),
                        via: Text::new(&name[..name.len() / 2]),
                    }
                }
            ),
            any::<u32>().prop_map(|version| ToProducer::Query { version }),
            any::<u32>().prop_map(|id| ToProducer::GetRegion { id }),
            any::<u64>().prop_map(|version| ToProducer::GetSticky { version }),
            any::<(u64, bool)>().prop_map(|(pool_id, yes)| ToProducer::Reaches { pool_id, yes }),
            any::<u64>().prop_map(|pool_id| ToProducer::GetOrigin { pool_id }),
            (any::<bool>(), "[ -~]{0,300}").prop_map(|(works, how)| ToProducer::Device {
                works,
                how: Text::new(&how),
            }),
            Just(ToProducer::Bell),
            Just(ToProducer::Leave),
            Just(ToProducer::MarkReady),
            any::<(u32, u64)>()
                .prop_map(|(request, size)| ToProducer::AcquireSlot { request, size }),
            any::<(u32, u32)>()
                .prop_map(|(request, slot)| ToProducer::AcquireIndex { request, slot }),
            (
                any::<u32>(),
                any::<u32>(),
                any::<bool>(),
                any::<u32>(),
                any::<u64>()
            )
                .prop_map(|(slot, generation, publish, keep, size)| {
                    ToProducer::Written {
                        request: !slot,
                        slot,
                        generation,
                        publish,
                        keep,
                        size,
                    }
                }),
        ]
    }

    proptest! {
        #[test]
        fn messages_come_back(message in to_producer()) {
            let bytes = message.encode();
            prop_assert!(bytes.len() <= MAX_MESSAGE);
            prop_assert_eq!(ToProducer::decode(&bytes), Some(message));
            prop_assert_eq!(ToProducer::decode(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = ToProducer::decode(&bytes);
            let _ = ToProducer::version_of(&bytes);
            let _ = ToConsumer::decode(&bytes);
        }
    }

    #[test]
    fn answers_come_back() {
        for message in [
            ToConsumer::Welcome {
                version: 1,
                id: 2,
                budget: 3,
                peers_may_write: true,
                pool: "p".into(),
                origins: 2,
            },
            ToConsumer::Refused {
                version: 1,
                reason: "no".into(),
            },
            ToConsumer::Region {
                id: 1,
                len: 2,
                kind: RegionKind::PosixShm,
                name: "/x".into(),
            },
            ToConsumer::NoRegion { id: 1 },
            ToConsumer::Sticky { version: 1 },
            ToConsumer::NoSticky { version: 1 },
            ToConsumer::Stats,
            ToConsumer::Granted {
                request: 9,
                slot: 1,
                generation: 2,
                region: 3,
                offset: 4,
                len: 5,
            },
            ToConsumer::Denied {
                request: 3,
                reason: "no".into(),
            },
            ToConsumer::Origin {
                pool_id: 4,
                path: "/run/p.sock".into(),
            },
            ToConsumer::NoOrigin { pool_id: 4 },
            ToConsumer::Arrived,
        ] {
            let bytes = message.encode();
            assert!(bytes.len() <= MAX_MESSAGE);
            assert_eq!(ToConsumer::decode(&bytes), Some(message));
        }
    }
}
