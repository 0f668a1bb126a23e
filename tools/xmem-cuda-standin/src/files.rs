// SPDX-License-Identifier: MPL-2.0

//! The files of a machine. They are shared between processes and need no cleanup after a crash: the kernel releases a file's lock
//! when its last descriptor and mapping are gone.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Identifies a process. A later process with the same id differs in the start time.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    id: u64,
    /// The start time in clock ticks since boot.
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

    /// Whether the process runs; a zombie does not. As with the driver, this depends on this process's PID namespace.
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

/// The start time of a running process.
fn started(id: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in parentheses may contain any characters, so the line is split at the last parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// 64 random bits.
pub(crate) fn random() -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: the buffer is valid for this length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(got, 8, "getrandom failed");
    u64::from_ne_bytes(bytes)
}

/// The trailer of a memory file, for processes that get only a descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    /// The size of the device memory in front of the label.
    pub(crate) size: u64,
    /// The device's ordinal in the machine.
    pub(crate) device: u32,
    /// Whether cuMemCreate created the memory.
    pub(crate) vmm: bool,
}

const MAGIC: &[u8; 16] = b"xmem stand-in 1\0";
const LABEL: u64 = 4096;

/// The device memory of one allocation: a file that is locked while any process uses it.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    file: File,
    pub(crate) label: Label,
    /// The path, in the process that created the file.
    path: Option<PathBuf>,
}

impl MemoryFile {
    /// Creates a file. `name` is unique in the machine.
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
        // The file becomes visible only with its lock: a file in `memory` without a lock has no owner.
        std::fs::rename(draft, &path)?;
        Ok(Self {
            file,
            label,
            path: Some(path),
        })
    }

    /// Opens another process's allocation by name.
    pub(crate) fn open(dir: &Path, name: &str) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(memory_path(dir, name))?;
        file.lock_shared()?;
        Self::from_file(file)
    }

    /// Opens another process's allocation by descriptor, which shares its lock.
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

    /// Marks the memory as freed: it cannot be opened any more. Processes that have it open keep it.
    pub(crate) fn mark_freed(&self) {
        let _ = self.file.write_all_at(&[1], self.label.size + 29);
        if self.file.try_lock().is_ok()
            && let Some(path) = &self.path
        {
            let _ = std::fs::remove_file(path);
        }
    }

    /// The id in the machine, in the process that created the file.
    pub(crate) fn id(&self) -> Option<u64> {
        u64::from_str_radix(self.path.as_ref()?.file_name()?.to_str()?, 16).ok()
    }

    /// A descriptor for other processes.
    pub(crate) fn export(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Maps the file for the driver.
    pub(crate) fn map(&self) -> io::Result<Mapping> {
        Mapping::shared(&self.file, self.label.size as usize)
    }
}

fn memory_path(dir: &Path, name: &str) -> PathBuf {
    dir.join("memory").join(name)
}

/// The number of bytes in use on a device, by all processes. Removes the files of dead processes.
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

/// A mapping in this process's address space. It is unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: any thread may use and unmap a mapping. As on a GPU, the program that uses the device orders its accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the beginning of a file, shared with all other mappings of the file.
    pub(crate) fn shared(file: &File, length: usize) -> io::Result<Self> {
        Self::new(
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
        )
    }

    /// Reserves addresses that cannot be accessed. They are the device pointers of programs.
    pub(crate) fn addresses(length: usize) -> io::Result<Self> {
        Self::new(
            length,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
        )
    }

    /// Allocates private memory of this process.
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
        // SAFETY: this value created the mapping, and nothing uses it afterwards.
        unsafe { libc::munmap(self.start().cast(), self.length) };
    }
}
