// SPDX-License-Identifier: MPL-2.0

//! Names of pools, runtime directories, and the paths of sockets and locks.

use std::collections::HashSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use xmem_shm::fault::{self, Point};
use xmem_shm::os::cred::own_uid;
use xmem_shm::os::socket::{self, MAX_PATH_LEN};
use xmem_shm::printable::printable;

use crate::error::NameError;

const SOCKET_SUFFIX: &str = ".sock";
const LOCK_SUFFIX: &str = ".lock";
/// Between the name of a socket without a suffix and the suffix of its lock file.
const BARE_SUFFIX: &str = ".xmem";

/// A directory from an environment variable. An empty value counts as unset.
fn dir_in(variable: &str) -> Option<PathBuf> {
    env::var_os(variable)
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from)
}

/// The user's directory of the XDG base directory specification, which ignores relative paths.
fn xdg_dir() -> Option<PathBuf> {
    dir_in("XDG_RUNTIME_DIR").filter(|dir| dir.is_absolute())
}

/// Makes a path absolute, because the program can change its working directory. Without one, nothing can be opened there.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// The runtime directory, absolute: `$XMEM_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/xmem`, else `/tmp/xmem-<uid>`.
pub fn runtime_dir() -> PathBuf {
    dir_in("XMEM_RUNTIME_DIR")
        .map(absolute)
        .or_else(|| xdg_dir().map(|dir| dir.join("xmem")))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/xmem-{}", own_uid())))
}

/// Whether a pool is given as the path of its socket.
fn is_path(pool: &OsStr) -> bool {
    pool.as_encoded_bytes().contains(&b'/')
}

/// The path of a pool's socket, absolute. A name with a slash is already a path; a relative one refers to the present working
/// directory.
///
/// ```
/// let path = xmem_core::discovery::socket_path("/run/cameras/cam0.sock")?;
/// assert_eq!(path.to_str(), Some("/run/cameras/cam0.sock"));
/// assert!(xmem_core::discovery::socket_path("cam0").unwrap().ends_with("cam0.sock"));
/// assert!(xmem_core::discovery::socket_path("cam\n0").is_err());
/// # Ok::<(), xmem_core::NameError>(())
/// ```
///
/// A path need not be UTF-8. A name has to be.
pub fn socket_path(pool: impl AsRef<OsStr>) -> Result<PathBuf, NameError> {
    let pool = pool.as_ref();
    if pool.is_empty() {
        return Err(NameError::Empty);
    }
    if pool.to_string_lossy().chars().any(char::is_control) {
        return Err(NameError::ControlCharacter(pool.to_owned()));
    }
    let path = if is_path(pool) {
        PathBuf::from(pool)
    } else {
        let name = pool.to_str();
        let name = name.ok_or_else(|| NameError::NotUtf8(pool.to_owned()))?;
        runtime_dir().join(format!("{name}{SOCKET_SUFFIX}"))
    };
    let is_directory = pool.as_encoded_bytes().ends_with(b"/") || pool == "." || pool == "..";
    if is_directory || path.file_name().is_none() {
        return Err(NameError::Directory(pool.to_owned()));
    }
    let path = absolute(path);
    let len = path.as_os_str().len();
    if len > MAX_PATH_LEN {
        return Err(NameError::TooLong {
            path,
            len,
            max: MAX_PATH_LEN,
        });
    }
    Ok(path)
}

/// The path of the lock file beside a socket.
pub(crate) fn lock_path(socket: &Path) -> PathBuf {
    let name = socket.file_name().unwrap_or_default();
    let bytes = name.as_bytes();
    let mut lock = match bytes.strip_suffix(SOCKET_SUFFIX.as_bytes()) {
        Some(stem) => OsStr::from_bytes(stem).to_owned(),
        // Different from the lock file of the pool whose socket has the suffix.
        None => [name, OsStr::new(BARE_SUFFIX)].into_iter().collect(),
    };
    lock.push(LOCK_SUFFIX);
    socket.with_file_name(lock)
}

fn refused(path: &Path, reason: impl Into<String>) -> NameError {
    NameError::RuntimeDir {
        path: path.to_owned(),
        reason: reason.into(),
    }
}

