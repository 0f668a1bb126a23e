// SPDX-License-Identifier: MPL-2.0

//! An independent implementation of the protocol, for hostile peers. It repeats the constants of `wire.rs` and `layout`, so that an
//! incompatible change of them fails a test.
#![allow(unsafe_code)] // mmap, ioctl

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recvmsg, sendmsg, socket_with, socketpair,
};

use super::HANG;

pub const VERSION: u32 = 16;
/// The kernel's limit of descriptors in one message.
pub const MAX_RIGHTS: usize = 253;

/// One end of a connection.
pub struct Raw(pub OwnedFd);

/// A message and its descriptors.
pub type Message = (Vec<u8>, Vec<OwnedFd>);

fn new_socket(kind: SocketType) -> OwnedFd {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

impl Raw {
    fn new(socket: OwnedFd) -> Self {
        set_socket_timeout(&socket, Timeout::Recv, Some(HANG)).unwrap();
        set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_millis(500))).unwrap();
        Self(socket)
    }

    /// Waits longer for messages, if the other side reads late.
    pub fn patient(self) -> Self {
        set_socket_timeout(&self.0, Timeout::Send, Some(HANG)).unwrap();
        self
    }

    /// Connects to a producer.
    pub fn connect(pool: &str) -> Self {
        Self::try_connect(pool).unwrap()
    }

    /// A socket that is not connected.
    pub fn unconnected() -> Self {
        Self::new(new_socket(SocketType::SEQPACKET))
    }

    pub fn try_connect(pool: &str) -> Result<Self, Errno> {
        let socket = new_socket(SocketType::SEQPACKET);
        connect(&socket, &SocketAddrUnix::new(pool).unwrap())?;
        Ok(Self::new(socket))
    }

    /// Connects, joins, and receives the welcome.
    pub fn join(pool: &str, max_held: u32) -> (Self, Joined) {
        let raw = Self::connect(pool);
        raw.send(&join(VERSION, max_held), &[]).unwrap();
        let (bytes, fds) = raw.recv().expect("a welcome");
        assert_eq!(bytes[0], 1, "a welcome");
        let [control, page, wake_socket] = <[OwnedFd; 3]>::try_from(fds).unwrap();
        let joined = Joined {
            max_slots: Memory::map(&control, false).words()[2].load(Ordering::Relaxed) as u32,
            control,
            page,
            wake_socket,
        };
        (raw, joined)
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RIGHTS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let message = [IoSlice::new(bytes)];
        retry_on_intr(|| sendmsg(&self.0, &message, &mut control, SendFlags::NOSIGNAL)).map(drop)
    }

    /// The memory of unread messages in the other side's queue, as the kernel counts it.
    pub fn unread(&self) -> i32 {
        let mut bytes = 0;
        // SAFETY: the descriptor is open, and the kernel writes one integer.
        let result = unsafe {
            libc::ioctl(
                std::os::fd::AsRawFd::as_raw_fd(&self.0),
                libc::TIOCOUTQ,
                &raw mut bytes,
            )
        };
        assert_eq!(result, 0);
        bytes
    }

    /// The next message. `None` if the other side has closed.
    pub fn recv(&self) -> Option<Message> {
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut buffer)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
        });
        let len = match received {
            Ok(message) => message.bytes,
            Err(Errno::CONNRESET | Errno::PIPE) => 0,
            Err(error) => panic!("no message: {error}"),
        };
        let mut fds = Vec::new();
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
                fds.extend(rights);
            }
        }
        (len > 0).then(|| (buffer[..len].to_vec(), fds))
    }

    /// The available messages, and those that arrive soon.
    pub fn recv_waiting(&self) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            let soon = Timespec {
                tv_sec: 0,
                tv_nsec: 5_000_000,
            };
            if poll(&mut fds, Some(&soon)) != Ok(1) {
                return messages;
            }
            match self.recv() {
                Some(message) => messages.push(message),
                None => return messages,
            }
        }
    }

    /// The next message of this kind.
    pub fn recv_kind(&self, kind: u8) -> Message {
        loop {
            let message = self.recv().expect("a message");
            if message.0[0] == kind {
                return message;
            }
        }
    }
}

