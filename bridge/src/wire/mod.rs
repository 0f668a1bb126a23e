// SPDX-License-Identifier: MPL-2.0

//! The messages between two bridges. Their encoding does not depend on the transport.
//!
//! The exporter sends *items*: frames, events and sticky states, one after another. An item is a [`Begin`] with its
//! description, then [`Chunk`]s with its bytes: the payload, then the attachments. These messages and the [`Probe`]s between them
//! are sent in one order, and each has a *position* ([`span`](crate::window::span)). The importer answers with [`Credit`]s.
//!
//! Messages of another host are not trusted. Decoding returns an error, or a value within the limits below, and allocates no more
//! than the length of the message.

mod bytes;
mod meta;

use xmem_core::{FrameMeta, MAX_NAMED_SIZE, MAX_REQUEST};

pub use bytes::Malformed;
use bytes::{Reader, put_sized, put_text};

/// The version of the format. It is the first byte of each message. Every change to a message, or to the meaning of one, raises it.
pub const VERSION: u8 = 2;
/// The maximum number of an item's bytes in one chunk. A chunk with its head fits into one batch of Zenoh, so Zenoh never splits
/// it.
pub const MAX_CHUNK: usize = 48_000;
/// The maximum size of a frame's payload, in bytes. An 8K frame of 16-bit RGBA fits.
pub const MAX_FRAME: u64 = 256 << 20;
/// The maximum size of a name, in bytes.
pub const MAX_NAME: usize = 64;
/// The maximum size of a refusal's reason, in bytes.
pub const MAX_REASON: usize = 512;

/// The two instances of a stream. Both are random numbers, so that messages of an earlier stream are recognized and ignored.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// The instance of the exporter's session. 0: there is no session.
    pub exporter: u64,
    /// The instance of the importer.
    pub importer: u64,
}

/// A message from the importer to the exporter. The order of these messages has no meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Up {
    /// Requests a stream. It is repeated until a pulse arrives.
    Hello(Hello),
    /// See [`Credit`].
    Credit(Credit),
    /// A request of a consumer for the program that feeds the pool.
    Request(Request),
}

/// A request for a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The instance of the importer.
    pub importer: u64,
    /// The name of the importer, for lines that the exporter prints.
    pub name: String,
    /// The time of the importer when it sent this message.
    pub sent: i64,
}

/// The state of the importer. It is cumulative, and sent several times a second, so a lost or duplicate credit has no effect.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    /// The instances of the stream.
    pub ids: Ids,
    /// All items up to this one have arrived or are lost.
    pub items: u64,
    /// All messages before this position have arrived or are lost.
    pub position: u64,
    /// The number of losses.
    pub lost: u64,
    /// The number of the sticky state that the importer has. 0: none.
    pub sticky: u64,
    /// The importer wants frames: its pool has consumers, and it knows the offset of the clocks.
    pub wants: bool,
    /// The time of the importer when it sent this message.
    pub sent: i64,
}

/// A request of a consumer of the importer's pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The instances of the stream.
    pub ids: Ids,
    /// The name of the request.
    pub name: String,
    /// The data of the request.
    pub data: Vec<u8>,
}

/// CLOCK_TAI of a host whose clock is synchronised, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tai {
    /// CLOCK_TAI minus CLOCK_MONOTONIC.
    pub offset: i64,
    /// The maximum error of CLOCK_TAI and of the reading.
    pub error: u64,
}

/// A message from the exporter to the importer that is not part of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Down {
    /// See [`Pulse`].
    Pulse(Pulse),
    /// The exporter refuses the stream.
    Refusal {
        /// The instance of the importer.
        importer: u64,
        /// The reason, as text for the user.
        reason: String,
    },
}

/// The answer to a hello or a credit. Its three times and the time of its arrival give the offset of the two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// The instances of the stream.
    pub ids: Ids,
    /// The time in the hello or the credit.
    pub echo: i64,
    /// The exporter's time when the hello or the credit arrived.
    pub received: i64,
    /// The exporter's time when it sent this message.
    pub sent: i64,
    /// `None`: the clock of the exporter is not synchronised.
    pub tai: Option<Tai>,
}

/// A message of the stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Data<'a> {
    /// The beginning of an item.
    Begin(Box<Begin>),
    /// Bytes of an item.
    Chunk(Chunk<'a>),
    /// Requests a credit, and reports the state of the pool.
    Probe(Probe),
}