/// Whether only this user and root can replace files in a directory. `Ok(false)`: it does not exist.
fn check_dir(path: &Path) -> Result<bool, NameError> {
    // Without following a link, because the owner of a link can redirect it.
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(refused(path, error.to_string())),
    };
    if meta.is_symlink() {
        return Err(refused(path, "it is not a directory, but a symbolic link"));
    }
    if !meta.is_dir() {
        return Err(refused(path, "it is not a directory"));
    }
    if meta.uid() != own_uid() && meta.uid() != 0 {
        return Err(refused(
            path,
            format!(
                "it belongs to user {}, not to user {}",
                meta.uid(),
                own_uid()
            ),
        ));
    }
    let mode = meta.permissions().mode();
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(refused(
            path,
            format!(
                "others may write to it (mode {:o}; `chmod go-w` forbids it)",
                mode & 0o7777
            ),
        ));
    }
    Ok(true)
}

/// Whether this user's producers accept the runtime directory. `Ok(false)`: it does not exist, and the first producer makes it.
///
/// # Errors
///
/// [`NameError::RuntimeDir`] when another user could replace files in it.
pub fn check_runtime_dir() -> Result<bool, NameError> {
    check_place(&runtime_dir())
}

/// As `check_dir`. The directory is also refused if this user would have to make it in that of another user: `su` keeps the
/// variable, and a directory that root makes there excludes the user whose it is.
fn check_place(dir: &Path) -> Result<bool, NameError> {
    if check_dir(dir)? {
        return Ok(true);
    }
    let xdg = xdg_dir().filter(|_| !is_dir_given());
    let owner = xdg.and_then(|xdg| Some((fs::metadata(&xdg).ok()?.uid(), xdg)));
    match owner {
        Some((uid, xdg)) if uid != own_uid() => Err(refused(
            dir,
            format!(
                "XDG_RUNTIME_DIR is {}, which belongs to user {uid}, not to user {}",
                xdg.display(),
                own_uid()
            ),
        )),
        _ => Ok(false),
    }
}

/// Ensures that a pool's socket has a safe directory.
pub(crate) fn prepare_dir(pool: &OsStr, socket: &Path) -> Result<(), NameError> {
    let dir = socket.parent().unwrap_or(Path::new("/"));
    if is_path(pool) {
        // The user chose the directory, so it must exist.
        return if dir.as_os_str().is_empty() || dir.is_dir() {
            Ok(())
        } else {
            Err(NameError::NoDirectory {
                path: dir.to_owned(),
            })
        };
    }
    if !check_place(dir)? {
        make_dir(dir).map_err(|error| refused(dir, error.to_string()))?;
        check_dir(dir)?;
    }
    Ok(())
}

/// Makes a directory for this user alone, whatever the umask is, and those that it is in.
fn make_dir(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent().filter(|parent| !parent.exists()) {
        make_dir(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(0o700)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// The path of a pool's socket, for a program that keeps a file of its own beside it. Makes the runtime directory if it is missing.
///
/// # Errors
///
/// [`NameError::RuntimeDir`] when another user could replace files in that directory.
pub fn prepare_socket_dir(pool: impl AsRef<OsStr>) -> Result<PathBuf, NameError> {
    let socket = socket_path(&pool)?;
    prepare_dir(pool.as_ref(), &socket)?;
    Ok(socket)
}

/// Whether the directory of a pool's socket exists and no other user can replace files in it. A directory that was given with
/// the pool is not checked.
pub(crate) fn has_safe_dir(pool: &OsStr, socket: &Path) -> Result<bool, NameError> {
    let dir = socket.parent().unwrap_or(Path::new("/"));
    if is_path(pool) {
        Ok(dir.as_os_str().is_empty() || dir.is_dir())
    } else {
        check_dir(dir)
    }
}

/// Whether the user chose the runtime directory.
fn is_dir_given() -> bool {
    dir_in("XMEM_RUNTIME_DIR").is_some()
}

/// Checks that no other user has made this user's default directory under /tmp.
pub(crate) fn check_default_dir(pool: &OsStr, socket: &Path) -> Result<(), NameError> {
    let explicit = is_path(pool) || is_dir_given();
    match socket.parent() {
        Some(dir) if !explicit => check_dir(dir).map(|_| ()),
        _ => Ok(()),
    }
}

/// A pool that has a socket in the runtime directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolEntry {
    /// The pool's name.
    pub name: String,
    /// Its socket.
    pub path: PathBuf,
    /// Whether it has a producer now. Otherwise a killed producer left the socket.
    pub live: bool,
}

/// The pools of the runtime directory, by name. Empty if the directory cannot be read or another user made it;
/// [`read_pools`] returns the error.
pub fn pools() -> Vec<PoolEntry> {
    read_pools().unwrap_or_default()
}

/// The pools of the runtime directory, by name. Empty if the directory does not exist.
///
/// ```
/// for pool in xmem_core::discovery::read_pools()? {
///     println!("{} {}", pool.name, if pool.live { "live" } else { "stale" });
/// }
/// # Ok::<(), xmem_core::NameError>(())
/// ```
///
/// # Errors
///
/// [`NameError::RuntimeDir`] when it cannot be read, is no directory, or was made by another user in this user's name.
pub fn read_pools() -> Result<Vec<PoolEntry>, NameError> {
    let mut pools: Vec<PoolEntry> = files()?
        .into_iter()
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let name = name.strip_suffix(SOCKET_SUFFIX)?.to_owned();
            if !may_be_socket(&path) {
                return None;
            }
            // Checked by the socket, never by the lock: a check would hold the lock briefly, and could make a producer fail that
            // starts at that time.
            let refused = socket::connect_to(&path)
                .inspect(|_| fault::point(Point::PoolTried))
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            let live = !refused;
            Some(PoolEntry { name, path, live })
        })
        .collect();
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(pools)
}

