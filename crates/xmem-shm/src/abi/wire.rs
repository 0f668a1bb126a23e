// SPDX-License-Identifier: MPL-2.0

//! The messages of the control socket. Each is one small packet. The receiver does not trust its content.
//!
//! The beginning of a first message and all of `Refused` are the same in every version of the format, so that processes of
//! different versions can tell which of them is older.

use crate::abi::codec::Field;
use crate::abi::limits::MAX_REQUEST;
use crate::abi::text::Text;

/// The first bytes of a first message.
const MAGIC: [u8; 8] = *b"xmem-hi\0";
/// The maximum size of a message in bytes. Receivers use a buffer with one more byte, to detect longer ones.
pub const MAX_MESSAGE: usize = 512;
/// More messages than a socket's queue can hold.
pub const MAX_QUEUED: usize = 1024;

/// Declares an enum of messages. A message begins with its number in one byte. Some have fixed bytes after that. Then its
/// fields follow in order.
macro_rules! messages {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$about:meta])* $number:literal $(+ $fixed:ident)? = $message:ident $({
            $($(#[$what:meta])* $field:ident: $type:ty,)*
        })?,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $($(#[$about])* $message $({ $($(#[$what])* $field: $type,)* })?,)*
        }

        impl $name {
            /// The message as a packet, at most [`MAX_MESSAGE`] bytes.
            pub fn encode(&self) -> Vec<u8> {
                let mut packet = Vec::new();
                match self {
                    $(Self::$message $({ $($field,)* })? => {
                        packet.push($number);
                        $($fixed.put(&mut packet);)?
                        $($($field.put(&mut packet);)*)?
                    })*
                }
                packet
            }

            /// Decodes a packet that another process sent. `None`: it is invalid.
            pub fn decode(packet: &[u8]) -> Option<Self> {
                let (number, mut rest) = packet.split_first()?;
                let message = match *number {
                    $($number => {
                        $(rest = rest.strip_prefix(&$fixed)?;)?
                        Self::$message $({ $($field: Field::take(&mut rest)?,)* })?
                    })*
                    _ => return None,
                };
                // Nothing may follow the message.
                rest.is_empty().then_some(message)
            }
        }
    };
}

messages! {
    /// From a consumer to its producer.
    ToProducer {
        /// The first message of a consumer that wants frames.
        1 + MAGIC = Join {
            /// The sender's [`VERSION`](crate::abi::layout::VERSION).
            version: u32,
            /// The requested budget.
            max_held: u32,
            /// The first frame.
            start_from: StartFrom,
            /// The consumer's name, for figures.
            name: Text<64>,
            /// If not empty, the sender takes no frames. It only holds frames that the pool with this name forwards.
            via: Text<64>,
        },
        /// The first message of a process that only queries figures. `Stats` answers it and ends the connection.
        2 + MAGIC = Query {
            /// The sender's [`VERSION`](crate::abi::layout::VERSION).
            version: u32,
        },
        /// Requests a region.
        3 = GetRegion {
            /// The number of the region.
            id: u32,
        },
        /// Requests a version of the sticky state.
        4 = GetSticky {
            /// The version.
            version: u64,
        },
        /// The consumer has released something that the producer waits for.
        5 = Bell,
        /// The consumer takes no more frames. Held frames stay held.
        6 = Leave,
        /// A request to the program that feeds the pool, such as for a key frame.
        7 = Request {
            /// The name of the request.
            name: Text<32>,
            /// At most [`MAX_REQUEST`] bytes, which xmem does not interpret.
            data: Vec<u8>,
        },
        /// States whether the consumer can hold frames in a pool of origin.
        8 = Reaches {
            /// The pool of origin.
            pool_id: u64,
            /// Whether the consumer can hold frames there.
            yes: bool,
        },
        /// Requests the path of a pool of origin.
        9 = GetOrigin {
            /// The pool of origin.
            pool_id: u64,
        },
        /// States how the consumer opened device memory, or why it cannot.
        10 = Device {
            /// Whether it can use the memory.
            works: bool,
            /// The way, or the reason for the failure, as text.
            how: Text<256>,
        },
        /// The producer's events cannot be opened: requests that it marks frames whose work has ended.
        11 = MarkReady,
        /// Requests the DMA buffer of a slot.
        12 = GetDmabuf {
            /// The region of the slot.
            region: u32,
            /// A byte of the slot, by its position in the region.
            offset: u64,
        },
    }
}

messages! {
    /// From a producer to a consumer.
    ToConsumer {
        /// The answer to `Join`. With three descriptors: control memory, lease page, wake socket.
        1 = Welcome {
            /// The producer's [`VERSION`](crate::abi::layout::VERSION).
            version: u32,
            /// The number of this consumer in the pool.
            id: u64,
            /// The budget of the consumer.
            budget: u32,
            /// The name of the pool.
            pool: Text<128>,
            /// The number of `Origin` messages that follow. If it is not 0, `Arrived` follows after the consumer has answered
            /// each of them with `Reaches`.
            origins: u32,
        },
        /// The answer to a first message that was refused.
        2 = Refused {
            /// The producer's [`VERSION`](crate::abi::layout::VERSION).
            version: u32,
            /// The reason as text.
            reason: Text<256>,
        },
        /// Sends a region, with a descriptor unless it has a name, and with another one if its device memory has a descriptor.
        3 = Region {
            /// The number of the region.
            id: u32,
            /// Its size in bytes.
            len: u64,
            /// The kind of its memory.
            kind: RegionKind,
            /// The name of its segment (`PosixShm`); empty for other kinds.
            name: Text<128>,
        },
        /// There is no such region, or not any more.
        4 = NoRegion {
            /// The number of the region.
            id: u32,
        },
        /// Sends the sticky state, with a descriptor.
        5 = Sticky {
            /// Its version.
            version: u64,
        },
        /// That version is no longer kept.
        6 = NoSticky {
            /// The requested version.
            version: u64,
        },
        /// Sends the figures as JSON, with a descriptor.
        7 = Stats,
        /// Frames of this pool may be forwarded: the consumer should join it, to hold them there.
        8 = Origin {
            /// The pool of origin.
            pool_id: u64,
            /// The path of its socket.
            path: Text<128>,
        },
        /// No frames of that pool are forwarded any more.
        9 = NoOrigin {
            /// The pool of origin.
            pool_id: u64,
        },
        /// The consumer's cursor is set.
        10 = Arrived,
        /// Sends the DMA buffer of a slot, with a descriptor.
        11 = Dmabuf {
            /// The region of the slot.
            region: u32,
            /// The first byte of the slot in the region.
            start: u64,
        },
        /// The slot has no DMA buffer, or the producer does not hand it out.
        12 = NoDmabuf {
            /// The region of the slot.
            region: u32,
            /// The reason as text.
            reason: Text<256>,
        },
    }
}

/// The kind of a region's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RegionKind {
    /// A sealed memfd. Its descriptor is sent with the message.
    Memfd = 0,
    /// A POSIX segment, opened by its name.
    PosixShm = 1,
    /// Memory from outside of xmem, with parts of frames and without slots.
    Imported = 3,
    /// The host half of a region with frames on a device.
    Cuda = 4,
}

