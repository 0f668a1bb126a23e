// SPDX-License-Identifier: MPL-2.0

//! Unix sockets that carry whole messages (SOCK_SEQPACKET) and descriptors. Nothing here blocks.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, chmod, fchmod, fstat, open, unlink};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};

use crate::fault::{self, Point};

/// The longest path that fits into a socket address, its final NUL included in the kernel's 108 bytes.
pub const MAX_PATH_LEN: usize = 107;
/// Descriptors that travel with one message at most.
pub const MAX_FDS: usize = 4;

/// Bytes that may wait for a peer to read them: a dozen messages, as the kernel counts.
const SEND_BUFFER: usize = 8 << 10;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn seqpacket() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        FLAGS,
        None,
    )?)
}

/// A socket that listens, and its file.
#[derive(Debug)]
pub struct Listening {
    /// The socket that listens.
    pub socket: OwnedFd,
    /// The file itself (O_PATH): a path could name another file later.
    pub file: OwnedFd,
}

/// Listens at a path. Never has the file more permissions than these, for a moment it may have fewer.
pub fn listen_at(path: &Path, mode: u32) -> io::Result<Listening> {
    let socket = seqpacket()?;
    let mode = Mode::from_raw_mode(mode & 0o777);
    // bind gives the file the mode of the unbound socket, less the umask.
    fchmod(&socket, mode)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fault::point(Point::SocketBound);
    let file = finish(&socket, path, mode).inspect_err(|_| {
        let _ = unlink(path);
    })?;
    Ok(Listening { socket, file })
}

/// Listens on a socket whose file has just been made. Returns the file.
fn finish(socket: impl AsFd, path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(io::Error::other("another file is in its place now"));
    }
    if Mode::from_raw_mode(stat.st_mode) != mode {
        // Not by its path: that may lead elsewhere by now. (fchmodat2 would do, from Linux 6.6 on.)
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
    }
    listen(&socket, 128)?;
    fault::point(Point::SocketListening);
    Ok(file)
}

/// Takes one waiting connection.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    let socket = retry_on_intr(|| accept_with(&listener, FLAGS))?;
    fault::point(Point::Accepted);
    // Descriptors in the queue of a peer that does not read count towards a limit that all of a user's processes share.
    let _ = set_socket_send_buffer_size(&socket, SEND_BUFFER);
    Ok(socket)
}

/// Connects to a path, or fails at once.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = seqpacket()?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| connect(&socket, &address))?;
    Ok(socket)
}

/// Sends one message, whole or not at all. `WouldBlock`: the peer does not read.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    fault::call(Point::Send)?;
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags));
    let sent = sent.map_err(|errno| match errno {
        Errno::TOOMANYREFS => io::Error::other(
            "more descriptors than RLIMIT_NOFILE allows wait to be read in sockets of this user's processes",
        ),
        errno => errno.into(),
    })?;
    // A sequenced packet is never split.
    debug_assert_eq!(sent, bytes.len());
    fault::point(Point::Sent);
    Ok(())
}

/// One message.
#[derive(Debug)]
pub struct Received<'a> {
    /// The message, never empty.
    pub bytes: &'a [u8],
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
    /// Descriptors came along that this process has no room for (RLIMIT_NOFILE).
    pub fds_lost: bool,
}

/// Takes one message. `None`: the peer is gone. `WouldBlock`: there is none.
pub fn recv<'a>(socket: impl AsFd, buffer: &'a mut [u8]) -> io::Result<Option<Received<'a>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut receive =
        || retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags));
    // A peer that went without reading everything shows as a reset first; the messages it sent before come after that.
    let message = match receive() {
        Err(Errno::CONNRESET) => receive(),
        message => message,
    };
    let message = match message {
        Ok(message) => message,
        Err(Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut fds: Vec<OwnedFd> = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
            fds.extend(rights);
        }
    }
    // The kernel sets CTRUNC both for descriptors that do not fit into the message and for those that the process may not
    // have. Only in the first case did as many arrive as fit.
    let cut = message.flags.contains(ReturnFlags::CTRUNC);
    let too_many = cut && fds.len() >= MAX_FDS;
    if too_many || message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message longer than the protocol has any",
        ));
    }
    fault::point(Point::Received);
    // An empty packet looks like the end; the protocol has none.
    let bytes = buffer.get(..message.bytes).unwrap_or_default();
    if bytes.is_empty() {
        return Ok(None);
    }
    Ok(Some(Received {
        bytes,
        fds,
        fds_lost: cut,
    }))
}