/// The pools of the runtime directory that [`read_pools`] does not return and that have a lock file, by the path of the socket: pools
/// without a socket, and pools whose socket has no suffix `.sock`, such as those of processes that joined a channel. Their producers
/// were killed, or are running, starting or ending: [`remove_stale`](crate::discovery::remove_stale) distinguishes these.
///
/// # Errors
///
/// As for [`read_pools`].
pub fn read_locks() -> Result<Vec<PathBuf>, NameError> {
    let mut sockets: Vec<PathBuf> = files()?
        .into_iter()
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let stem = name.strip_suffix(LOCK_SUFFIX)?;
            let bare = stem.strip_suffix(BARE_SUFFIX);
            let bare = bare.map(|bare| path.with_file_name(bare));
            if let Some(bare) = bare.filter(|bare| bare.exists()) {
                return Some(bare);
            }
            let socket = path.with_file_name(format!("{stem}{SOCKET_SUFFIX}"));
            let is_alone = fs::symlink_metadata(&socket).is_err();
            is_alone.then_some(socket)
        })
        .collect();
    sockets.sort();
    Ok(sockets)
}

/// The files of the runtime directory.
fn files() -> Result<Vec<PathBuf>, NameError> {
    let dir = runtime_dir();
    if !is_dir_given() {
        check_dir(&dir)?;
    }
    match fs::read_dir(&dir) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(refused(&dir, error.to_string())),
    }
}

/// The names of the files of a directory.
pub(crate) fn names_in(dir: &Path) -> io::Result<HashSet<OsString>> {
    fs::read_dir(dir)?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}