impl Field for StartFrom {
    fn put(&self, to: &mut Vec<u8>) {
        (*self as u8).put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Self::from_code(u8::take(from)?)
    }
}

impl Field for RegionKind {
    fn put(&self, to: &mut Vec<u8>) {
        (*self as u8).put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let code = u8::take(from)?;
        [Self::Memfd, Self::PosixShm, Self::Imported, Self::Cuda]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

/// The rest of the message.
impl Field for Vec<u8> {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let rest = std::mem::take(from);
        (rest.len() <= MAX_REQUEST).then(|| rest.to_vec())
    }
}

impl ToProducer {
    /// The protocol version in a first message. It follows the magic in every version.
    pub fn version_of(packet: &[u8]) -> Option<u32> {
        let [1 | 2, rest @ ..] = packet else {
            return None;
        };
        Field::take(&mut rest.strip_prefix(&MAGIC)?)
    }
}

/// The first frame that a consumer gets.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StartFrom {
    /// The first frame that is published after it joined. If it has waited for the producer, the first frame that the producer keeps.
    #[default]
    Next = 0,
    /// The newest existing frame.
    Newest = 1,
    /// The oldest frame that the producer keeps (its `history`).
    Oldest = 2,
}

impl StartFrom {
    /// The variant with this number in a message.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Next, Self::Newest, Self::Oldest]
            .into_iter()
            .find(|start| *start as u8 == code)
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
                .prop_map(|(region, offset)| ToProducer::GetDmabuf { region, offset }),
        ]
    }

    proptest! {
        #[test]
        fn messages_round_trip(message in to_producer()) {
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
    fn answers_round_trip() {
        for message in [
            ToConsumer::Welcome {
                version: 1,
                id: 2,
                budget: 3,
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
            ToConsumer::Origin {
                pool_id: 4,
                path: "/run/p.sock".into(),
            },
            ToConsumer::NoOrigin { pool_id: 4 },
            ToConsumer::Arrived,
            ToConsumer::Dmabuf {
                region: 1,
                start: 1 << 40,
            },
            ToConsumer::NoDmabuf {
                region: 1,
                reason: "no".into(),
            },
        ] {
            let bytes = message.encode();
            assert!(bytes.len() <= MAX_MESSAGE);
            assert_eq!(ToConsumer::decode(&bytes), Some(message));
        }
    }
}
