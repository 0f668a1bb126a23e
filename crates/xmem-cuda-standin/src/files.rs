// SPDX-License-Identifier: MPL-2.0

//! Files of a machine: shared, and crash-safe because a lock on an open file ends when the last descriptor or mapping of it
//! is gone, in whichever process and for whatever reason.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// A process, such that a later one with the same id is another one.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    id: u64,
    /// In clock ticks since boot.
    started: u64,
}

impl Process {
    pub(crate) fn current() -> Self {
        let id = std::process::id().into();
        Self {
            id,
            started: started(id).unwrap_or(0),
        }
    }

    /// Whether it still runs; a zombie does not. Seen from this process's PID namespace, as with the driver.
    pub(crate) fn is_alive(&self) -> bool {
        started(self.id) == Some(self.started)
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.started.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        let (id, started) = bytes.split_at(8);
        let number = |part: &[u8]| u64::from_le_bytes(part.try_into().expect("eight bytes"));
        Self {
            id: number(id),
            started: number(started),
        }
    }
}

/// When a running process began.
fn started(id: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in parentheses may contain anything; what follows the last one does not.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// 64 random bits.
pub(crate) fn random() -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: the buffer is ours and has that length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(got, 8, "getrandom failed");
    u64::from_ne_bytes(bytes)
}

/// The trailer of a memory file, for processes that get only a descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    /// Bytes of device memory in front of the label.
    pub(crate) size: u64,
    /// The machine's ordinal.
    pub(crate) device: u32,
    /// Made by cuMemCreate.
    pub(crate) vmm: bool,
}

const MAGIC: &[u8; 16] = b"xmem stand-in 1\0";
const LABEL: u64 = 4096;

/// Device memory of one allocation, as a file that is locked for as long as a process has it.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    file: File,
    pub(crate) label: Label,
    /// Its path, in the process that made it.
    path: Option<PathBuf>,
}

impl MemoryFile {
    /// Make one. `name` is unique in the machine.
    pub(crate) fn create(dir: &Path, name: &str, label: Label) -> io::Result<Self> {
        let (draft, path) = (dir.join(format!("draft-{name}")), memory_path(dir, name));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o666)
            .open(&draft)?;
        file.set_len(label.size + LABEL)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(label.size.to_le_bytes());
        bytes.extend(label.device.to_le_bytes());
        bytes.push(label.vmm.into());
        file.write_all_at(&bytes, label.size)?;
        file.lock_shared()?;
        // Only now others look at it: a file in `memory` without a lock has no owner any more.
        std::fs::rename(draft, &path)?;
        Ok(Self {
            file,
            label,
            path: Some(path),
        })
    }

    /// Take another process's allocation by name.
    pub(crate) fn open(dir: &Path, name: &str) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(memory_path(dir, name))?;
        file.lock_shared()?;
        Self::from_file(file)
    }

    /// Take another process's allocation by descriptor, which shares its lock.
    pub(crate) fn from_file(file: File) -> io::Result<Self> {
        let foreign = || io::Error::other("not memory of a stand-in device");
        let length = file.metadata()?.len();
        let mut bytes = [0; 30];
        file.read_exact_at(&mut bytes, length.checked_sub(LABEL).ok_or_else(foreign)?)?;
        let size = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"));
        if &bytes[..16] != MAGIC || size.checked_add(LABEL) != Some(length) {
            return Err(foreign());
        }
        let device = u32::from_le_bytes(bytes[24..28].try_into().expect("four bytes"));
        if bytes[29] != 0 {
            return Err(io::Error::other("the memory was freed"));
        }
        Ok(Self {
            file,
            label: Label {
                size,
                device,
                vmm: bytes[28] != 0,
            },
            path: None,
        })
    }

    /// Its owner freed it: it cannot be opened any more. Processes that have it keep it.
    pub(crate) fn mark_freed(&self) {
        let _ = self.file.write_all_at(&[1], self.label.size + 29);
        if self.file.try_lock().is_ok()
            && let Some(path) = &self.path
        {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Its id in the machine, in the process that made it.
    pub(crate) fn id(&self) -> Option<u64> {
        u64::from_str_radix(self.path.as_ref()?.file_name()?.to_str()?, 16).ok()
    }

    /// A descriptor for others.
    pub(crate) fn export(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Map it for the driver's own use.
    pub(crate) fn map(&self) -> io::Result<Mapping> {
        Mapping::shared(&self.file, self.label.size as usize)
    }
}

fn memory_path(dir: &Path, name: &str) -> PathBuf {
    dir.join("memory").join(name)
}

/// Bytes in use of each device of the machine, by whichever process. Removes the files of dead processes.
pub(crate) fn used_memory(dir: &Path, device: u32) -> u64 {
    let entries = std::fs::read_dir(dir.join("memory"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| {
            let file = File::options()
                .read(true)
                .write(true)
                .open(entry.path())
                .ok()?;
            if file.try_lock().is_ok() {
                let _ = std::fs::remove_file(entry.path());
                return None;
            }
            let length = file.metadata().ok()?.len();
            let mut bytes = [0; 4];
            file.read_exact_at(&mut bytes, length.checked_sub(LABEL)? + 24)
                .ok()?;
            (u32::from_le_bytes(bytes) == device).then_some(length - LABEL)
        })
        .sum()
}

/// A part of this process's address space, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping may be used and unmapped by any thread; the order of writes is the business of the users of the
// device, as on a GPU.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The beginning of a file, shared with all other mappings of it.
    pub(crate) fn shared(file: &File, length: usize) -> io::Result<Self> {
        Self::new(
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
        )
    }

    /// Addresses that cannot be accessed: what a program gets as device pointers.
    pub(crate) fn addresses(length: usize) -> io::Result<Self> {
        Self::new(
            length,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
        )
    }

    /// Memory of this process alone.
    pub(crate) fn anonymous(length: usize) -> io::Result<Self> {
        Self::new(
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
        )
    }

    fn new(length: usize, access: i32, flags: i32, file: i32) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            start: NonNull::new(start.cast()).expect("the kernel maps nothing at 0"),
            length,
        })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn address(&self) -> u64 {
        self.start() as u64
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by us, and not used after this.
        unsafe { libc::munmap(self.start().cast(), self.length) };
    }
}
