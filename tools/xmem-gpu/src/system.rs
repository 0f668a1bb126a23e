// SPDX-License-Identifier: MPL-2.0

//! The undocumented requirements and limits of the driver.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::questions::{
    INTERPROCESS, MIB, NO_TIMES, NON_BLOCKING, import, own_path, remote, shareable, start, words,
};
use crate::remote::{Failed, Remote};
use crate::report;

const SHARED: &str = "/dev/shm";

/// Describes the machine before a driver is used.
pub(crate) fn describe() {
    let user = rustix::process::geteuid().as_raw();
    report("device", "user", user);
    match rustix::fs::statvfs(SHARED) {
        Ok(size) => report(
            "device",
            SHARED,
            format!("{} MiB", size.f_blocks * size.f_frsize / MIB),
        ),
        Err(error) => report("device", SHARED, error),
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"));
    report("device", "limit of locked memory", limit);
    let paths = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    report("device", "LD_LIBRARY_PATH", paths);
    report("device", "devices", names("/dev", "nvidia").join(" "));
    // SAFETY: loading the driver runs its initialisers.
    let driver = unsafe { libloading::Library::new("libcuda.so.1") };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let place = maps.lines().find_map(|line| {
        line.find('/')
            .map(|at| &line[at..])
            .filter(|path| path.contains("/libcuda.so"))
    });
    match (driver, place) {
        (Err(error), _) => {
            let why = error.source().map(ToString::to_string);
            report("device", "libcuda.so.1", why.unwrap_or_default());
        }
        (Ok(_), place) => report("device", "libcuda.so.1", place.unwrap_or("loaded")),
    }
    if let Some(folder) = place.and_then(|place| Path::new(place).parent()) {
        for library in [
            "libnvidia-ptxjitcompiler.so",
            "libnvcuvid.so",
            "libnvidia-encode.so",
        ] {
            let found = names(&folder.display().to_string(), library).join(" ");
            report(
                "device",
                library,
                if found.is_empty() {
                    "not beside it"
                } else {
                    &found
                },
            );
        }
    }
}

/// The names in a folder with this prefix.
fn names(folder: &str, beginning: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(beginning))
        .collect();
    names.sort();
    names
}

pub(crate) fn ask() {
    small_allocations();
    ranges();
    imported_twice();
    errors();
    unreported_errors();
    host_functions();
    shared_memory();
    without_shared_memory();
    // Last, because it exhausts a resource.
    let made = remote().call("new_events", &[30_000]);
    let what = "make 30000 interprocess events: how many were made, error of making, of exporting";
    report("g", what, words(&made));
}

/// Two small allocations may be in one larger block, and a handle may be for the whole block.
fn small_allocations() {
    let (mut exporter, mut importer) = (remote(), remote());
    let [one, two] = [1, 2].map(|byte| {
        let memory = exporter.call("alloc", &[4096])?[0];
        exporter.call("set_now", &[memory, byte, 4096])?;
        exporter.call("synchronize", &[])?;
        Ok::<_, Failed>((memory, exporter.call("ipc_handle", &[memory])?))
    });
    let (Ok((at_one, one)), Ok((at_two, two))) = (one, two) else {
        return report(
            "g",
            "legacy: handles of small allocations",
            "there are none",
        );
    };
    let apart = at_two.wrapping_sub(at_one).cast_signed();
    report("g", "legacy: small allocations lie apart by", apart);
    report("g", "legacy: their handles differ", one != two);
    for (what, handle) in [("second", two), ("first", one)] {
        let seen = importer.call("open", &handle);
        let Ok(seen) = seen else {
            report("g", &format!("legacy: open the {what}"), words(&seen));
            continue;
        };
        let bytes = importer.call("uniform", &[seen[0], 4096]);
        let what =
            format!("legacy: read the {what} at the address that opening gives (its number, 4096)");
        report("g", &what, words(&bytes));
        for call in ["range", "range_by_attributes"] {
            let range = importer.call(call, &[seen[0]]);
            let range = range
                .map(|range| format!("begins {} before, {} bytes", seen[0] - range[0], range[1]));
            report("g", &format!("legacy: its {call}"), words(&range));
        }
    }
}

/// The driver's information about mapped memory.
fn ranges() {
    let mut own = remote();
    let Ok([pointer, _]) = shareable(&mut own, 4 * MIB) else {
        return;
    };
    for call in [
        "range",
        "range_by_attributes",
        "memory_type",
        "ordinal",
        "ipc_capable",
    ] {
        let result = own.call(call, &[pointer + 2 * MIB]);
        report(
            "g",
            &format!("VMM: {call} of its middle at {pointer}"),
            words(&result),
        );
    }
}

/// Imports a descriptor twice, as xmem does if the driver refuses read-only access.
fn imported_twice() {
    let mut exporter = remote();
    let Ok([_, descriptor]) = shareable(&mut exporter, 2 * MIB) else {
        return;
    };
    let descriptor = exporter.take_descriptor(descriptor);
    let mut importer = remote();
    let number = importer.give_descriptor(&descriptor);
    for what in ["first", "second"] {
        let seen = import(&mut importer, number, 2 * MIB, 3);
        let read = seen.and_then(|(seen, _)| importer.call("uniform", &[seen, 4096]));
        let what = format!("VMM: import one descriptor in one process, the {what} time (6, 4096)");
        report("g", &what, words(&read));
    }
}

