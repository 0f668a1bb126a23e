// SPDX-License-Identifier: MPL-2.0

//! The kernel's information about a Unix socket: the process at the other end, and the unread bytes.
#![allow(unsafe_code)] // getsockopt: rustix's SO_PEERCRED cannot return PID 0, and it has no SO_PEERGROUPS and TIOCOUTQ

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::probe;

/// No user or group has this number: `chown` and similar calls treat it as "unchanged".
pub const NOBODY: u32 = u32::MAX;

/// The peer of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// 0 when the process is in a PID namespace that cannot be seen from here.
    pub pid: u32,
    /// [`NOBODY`] if the kernel does not provide it.
    pub uid: u32,
    /// [`NOBODY`] if the kernel does not provide it.
    pub gid: u32,
}

impl Peer {
    const UNKNOWN: Self = Self {
        pid: 0,
        uid: NOBODY,
        gid: NOBODY,
    };
}

/// The process that connected (SO_PEERCRED), with its credentials at that time.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    if identifies_peers()? {
        peer_from_socket(socket)
    } else {
        Ok(Peer::UNKNOWN)
    }
}

/// Whether the kernel identifies the process that connected. gVisor did not before November 2025: it returned the calling
/// process, even for a socket without a connection.
pub fn identifies_peers() -> io::Result<bool> {
    static IDENTIFIES: OnceLock<bool> = OnceLock::new();
    probe::once(&IDENTIFIES, || {
        let alone = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok(!matches!(peer_from_socket(&alone), Ok(peer) if peer.pid == std::process::id()))
    })
}

fn peer_from_socket(socket: impl AsFd) -> io::Result<Peer> {
    let mut cred = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `cred` is valid for writes of `len` bytes, and the descriptor is open while borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            cred.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before, and three integers have no invalid values.
    let cred = unsafe { cred.assume_init() };
    Ok(Peer {
        pid: u32::try_from(cred.pid).unwrap_or(0),
        uid: cred.uid,
        gid: cred.gid,
    })
}

/// Whether a number stands for every user that this process's user namespace does not map, and not for one user. In the kernel's
/// answers these users all have the same number, usually 65534. A process of the namespace may have it too.
pub fn is_ambiguous_user(uid: u32) -> bool {
    is_ambiguous(uid, "uid_map", "overflowuid")
}

/// As [`is_ambiguous_user`], for groups.
pub fn is_ambiguous_group(gid: u32) -> bool {
    is_ambiguous(gid, "gid_map", "overflowgid")
}

fn is_ambiguous(number: u32, map: &str, overflow: &str) -> bool {
    let overflow = std::fs::read_to_string(format!("/proc/sys/kernel/{overflow}"));
    let overflow = overflow.map_or(Ok(65534), |text| text.trim().parse());
    if overflow != Ok(number) {
        return false;
    }
    // Without /proc, as if all users were mapped.
    let map = std::fs::read_to_string(format!("/proc/self/{map}"));
    map.is_ok_and(|map| mapped(&map) < u64::from(u32::MAX))
}

/// The number of users that a map has.
fn mapped(map: &str) -> u64 {
    let counts = map
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}

/// The peer's supplementary groups (SO_PEERGROUPS); empty if the kernel does not provide them.
pub fn peer_groups(socket: impl AsFd) -> Vec<u32> {
    const SIZE: usize = mem::size_of::<libc::gid_t>();
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut len = (groups.len() * SIZE) as libc::socklen_t;
        // SAFETY: `groups` is valid for writes of `len` bytes, and the descriptor is open while borrowed.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut len,
            )
        };
        let count = len as usize / SIZE;
        if result == 0 {
            groups.truncate(count);
            return groups;
        }
        // The buffer is too small. The kernel returned the required number.
        if io::Error::last_os_error().raw_os_error() != Some(libc::ERANGE) || count <= groups.len()
        {
            return Vec::new();
        }
        groups.resize(count, 0);
    }
}

/// The size of sent and unread messages in kernel memory, in bytes (SIOCOUTQ).
pub fn unread(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one integer, and the descriptor is open while borrowed.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// This process's effective user.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether this is root or the user of this process, and no number that stands for every user that is not mapped.
pub fn is_own_or_root(uid: u32) -> bool {
    uid == 0 || uid == own_uid() && !is_ambiguous_user(uid)
}
