// SPDX-License-Identifier: MPL-2.0

//! Unix sockets for whole messages (SOCK_SEQPACKET) with descriptors. No function blocks.

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

/// The maximum length of a path in a socket address. The kernel's limit is 108 bytes with the final NUL.
pub const MAX_PATH_LEN: usize = 107;
/// The maximum number of descriptors in one message.
pub const MAX_FDS: usize = 4;

/// The maximum number of unread bytes for a peer: about twelve messages, by the kernel's count.
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

/// A listening socket, and its file.
#[derive(Debug)]
pub struct Listening {
    /// The listening socket.
    pub socket: OwnedFd,
    /// The file (O_PATH), because the path could refer to another file later.
    pub file: OwnedFd,
}

/// Listens at a path. The file never has more permissions than these, and may briefly have fewer.
pub fn listen_at(path: &Path, mode: u32) -> io::Result<Listening> {
    let socket = seqpacket()?;
    let mode = Mode::from_raw_mode(mode & 0o777);
    // bind gives the file the mode of the unbound socket, minus the umask.
    fchmod(&socket, mode)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fault::point(Point::SocketBound);
    let file = finish(&socket, path, mode).inspect_err(|_| {
        let _ = unlink(path);
    })?;
    Ok(Listening { socket, file })
}

/// Listens on a socket whose file was just created. Returns the file.
fn finish(socket: impl AsFd, path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(io::Error::other("another file is in its place now"));
    }
    if Mode::from_raw_mode(stat.st_mode) != mode {
        // Not by the path, which may refer to another file by now. (fchmodat2 could be used from Linux 6.6 on.)
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
    }
    listen(&socket, 128)?;
    fault::point(Point::SocketListening);
    Ok(file)
}

/// Accepts a waiting connection.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    let socket = retry_on_intr(|| accept_with(&listener, FLAGS))?;
    fault::point(Point::Accepted);
    // Descriptors in the queue of a peer that does not read count towards a limit of all processes of the user.
    let _ = set_socket_send_buffer_size(&socket, SEND_BUFFER);
    Ok(socket)
}

/// Connects to a path, or fails immediately.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = seqpacket()?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| connect(&socket, &address))?;
    Ok(socket)
}

/// Sends a whole message or fails. `WouldBlock`: the peer does not read.
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
    /// The descriptors in the message.
    pub fds: Vec<OwnedFd>,
    /// Descriptors were lost because this process has no room for them (RLIMIT_NOFILE).
    pub fds_lost: bool,
}

/// Receives a message. `None`: the peer is gone. `WouldBlock`: there is none.
pub fn recv<'a>(socket: impl AsFd, buffer: &'a mut [u8]) -> io::Result<Option<Received<'a>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut receive =
        || retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags));
    // If a peer ends without reading everything, the first result is a reset. The messages that it sent before follow.
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
    // The kernel sets CTRUNC if descriptors do not fit into the buffer, and if the process cannot have more. Only in the first
    // case MAX_FDS descriptors have arrived.
    let cut = message.flags.contains(ReturnFlags::CTRUNC);
    let too_many = cut && fds.len() >= MAX_FDS;
    if too_many || message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message longer than the protocol has any",
        ));
    }
    fault::point(Point::Received);
    // An empty packet is indistinguishable from the end. The protocol has none.
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