/// Which calls report that a kernel has failed. xmem creates an event and queries it.
fn errors() {
    let mut broken = remote();
    let memory = broken.call("alloc", &[4096]);
    let stream = broken.call("stream", &[NON_BLOCKING]);
    let event = broken.call("event", &[NO_TIMES]);
    let (Ok(memory), Ok(stream), Ok(event)) = (memory, stream, event) else {
        return;
    };
    let _ = broken.call("trap_kernel", &[0]);
    let _ = broken.call("synchronize", &[]);
    let primary = broken.call("current", &[]).unwrap_or_default();
    let fresh = broken.call("event", &[NO_TIMES]);
    report(
        "g",
        "in a failed context: make an event",
        words(&fresh.clone().map(|_| "made")),
    );
    let mut calls = vec![
        ("look at an event made before", "query_event", event.clone()),
        ("record an event", "record", vec![event[0], stream[0]]),
        ("look at a stream", "query", stream.clone()),
        ("a stream's context", "stream_context", stream),
        ("an allocation's range", "range", memory.clone()),
        ("a pointer's attribute", "memory_type", memory),
        ("make it current", "use_context", primary),
        ("reserve addresses", "vmm_reserve", vec![2 * MIB]),
        ("destroy an event", "destroy_event", event),
    ];
    if let Ok(fresh) = fresh {
        calls.insert(0, ("look at that event", "query_event", fresh));
    }
    for (what, call, arguments) in calls {
        let result = broken.call(call, &arguments);
        report(
            "g",
            &format!("in a failed context: {what}"),
            words(&result.map(|_| "no error")),
        );
    }
}

/// Which calls are the first to report that a kernel has failed. While leases wait, xmem creates an event and queries it, once a
/// second. Each call has its own process, because it may change what later calls report.
fn unreported_errors() {
    for what in ["a new event", "an idle stream", "an event behind it"] {
        let mut own = remote();
        let found = (|| {
            let stream = own.call("stream", &[NON_BLOCKING])?;
            let behind = own.call("event", &[NO_TIMES])?;
            own.call("trap_kernel", &[0])?;
            own.call("record", &[behind[0], 0])?;
            std::thread::sleep(Duration::from_secs(1));
            match what {
                "a new event" => {
                    let fresh = own.call("event", &[NO_TIMES])?;
                    own.call("query_event", &fresh)
                }
                "an idle stream" => own.call("query", &stream),
                _ => own.call("query_event", &behind),
            }
        })();
        let what =
            format!("1 s after a kernel that fails, without a call in between: look at {what}");
        report("g", &what, words(&found));
    }
}

/// Whether a host function that waits delays those of other streams and contexts.
fn host_functions() {
    let mut own = remote();
    let made = (|| {
        let word = own.call("host", &[4096])?[0];
        let one = own.call("stream", &[NON_BLOCKING])?[0];
        let two = own.call("stream", &[NON_BLOCKING])?[0];
        own.call("waiting_host_function", &[one, word])?;
        own.call("host_function", &[two])?;
        pause();
        let same = own.call("ran", &[])?[0];
        own.call("new_context", &[0])?;
        own.call("host_function", &[0])?;
        pause();
        let other = own.call("ran", &[])?[0];
        own.call("poke", &[word, 2])?;
        Ok::<_, Failed>((same, other - same))
    })();
    let what = "host functions that ran while one of another stream waited: in its context, in another one";
    report("g", what, words(&made));
}

fn pause() {
    std::thread::sleep(Duration::from_millis(300));
}

/// Creates an interprocess event in a process. Returns its handle.
fn with_event(mut exporter: Remote) -> Result<(Remote, Vec<u64>), Failed> {
    let event = exporter.call("event", &[INTERPROCESS])?[0];
    let handle = exporter.call("event_handle", &[event])?;
    Ok((exporter, handle))
}

/// Files of interprocess events in shared memory.
fn shared_memory() {
    let before = names(SHARED, "");
    let Ok((exporter, _)) = with_event(remote()) else {
        return report("g", "interprocess events", "there are none");
    };
    let new = || {
        let now = names(SHARED, "");
        let new: Vec<_> = now
            .into_iter()
            .filter(|name| !before.contains(name))
            .collect();
        format!("{new:?}")
    };
    report("g", "new in /dev/shm with an interprocess event", new());
    exporter.kill();
    report("g", "after SIGKILL of its process", new());
}

/// As between containers: another /dev/shm, or a read-only one.
fn without_shared_memory() {
    for (options, how) in [("rw", "another /dev/shm"), ("ro", "a read-only /dev/shm")] {
        let mount = format!("mount -t tmpfs -o {options} tmpfs {SHARED}");
        let within = |rest: &str| {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", &format!("{mount} && {rest}")]);
            command
        };
        let works = within("true").output();
        if !works.is_ok_and(|output| output.status.success()) {
            return report("g", how, "not run: unshare or mount is not allowed here");
        }
        let inside = || start(within(&format!("exec '{}'", own_path().display())));
        let exported = with_event(inside());
        let made = match &exported {
            Ok(_) => "made",
            Err(Failed(error)) => error,
        };
        report(
            "g",
            &format!("with {how}: make an interprocess event"),
            made,
        );
        if let Ok((_exporter, handle)) = exported {
            let opened = remote().call("open_event", &handle).map(|_| "opened");
            report(
                "g",
                &format!("with {how} at the exporter: open its event"),
                words(&opened),
            );
        }
        let mut exporter = remote();
        let handle = exporter.call("alloc", &[2 * MIB]);
        let handle = handle.and_then(|memory| exporter.call("ipc_handle", &memory));
        let opened = handle.and_then(|handle| inside().call("open", &handle));
        report(
            "g",
            &format!("with {how} at the importer: open a legacy handle"),
            words(&opened.map(|_| "opened")),
        );
    }
}