/// The content of a welcome message.
pub struct Joined {
    pub control: OwnedFd,
    pub page: OwnedFd,
    pub wake_socket: OwnedFd,
    pub max_slots: u32,
}

/// A first message.
pub fn join(version: u32, max_held: u32) -> Vec<u8> {
    join_as(version, max_held, "")
}

pub fn join_as(version: u32, max_held: u32, name: &str) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend(b"xmem-hi\0");
    bytes.extend(version.to_le_bytes());
    bytes.extend(max_held.to_le_bytes());
    bytes.push(0);
    bytes.extend(text(name, 64));
    bytes.extend(text("", 64));
    bytes
}

pub fn query(version: u32) -> Vec<u8> {
    [&b"\x02xmem-hi\0"[..], &version.to_le_bytes()].concat()
}

pub fn get_region(id: u32) -> Vec<u8> {
    [&[3][..], &id.to_le_bytes()].concat()
}

pub fn get_dmabuf(region: u32, offset: u64) -> Vec<u8> {
    [&[12][..], &region.to_le_bytes(), &offset.to_le_bytes()].concat()
}

pub fn dmabuf(region: u32, start: u64) -> Vec<u8> {
    [&[11][..], &region.to_le_bytes(), &start.to_le_bytes()].concat()
}

pub fn no_dmabuf(region: u32, reason: &str) -> Vec<u8> {
    [&[12][..], &region.to_le_bytes(), &text(reason, 256)].concat()
}

pub fn get_sticky(version: u64) -> Vec<u8> {
    [&[4][..], &version.to_le_bytes()].concat()
}

fn text(text: &str, len: usize) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(len, 0);
    bytes
}

/// A wake socket that never wakes.
pub fn wake_socket() -> OwnedFd {
    let (ours, _) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    ours
}

pub fn welcome(version: u32) -> Vec<u8> {
    welcome_of(version, "fake")
}

pub fn welcome_of(version: u32, pool: &str) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend(version.to_le_bytes());
    bytes.extend(7u64.to_le_bytes());
    bytes.extend(8u32.to_le_bytes());
    bytes.extend(text(pool, 128));
    bytes.extend(0u32.to_le_bytes());
    bytes
}

pub fn no_region(id: u32) -> Vec<u8> {
    [&[4][..], &id.to_le_bytes()].concat()
}

pub fn no_sticky(version: u64) -> Vec<u8> {
    [&[6][..], &version.to_le_bytes()].concat()
}

/// The message `Bell`, which wakes the producer.
pub const BELL: &[u8] = &[5];
pub const LEAVE: &[u8] = &[6];

pub fn refused(version: u32, reason: &str) -> Vec<u8> {
    [&[2][..], &version.to_le_bytes(), &text(reason, 256)].concat()
}

pub fn region(id: u32, len: u64, kind: u8, name: &str) -> Vec<u8> {
    let mut bytes = vec![3];
    bytes.extend(id.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.push(kind);
    bytes.extend(text(name, 128));
    bytes
}

pub fn sticky(version: u64) -> Vec<u8> {
    [&[5][..], &version.to_le_bytes()].concat()
}

/// A fake producer: accepts connections and their first messages.
pub struct Fake(OwnedFd);

impl Fake {
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self::of_kind(path, SocketType::SEQPACKET)
    }

    pub fn of_kind(path: impl AsRef<Path>, kind: SocketType) -> Self {
        let socket = new_socket(kind);
        bind(&socket, &SocketAddrUnix::new(path.as_ref()).unwrap()).unwrap();
        if kind != SocketType::DGRAM {
            listen(&socket, 16).unwrap();
            set_socket_timeout(&socket, Timeout::Recv, Some(HANG)).unwrap();
        }
        Self(socket)
    }

    pub fn accept(&self) -> Raw {
        Raw::new(retry_on_intr(|| accept(&self.0)).unwrap())
    }

    /// Accepts a connection and answers its first message.
    pub fn answer(&self, bytes: &[u8], fds: &[&OwnedFd]) -> Raw {
        let raw = self.accept();
        raw.recv().expect("a first message");
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let _ = raw.send(bytes, &fds);
        raw
    }

    /// As `answer`, as a producer with this control memory and lease page does.
    pub fn welcome(&self, control: &OwnedFd, page: &OwnedFd) -> Raw {
        self.answer(&welcome(VERSION), &[control, page, &wake_socket()])
    }
}