/// The place of a message in a stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The instances of the stream.
    pub ids: Ids,
    /// The position.
    pub position: u64,
    /// The number of the item, counted from 1.
    pub item: u64,
}

/// The kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A frame.
    Frame,
    /// An event.
    Event,
    /// A sticky state.
    Sticky,
}

/// The first message of an item, with its description.
#[derive(Debug, Clone, PartialEq)]
pub struct Begin {
    /// The place in the stream.
    pub place: Place,
    /// The kind of the item.
    pub kind: Kind,
    /// The number of the sticky state that applies to the item, or of the sticky state that the item is.
    pub sticky: u64,
    /// The random number of the producer's pool. It does not depend on the exporter. Frame numbers of different pools cannot be
    /// compared.
    pub stream: u64,
    /// The number of the frame in that pool. A gap between the numbers of two frames counts missed frames.
    pub number: u64,
    /// The size in bytes of the attachments, which follow the payload, or of the sticky state.
    pub attached: u64,
    /// The description, without the attachments. Its `size` is the size of the payload.
    pub meta: FrameMeta,
}

impl Begin {
    /// The size of the item in bytes.
    pub fn total(&self) -> u64 {
        self.meta.size.saturating_add(self.attached)
    }
}

/// Bytes of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// The place in the stream.
    pub place: Place,
    /// The number of the item's bytes before this chunk.
    pub offset: u64,
    /// This is the last chunk of the item.
    pub last: bool,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// A probe. It follows all messages that were sent before it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The place in the stream. Its item is the last one that was sent completely or given up.
    pub place: Place,
    /// The stream of the pool has ended.
    pub ended: bool,
    /// The pool has a producer.
    pub live: bool,
}

fn start(kind: u8) -> Vec<u8> {
    vec![VERSION, kind]
}

fn open(bytes: &[u8]) -> Result<(u8, Reader<'_>), Malformed> {
    let mut from = Reader::new(bytes);
    if from.u8()? != VERSION {
        return Err(Malformed("it has another version"));
    }
    Ok((from.u8()?, from))
}

impl Ids {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.exporter.to_le_bytes());
        out.extend(self.importer.to_le_bytes());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            exporter: from.u64()?,
            importer: from.u64()?,
        })
    }
}

impl Place {
    fn encode(self, out: &mut Vec<u8>) {
        self.ids.encode(out);
        out.extend(self.position.to_le_bytes());
        out.extend(self.item.to_le_bytes());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            ids: Ids::decode(from)?,
            position: from.u64()?,
            item: from.u64()?,
        })
    }
}

impl Up {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => {
                let mut out = start(1);
                out.extend(hello.importer.to_le_bytes());
                out.extend(hello.sent.to_le_bytes());
                put_text(&mut out, &hello.name, MAX_NAME);
                out
            }
            Self::Credit(credit) => {
                let mut out = start(2);
                credit.ids.encode(&mut out);
                for number in [credit.items, credit.position, credit.lost, credit.sticky] {
                    out.extend(number.to_le_bytes());
                }
                out.push(credit.wants.into());
                out.extend(credit.sent.to_le_bytes());
                out
            }
            Self::Request(request) => {
                let mut out = start(3);
                request.ids.encode(&mut out);
                put_text(&mut out, &request.name, MAX_NAME);
                put_sized(&mut out, &request.data, MAX_REQUEST);
                out
            }
        }
    }

    /// Decodes a message of another host.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid message of this type.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut from) = open(bytes)?;
        let up = match kind {
            1 => Self::Hello(Hello {
                importer: from.u64()?,
                sent: from.i64()?,
                name: from.text(MAX_NAME)?,
            }),
            2 => Self::Credit(Credit {
                ids: Ids::decode(&mut from)?,
                items: from.u64()?,
                position: from.u64()?,
                lost: from.u64()?,
                sticky: from.u64()?,
                wants: from.bool()?,
                sent: from.i64()?,
            }),
            3 => Self::Request(Request {
                ids: Ids::decode(&mut from)?,
                name: from.text(MAX_NAME)?,
                data: from.sized(MAX_REQUEST)?.to_vec(),
            }),
            _ => return Err(Malformed("its kind is unknown")),
        };
        from.end()?;
        Ok(up)
    }
}