/// Whether the file is a socket, or a link to one.
fn may_be_socket(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(meta) => meta.file_type().is_socket(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Whether a pool's socket is in a directory that contains only pools.
pub(crate) fn is_in_runtime_dir(pool: &OsStr, socket: &Path) -> bool {
    let place = |dir: &Path| fs::metadata(dir).map(|meta| (meta.dev(), meta.ino())).ok();
    !is_path(pool)
        || socket
            .parent()
            .and_then(place)
            .is_some_and(|dir| Some(dir) == place(&runtime_dir()))
}

/// Other runtime directories of this host that have a socket of this name.
pub fn other_runtime_dirs_with(pool: impl AsRef<OsStr>) -> Vec<PathBuf> {
    let Some(pool) = pool.as_ref().to_str().filter(|pool| !pool.contains('/')) else {
        return Vec::new();
    };
    let mut dirs = other_runtime_dirs();
    dirs.retain(|dir| dir.join(format!("{pool}{SOCKET_SUFFIX}")).exists());
    dirs
}

/// Directories of this host that processes with another environment, or of other users, use as their runtime directory.
pub fn other_runtime_dirs() -> Vec<PathBuf> {
    let own = runtime_dir();
    let children = |dir: &str| {
        fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect::<Vec<_>>()
    };
    let in_tmp = children("/tmp").into_iter().filter(|dir| {
        dir.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("xmem-"))
    });
    let in_run = children("/run/user")
        .into_iter()
        .map(|dir| dir.join("xmem"));
    let xdg = xdg_dir().map(|dir| dir.join("xmem"));
    let mut dirs: Vec<PathBuf> = in_tmp
        .chain(in_run)
        .chain(xdg)
        .filter(|dir| *dir != own && dir.is_dir())
        .collect();
    dirs.sort();
    dirs.dedup();
    dirs
}

/// The existing pools as text, for messages about a pool without a producer. Other users choose some of the names, so control
/// characters are replaced.
pub fn pools_in_words(pool: impl AsRef<OsStr>) -> String {
    let live = pools().into_iter().filter(|pool| pool.live);
    let live: Vec<_> = live.map(|pool| pool.name).collect();
    let live = match live.as_slice() {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    let words = format!("pools in {}: {live}", runtime_dir().display());
    let elsewhere = other_runtime_dirs_with(pool).into_iter();
    let elsewhere: Vec<_> = elsewhere.map(|dir| dir.display().to_string()).collect();
    if elsewhere.is_empty() {
        return printable(&words);
    }
    printable(&format!(
        "{words}. A pool of that name is in {}: if you trust the owner of that directory, set XMEM_RUNTIME_DIR to it on both sides",
        elsewhere.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_names_are_refused_with_the_reason() {
        assert!(matches!(socket_path(""), Err(NameError::Empty)));
        assert!(matches!(
            socket_path("a\u{7}b"),
            Err(NameError::ControlCharacter(_))
        ));
        assert!(matches!(socket_path("/tmp/"), Err(NameError::Directory(_))));
        assert!(matches!(
            socket_path(OsStr::from_bytes(b"/tmp/\xff/")),
            Err(NameError::Directory(_))
        ));
        assert!(matches!(
            socket_path(OsStr::from_bytes(b"\xff")),
            Err(NameError::NotUtf8(_))
        ));
        assert!(matches!(
            socket_path("x".repeat(200)),
            Err(NameError::TooLong { .. })
        ));
        assert!(matches!(
            socket_path(format!("/{}", "x".repeat(107))),
            Err(NameError::TooLong { .. })
        ));
        assert!(socket_path(format!("/{}", "x".repeat(106))).is_ok());
    }

    #[test]
    fn paths_are_absolute() {
        let here = env::current_dir().unwrap();
        for (pool, path) in [
            ("./p.sock", here.join("p.sock")),
            ("a/b", here.join("a/b")),
            ("../p", here.join("../p")),
            ("/run/p.sock", PathBuf::from("/run/p.sock")),
        ] {
            assert_eq!(socket_path(pool).unwrap(), path);
        }
        // The limit is that of the path in the address of the socket.
        let longest = MAX_PATH_LEN - here.as_os_str().len() - 1;
        let long = |len| format!("./{}", "x".repeat(len));
        assert!(socket_path(long(longest)).is_ok());
        assert!(matches!(
            socket_path(long(longest + 1)),
            Err(NameError::TooLong { .. })
        ));
        for pool in ["./", "./.", "..", "a/.."] {
            assert!(matches!(socket_path(pool), Err(NameError::Directory(_))));
        }
    }

    #[test]
    fn the_lock_file_is_beside_the_socket() {
        assert_eq!(lock_path(Path::new("/a/b.sock")), Path::new("/a/b.lock"));
        assert_eq!(lock_path(Path::new("/a/b")), Path::new("/a/b.xmem.lock"));
        for (socket, lock) in [
            (&b"/a/\xff.sock"[..], &b"/a/\xff.lock"[..]),
            (b"/a/\xff", b"/a/\xff.xmem.lock"),
        ] {
            let [socket, lock] = [socket, lock].map(OsStr::from_bytes);
            assert_eq!(lock_path(Path::new(socket)), Path::new(lock));
        }
    }

    #[test]
    fn directories_that_others_control_are_refused() {
        let mode = fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new()
            .permissions(mode)
            .tempdir()
            .unwrap();
        assert!(matches!(check_dir(dir.path()), Ok(true)));
        assert!(matches!(check_dir(&dir.path().join("none")), Ok(false)));
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(check_dir(&open).is_err());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(check_dir(&link).is_err());
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        // Ordinary users, and root in some containers, may not do this.
        if std::os::unix::fs::chown(&other, Some(4242), None).is_ok() {
            assert!(check_dir(&other).is_err());
        }
    }
}