/// Sparse memory: pages are allocated when they are touched.
pub fn sparse(len: u64) -> OwnedFd {
    let fd = memfd_create("fake", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

/// Memory in a descriptor, optionally sealed against resizing.
pub fn memory(len: u64, sealed: bool) -> OwnedFd {
    let fd = sparse(len);
    if len > 0 {
        fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
    }
    if sealed {
        seal(&fd, SIZE);
    }
    fd
}

/// The seals of a region's memory, except for those against writing.
pub const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

pub fn seal(fd: &OwnedFd, seals: SealFlags) {
    fcntl_add_seals(fd, seals).unwrap();
}

/// Correct memory of a region: with a fixed size, and read-only for all receivers.
pub fn frozen(len: u64) -> OwnedFd {
    let fd = memory(len, true);
    seal(&fd, SealFlags::FUTURE_WRITE);
    fd
}

/// The allocated size of a descriptor's memory in bytes.
pub fn touched(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512
}

/// A mapping of a whole descriptor.
pub struct Memory {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: plain memory that is used through atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn map(fd: impl AsFd, writable: bool) -> Self {
        Self::try_map(fd, writable).unwrap()
    }

    pub fn try_map(fd: impl AsFd, writable: bool) -> Result<Self, Errno> {
        let len = rustix::fs::fstat(&fd)?.st_size as usize;
        let prot = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let ptr = unsafe { mmap(null_mut(), len, prot, MapFlags::SHARED, fd, 0) }?;
        Ok(Self {
            ptr: ptr.cast(),
            len,
        })
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: page-aligned, in range, and mapped while `self` is borrowed. Read-only mappings are only read.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len / 8) }
    }

    pub fn halves(&self) -> &[AtomicU32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len / 4) }
    }

    pub fn set(&self, word: usize, value: u64) {
        self.words()[word].store(value, Ordering::Release);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `try_map`; references into it borrow `self`.
        unsafe { munmap(self.ptr.cast(), self.len) }.unwrap();
    }
}

/// Words of the control memory: constants, then words that change.
pub const MAX_SLOTS: usize = 2;
pub const RING_LEN: usize = 3;
pub const LOSSLESS: usize = 5;
pub const HISTORY: usize = 6;
pub const BY_NUMBER: usize = 7;
pub const HEAD: usize = 16;
pub const REGIONS_VERSION: usize = 20;
/// The first slot word of the control memory.
pub const SLOTS: usize = 32;

/// The words of an entry, with its stamp.
pub mod entry {
    pub const SLOT: usize = 1;
    /// Layout, bits, and flags of the buffer.
    pub const KIND: usize = 2;
    pub const STICKY: usize = 5;
    pub const OFFSET: usize = 6;
    pub const SIZE: usize = 7;
    pub const ATTACHED: usize = 8;
    pub const WORDS: usize = 16;

    pub const HAS_RESERVED: u64 = 1 << 17;

    pub fn attached(at: u64, len: u64) -> u64 {
        at | len << 39
    }
}

/// The words of a slot's place.
pub mod place {
    pub const REGION: usize = 0;
    pub const OFFSET: usize = 1;
    pub const LEN: usize = 2;
    pub const WORDS: usize = 4;
}

const LAYOUTS: usize = 64;
const LAYOUT_WORDS: usize = 40;
const EXTENSION_WORDS: usize = 48;
/// Words of a lease page.
pub const CURSOR: usize = 0;
pub const FLAGS: usize = 1;
pub const REGIONS_SEEN: usize = 2;
pub const KEEP_FOR: usize = 9;
/// The first lease word, in 32-bit words.
pub const LEASES: usize = 32;