impl Down {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Pulse(pulse) => {
                let mut out = start(1);
                pulse.ids.encode(&mut out);
                for time in [pulse.echo, pulse.received, pulse.sent] {
                    out.extend(time.to_le_bytes());
                }
                out.push(pulse.tai.is_some().into());
                if let Some(tai) = pulse.tai {
                    out.extend(tai.offset.to_le_bytes());
                    out.extend(tai.error.to_le_bytes());
                }
                out
            }
            Self::Refusal { importer, reason } => {
                let mut out = start(2);
                out.extend(importer.to_le_bytes());
                put_text(&mut out, reason, MAX_REASON);
                out
            }
        }
    }

    /// Decodes a message of another host.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid message of this type.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut from) = open(bytes)?;
        let down = match kind {
            1 => Self::Pulse(Pulse {
                ids: Ids::decode(&mut from)?,
                echo: from.i64()?,
                received: from.i64()?,
                sent: from.i64()?,
                tai: match from.bool()? {
                    true => Some(Tai {
                        offset: from.i64()?,
                        error: from.u64()?,
                    }),
                    false => None,
                },
            }),
            2 => Self::Refusal {
                importer: from.u64()?,
                reason: from.text(MAX_REASON)?,
            },
            _ => return Err(Malformed("its kind is unknown")),
        };
        from.end()?;
        Ok(down)
    }
}

impl Begin {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = start(1);
        self.place.encode(&mut out);
        out.push(match self.kind {
            Kind::Frame => 0,
            Kind::Event => 1,
            Kind::Sticky => 2,
        });
        for number in [self.sticky, self.stream, self.number, self.attached] {
            out.extend(number.to_le_bytes());
        }
        meta::encode(&mut out, &self.meta);
        out
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let place = Place::decode(from)?;
        let kind = match from.u8()? {
            0 => Kind::Frame,
            1 => Kind::Event,
            2 => Kind::Sticky,
            _ => return Err(Malformed("an item's kind is unknown")),
        };
        let mut begin = Self {
            place,
            kind,
            sticky: from.u64()?,
            stream: from.u64()?,
            number: from.u64()?,
            attached: from.u64()?,
            meta: meta::decode(from)?,
        };
        begin.meta.event = kind == Kind::Event;
        let max = if kind == Kind::Frame { MAX_FRAME } else { 0 };
        if begin.meta.size > max {
            return Err(Malformed("an item is larger than it may be"));
        }
        if begin.attached > MAX_NAMED_SIZE as u64 {
            return Err(Malformed("attachments are larger than they may be"));
        }
        Ok(begin)
    }
}

impl Chunk<'_> {
    /// Encodes the fields of the chunk. The bytes of the item follow them.
    pub fn head(&self) -> Vec<u8> {
        let mut out = start(2);
        self.place.encode(&mut out);
        out.extend(self.offset.to_le_bytes());
        out.push(self.last.into());
        out
    }
}

/// The size of [`Chunk::head`], in bytes.
pub const CHUNK_HEAD: usize = 2 + 32 + 9;

impl Probe {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = start(3);
        self.place.encode(&mut out);
        out.extend([self.ended, self.live].map(u8::from));
        out
    }
}

impl<'a> Data<'a> {
    /// Decodes a message of another host.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid message of this type.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (kind, mut from) = open(bytes)?;
        match kind {
            1 => {
                let begin = Begin::decode(&mut from)?;
                from.end()?;
                Ok(Self::Begin(Box::new(begin)))
            }
            2 => {
                let chunk = Chunk {
                    place: Place::decode(&mut from)?,
                    offset: from.u64()?,
                    last: from.bool()?,
                    bytes: from.rest(),
                };
                if chunk.bytes.len() > MAX_CHUNK {
                    return Err(Malformed("a chunk is larger than it may be"));
                }
                Ok(Self::Chunk(chunk))
            }
            3 => {
                let probe = Probe {
                    place: Place::decode(&mut from)?,
                    ended: from.bool()?,
                    live: from.bool()?,
                };
                from.end()?;
                Ok(Self::Probe(probe))
            }
            _ => Err(Malformed("its kind is unknown")),
        }
    }

    /// The place in the stream.
    pub fn place(&self) -> Place {
        match self {
            Self::Begin(begin) => begin.place,
            Self::Chunk(chunk) => chunk.place,
            Self::Probe(probe) => probe.place,
        }
    }
}

#[cfg(test)]
mod tests;
