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
use bytes::{Field, Reader, fields, put_sized, put_text};

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

fields! {
    Ids { exporter, importer }
    Place { ids, position, item }
    Tai { offset, error }
    Credit { ids, items, position, lost, sticky, wants, sent }
    Pulse { ids, echo, received, sent, tai }
    Begin { place, kind, sticky, stream, number, attached, meta }
    Probe { place, ended, live }
}

impl Field for Kind {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Frame => 0,
            Self::Event => 1,
            Self::Sticky => 2,
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.get::<u8>()? {
            0 => Ok(Self::Frame),
            1 => Ok(Self::Event),
            2 => Ok(Self::Sticky),
            _ => Err(Malformed("an item's kind is unknown")),
        }
    }
}

fn start(kind: u8) -> Vec<u8> {
    vec![VERSION, kind]
}

fn message(kind: u8, content: &impl Field) -> Vec<u8> {
    let mut out = start(kind);
    content.put(&mut out);
    out
}

fn open(bytes: &[u8]) -> Result<(u8, Reader<'_>), Malformed> {
    let mut from = Reader::new(bytes);
    if from.get::<u8>()? != VERSION {
        return Err(Malformed("it has another version"));
    }
    Ok((from.get()?, from))
}

impl Up {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => {
                let mut out = start(1);
                hello.importer.put(&mut out);
                hello.sent.put(&mut out);
                put_text(&mut out, &hello.name, MAX_NAME);
                out
            }
            Self::Credit(credit) => message(2, credit),
            Self::Request(request) => {
                let mut out = message(3, &request.ids);
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
                importer: from.get()?,
                sent: from.get()?,
                name: from.text(MAX_NAME)?,
            }),
            2 => Self::Credit(from.get()?),
            3 => Self::Request(Request {
                ids: from.get()?,
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
            Self::Pulse(pulse) => message(1, pulse),
            Self::Refusal { importer, reason } => {
                let mut out = message(2, importer);
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
            1 => Self::Pulse(from.get()?),
            2 => Self::Refusal {
                importer: from.get()?,
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
        message(1, self)
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut begin: Self = from.get()?;
        begin.meta.event = begin.kind == Kind::Event;
        let is_frame = begin.kind == Kind::Frame;
        let max = if is_frame { MAX_FRAME } else { 0 };
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
        let mut out = message(2, &self.place);
        self.offset.put(&mut out);
        self.last.put(&mut out);
        out
    }
}

/// The size of [`Chunk::head`], in bytes.
pub const CHUNK_HEAD: usize = 2 + 32 + 9;

impl Probe {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        message(3, self)
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
        let data = match kind {
            1 => Self::Begin(Box::new(Begin::decode(&mut from)?)),
            2 => {
                let chunk = Chunk {
                    place: from.get()?,
                    offset: from.get()?,
                    last: from.get()?,
                    bytes: from.rest(),
                };
                if chunk.bytes.len() > MAX_CHUNK {
                    return Err(Malformed("a chunk is larger than it may be"));
                }
                return Ok(Self::Chunk(chunk));
            }
            3 => Self::Probe(from.get()?),
            _ => return Err(Malformed("its kind is unknown")),
        };
        from.end()?;
        Ok(data)
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