/// The first words of the parts of control memory that follow the slot words and the region ids.
pub fn places_at(max_slots: u64) -> usize {
    let slots = max_slots as usize;
    (SLOTS + 2 * slots).next_multiple_of(8)
}

pub fn layouts_at(max_slots: u64) -> usize {
    (places_at(max_slots) + max_slots as usize * place::WORDS).next_multiple_of(8)
}

pub fn ring_at(max_slots: u64) -> usize {
    layouts_at(max_slots) + LAYOUTS * LAYOUT_WORDS
}

pub fn extensions_at(max_slots: u64, ring_len: u64) -> usize {
    ring_at(max_slots) + ring_len as usize * entry::WORDS
}

/// The size in bytes of control memory with this number of slots and entries, with slot records.
pub fn control_len(max_slots: u64, ring_len: u64) -> u64 {
    let words = extensions_at(max_slots, ring_len) + ring_len as usize * EXTENSION_WORDS;
    words as u64 * 8 + max_slots * (entry::WORDS + EXTENSION_WORDS) as u64 * 8
}

/// The index in the control memory of [`control`] for a word of entry 0.
pub fn of_entry(word: usize) -> usize {
    ring_at(SMALL.0) + word
}

/// The index for a word of the extension of entry 0.
pub fn of_extension(word: usize) -> usize {
    extensions_at(SMALL.0, SMALL.1) + word
}

/// The index for a word of the place of slot 1, which entries name.
pub fn of_place(word: usize) -> usize {
    places_at(SMALL.0) + place::WORDS + word
}

/// The index for a word of layout 1, which entries name.
pub fn of_layout(word: usize) -> usize {
    layouts_at(SMALL.0) + word
}

/// The slots and the ring length of [`control`].
const SMALL: (u64, u64) = (4, 64);

/// Valid control memory of a live pool: four slots, history 2, nothing published.
pub fn control(len: Option<u64>) -> (OwnedFd, Memory) {
    let (max_slots, ring_len) = SMALL;
    let fd = memory(len.unwrap_or(control_len(max_slots, ring_len)), false);
    let memory = Memory::map(&fd, true);
    seal(&fd, SIZE | SealFlags::FUTURE_WRITE);
    let constants = [
        u64::from_le_bytes(*b"xmemctl\0"),
        VERSION.into(),
        max_slots,
        ring_len,
        1234,
        0,
        2,
    ];
    for (word, value) in constants.into_iter().enumerate() {
        memory.set(word, value);
    }
    // Region 1 is in use.
    memory.set(SLOTS + 4, 1);
    (fd, memory)
}

/// Writes an entry with slot 1, generation 5, region 1 and layout 1, and with these words changed.
pub fn publish_entry(control: &Memory, sequence: u64, words: &[(usize, u64)]) {
    publish_entry_in(control, SMALL.1, sequence, words);
}

/// As `publish_entry`, with a ring of this length.
pub fn publish_entry_in(control: &Memory, ring: u64, sequence: u64, words: &[(usize, u64)]) {
    control.set(SLOTS + 1, 5 << 32 | 2);
    for (word, value) in [(place::REGION, 1), (place::OFFSET, 0), (place::LEN, 4096)] {
        control.set(of_place(word), value);
    }
    let at = of_entry((sequence % ring) as usize * entry::WORDS);
    let mut values = [0; entry::WORDS];
    values[0] = sequence.wrapping_mul(2).wrapping_add(2);
    values[entry::SLOT] = 1 | 5 << 32;
    values[entry::KIND] = 1;
    values[entry::STICKY] = 1;
    values[entry::SIZE] = 4096;
    for (word, value) in words {
        values[*word] = *value;
    }
    for (word, value) in values.into_iter().enumerate() {
        control.set(at + word, value);
    }
    control.set(HEAD, sequence + 1);
}
