// SPDX-License-Identifier: MPL-2.0

//! Questions that the driver's documentation leaves open. Each is answered by an experiment with processes. The results are printed
//! and not asserted.

use std::ffi::CStr;
use std::fmt::Debug;
use std::process::Command;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use crate::remote::{Failed, Remote};
use crate::{report, system};

pub(crate) const INTERPROCESS: u64 = 6;
pub(crate) const NON_BLOCKING: u64 = 1;
pub(crate) const NO_TIMES: u64 = 2;
const DEVICEMAP: u64 = 2;
const READ_ONLY: u64 = 8;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn remote() -> Remote {
    start(Command::new(own_path()))
}

pub(crate) fn own_path() -> std::path::PathBuf {
    std::env::current_exe().expect("own path")
}

/// Starts a process with the primary context of the first device.
pub(crate) fn start(command: Command) -> Remote {
    let mut remote = Remote::start(command);
    remote.done("init", &[]);
    remote.one("primary", &[0]);
    remote
}

/// The result of a call as text.
pub(crate) fn words<T: Debug>(answer: &Result<T, Failed>) -> String {
    match answer {
        Ok(value) => format!("works: {value:?}").replace("works: []", "works"),
        Err(Failed(name)) => name.clone(),
    }
}

/// A call and its duration in ms. The communication with the process adds a few µs.
fn timed(remote: &mut Remote, name: &str, arguments: &[u64]) -> (Result<Vec<u64>, Failed>, f64) {
    let start = Instant::now();
    let answer = remote.call(name, arguments);
    (answer, start.elapsed().as_secs_f64() * 1e3)
}

/// Describes the device and the driver.
pub fn device() {
    system::describe();
    // SAFETY: loads and closes the driver's library.
    if !unsafe { sys::is_culib_present() } {
        return report("device", "driver", "none");
    }
    let mut version = 0;
    let mut count = 0;
    // SAFETY: the pointers for the results are valid.
    unsafe {
        let result = sys::cuInit(0);
        if result != sys::CUresult::CUDA_SUCCESS {
            return report("device", "cuInit", format!("{result:?}"));
        }
        sys::cuDriverGetVersion(&raw mut version);
        sys::cuDeviceGetCount(&raw mut count);
    }
    report(
        "device",
        "CUDA of the driver",
        format!("{}.{}", version / 1000, version % 1000 / 10),
    );
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    report(
        "device",
        "kernel module",
        driver.lines().next().unwrap_or("none"),
    );
    for ordinal in 0..count {
        let mut name = [0; 200];
        let mut memory = 0;
        // SAFETY: the pointers for the results are valid and have the given sizes.
        let name = unsafe {
            sys::cuDeviceGetName(name.as_mut_ptr(), 200, ordinal);
            sys::cuDeviceTotalMem_v2(&raw mut memory, ordinal);
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        report("device", "card", format!("{name}, {} GiB", memory >> 30));
        use sys::CUdevice_attribute_enum as Attribute;
        for (what, attribute) in [
            (
                "descriptors of device memory",
                Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            ),
            (
                "interprocess events",
                Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
            ),
            (
                "stream memory operations",
                Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
            ),
            (
                "registering read-only host memory",
                Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
            ),
            (
                "host pointers for registered memory",
                Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
            ),
        ] {
            let mut value = 0;
            // SAFETY: the pointer for the result is valid.
            let result = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, ordinal) };
            let known = result == sys::CUresult::CUDA_SUCCESS;
            report(
                "device",
                what,
                if known {
                    value.to_string()
                } else {
                    format!("{result:?}")
                },
            );
        }
    }
}

/// Answers one question.
pub fn answer(letter: char) {
    match letter {
        'a' => legacy(),
        'b' => by_descriptor(),
        'c' => host_memory(),
        'd' => releases_and_events(),
        'e' => {
            one_process();
            two_contexts();
            failure_of_another_context();
            memory_of_another_context();
        }
        'f' => namespaces(),
        'g' => system::ask(),
        _ => report("questions", "no such question", letter),
    }
}

fn legacy() {
    for size in [32 * MIB, 1024 * MIB] {
        let (mut exporter, mut importer) = (remote(), remote());
        let memory = exporter.one("alloc", &[size]);
        exporter.done("set_now", &[memory, 6, size]);
        exporter.done("synchronize", &[]);
        let handle = exporter.handle(memory);
        let (mut opened, mut closed) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let (seen, time) = timed(&mut importer, "open", &handle);
            let Ok(seen) = seen else {
                return report("a", "legacy: open", words(&seen));
            };
            opened.push(time);
            closed.push(timed(&mut importer, "close", &seen).1);
        }
        report(
            "a",
            &format!("legacy: open and close, {} MiB, ms", size / MIB),
            format!("{opened:.2?} {closed:.2?}"),
        );
        let seen = importer.one("open", &handle);
        exporter.kill();
        let read = importer.call("uniform", &[seen, 4096]);
        report(
            "a",
            "legacy: read what is open after SIGKILL of the exporter (6, 4096)",
            words(&read),
        );
        let mut late = remote();
        report(
            "a",
            "legacy: open after SIGKILL of the exporter",
            words(&late.call("open", &handle)),
        );
        report(
            "a",
            "legacy: close after SIGKILL of the exporter",
            words(&importer.call("close", &[seen])),
        );
    }
}

/// Allocates `size` bytes with the value 6. Returns the pointer and a descriptor in the exporter.
pub(crate) fn shareable(exporter: &mut Remote, size: u64) -> Result<[u64; 2], Failed> {
    let handle = exporter.call("vmm_create", &[0, size, 1])?[0];
    let pointer = exporter.call("vmm_reserve", &[size])?[0];
    exporter.call("vmm_map", &[pointer, size, handle])?;
    exporter.call("vmm_access", &[pointer, size, 0, 3])?;
    exporter.call("set_now", &[pointer, 6, size])?;
    exporter.call("synchronize", &[])?;
    Ok([pointer, exporter.call("vmm_export", &[handle])?[0]])
}

/// Imports and maps the memory of a descriptor. Returns the duration of each call in ms.
pub(crate) fn import(
    importer: &mut Remote,
    number: u64,
    size: u64,
    access: u64,
) -> Result<(u64, Vec<f64>), Failed> {
    let mut times = Vec::new();
    let mut call = |name: &str, arguments: &[u64]| {
        let (answer, time) = timed(importer, name, arguments);
        times.push(time);
        answer
    };
    let handle = call("vmm_import", &[number])?[0];
    let pointer = call("vmm_reserve", &[size])?[0];
    call("vmm_map", &[pointer, size, handle])?;
    call("vmm_access", &[pointer, size, 0, access])?;
    Ok((pointer, times))
}

fn by_descriptor() {
    for size in [32 * MIB, 1024 * MIB] {
        let mut exporter = remote();
        let shared = shareable(&mut exporter, size);
        let Ok([_, descriptor]) = shared else {
            return report("b", "VMM: export", words(&shared));
        };
        let descriptor = exporter.take_descriptor(descriptor);
        let mut importer = remote();
        let number = importer.give_descriptor(&descriptor);
        match import(&mut importer, number, size, 3) {
            Ok((seen, times)) => {
                let unmap = timed(&mut importer, "vmm_unmap", &[seen, size]).1;
                let what = format!(
                    "VMM: import, reserve, map, access and unmap, {} MiB, ms",
                    size / MIB
                );
                report("b", &what, format!("{times:.2?} {unmap:.2}"));
            }
            Err(Failed(error)) => report("b", "VMM: import", error),
        }
        exporter.kill();
        let mut importer = remote();
        let number = importer.give_descriptor(&descriptor);
        let seen = import(&mut importer, number, size, 3);
        let read = seen.and_then(|(seen, _)| importer.call("uniform", &[seen, 4096]));
        report(
            "b",
            "VMM: import and read after SIGKILL of the exporter (6, 4096)",
            words(&read),
        );
    }
    let size = 2 * MIB;
    let mut exporter = remote();
    let Ok([pointer, descriptor]) = shareable(&mut exporter, size) else {
        return;
    };
    let descriptor = exporter.take_descriptor(descriptor);
    let mut importer = remote();
    let number = importer.give_descriptor(&descriptor);
    let seen = import(&mut importer, number, size, 1);
    let what = "VMM: cuMemSetAccess(PROT_READ) on imported memory";
    let access = seen.as_ref().map(|_| "accepted");
    report("b", what, access.unwrap_or_else(|Failed(name)| name));
    if let Ok((seen, _)) = seen {
        report(
            "b",
            "VMM: read there (6, 4096)",
            words(&importer.call("uniform", &[seen, 4096])),
        );
        report(
            "b",
            "VMM: write there by cuMemset",
            words(&importer.call("set_now", &[seen, 1, 4096])),
        );
        report(
            "b",
            "VMM: synchronise after that",
            words(&importer.call("synchronize", &[])),
        );
        let mut importer = remote();
        let number = importer.give_descriptor(&descriptor);
        if let Ok((seen, _)) = import(&mut importer, number, size, 1) {
            report(
                "b",
                "VMM: write there by a kernel",
                words(&importer.call("fill_kernel", &[seen, 4096, 1, 0, 0])),
            );
            report(
                "b",
                "VMM: synchronise after that",
                words(&importer.call("synchronize", &[])),
            );
        }
        report(
            "b",
            "VMM: the exporter sees (6, 4096)",
            words(&exporter.call("uniform", &[pointer, 4096])),
        );
    }
}

fn host_memory() {
    let mut remote = remote();
    let Ok(mappings) = remote.call("sealed", &[2 * MIB]) else {
        return;
    };
    let (writable, read_only) = (mappings[0], mappings[1]);
    report(
        "c",
        "register a sealed memfd, read-write",
        words(&remote.call("register", &[writable, 2 * MIB, DEVICEMAP])),
    );
    report(
        "c",
        "register the same, read-only, without the flag",
        words(&remote.call("register", &[read_only, 2 * MIB, 0])),
    );
    let registered = remote.call("register", &[read_only, 2 * MIB, READ_ONLY | DEVICEMAP]);
    report(
        "c",
        "register the same, read-only, with the flag",
        words(&registered),
    );
    if registered.is_ok() {
        let there = remote.call("device_pointer", &[read_only]);
        report(
            "c",
            "its address on the device is the same",
            words(&there.map(|there| there[0] == read_only)),
        );
    }
    let Ok(there) = remote.call("device_pointer", &[writable]) else {
        return;
    };
    let stream = remote.one("stream", &[NON_BLOCKING]);
    for (how, what) in ["cuStreamWriteValue32", "a host function", "a kernel"]
        .iter()
        .enumerate()
    {
        let times = remote.call("latency", &[how as u64, writable, there[0], 1000, stream]);
        let what =
            format!("from the call until a CPU sees the word, by {what}: least, median, 99 %, ns");
        report("c", &what, words(&times));
    }
}

fn releases_and_events() {
    let mut broken = remote();
    broken.done("trap_kernel", &[0]);
    report(
        "d",
        "queue a host function behind a kernel that fails",
        words(&broken.call("host_function", &[0])),
    );
    report(
        "d",
        "synchronise after that",
        words(&broken.call("synchronize", &[])),
    );
    report(
        "d",
        "host functions that ran",
        words(&broken.call("ran", &[]).map(|counts| counts[0])),
    );
    report(
        "d",
        "allocate after that",
        words(&broken.call("alloc", &[4096])),
    );
    report(
        "d",
        "queue a host function after that",
        words(&broken.call("host_function", &[0])),
    );
    broken.call("new_context", &[0]).ok();
    report(
        "d",
        "allocate in another context of that process",
        words(&broken.call("alloc", &[4096])),
    );
    report(
        "d",
        "that process ends by itself, with",
        format!("{:?}", broken.end()),
    );

    let (mut producer, mut consumer) = (remote(), remote());
    let event = producer.one("event", &[INTERPROCESS]);
    let Ok(handle) = producer.call("event_handle", &[event]) else {
        return;
    };
    let start = Instant::now();
    let mut opened = Vec::new();
    let mut failed = None;
    for _ in 0..2000 {
        match consumer.call("open_event", &handle) {
            Ok(event) => opened.push(event[0]),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let each = start.elapsed().as_secs_f64() * 1e6 / opened.len().max(1) as f64;
    let what = "open one interprocess event 2000 times: how many worked, µs each, what then";
    report("d", what, format!("{} {each:.1} {failed:?}", opened.len()));
    let Some(first) = opened.first().copied() else {
        return;
    };

    let Ok(gate) = producer.call("host", &[4096]) else {
        return;
    };
    producer.done("register", &[gate[0], 4096, DEVICEMAP]);
    let there = producer.one("device_pointer", &[gate[0]]);
    producer.done("wait_value", &[there, 1, 0]);
    producer.done("record", &[event, 0]);
    report(
        "d",
        "query an event whose producer's stream is blocked",
        words(&consumer.call("query_event", &[first])),
    );
    let stream = consumer.one("stream", &[NON_BLOCKING]);
    consumer.done("wait_event", &[first, stream]);
    report(
        "d",
        "a stream that waits for it",
        words(&consumer.call("query", &[stream])),
    );
    producer.kill();
    std::thread::sleep(Duration::from_secs(2));
    report(
        "d",
        "the event 2 s after SIGKILL of its producer",
        words(&consumer.call("query_event", &[first])),
    );
    report(
        "d",
        "the stream then",
        words(&consumer.call("query", &[stream])),
    );
    report(
        "d",
        "open the event after SIGKILL of its producer",
        words(&consumer.call("open_event", &handle)),
    );
    report(
        "d",
        "wait for it on another stream",
        words(&consumer.call("wait_event", &[first, 2])),
    );
    consumer.set_patience(Duration::from_secs(4));
    report(
        "d",
        "release the primary context with such a stream",
        words(&consumer.call("release_primary", &[0])),
    );
    report(
        "d",
        "that process ends by itself within 4 s, with (None: it hangs)",
        format!("{:?}", consumer.end()),
    );
}

fn one_process() {
    let mut own = remote();
    let memory = own.one("alloc", &[2 * MIB]);
    let handle = own.handle(memory);
    report(
        "e",
        "open an own legacy handle",
        words(&own.call("open", &handle)),
    );
    let event = own.one("event", &[INTERPROCESS]);
    if let Ok(handle) = own.call("event_handle", &[event]) {
        report(
            "e",
            "open an own event handle",
            words(&own.call("open_event", &handle)),
        );
    }
    if let Ok([_, descriptor]) = shareable(&mut own, 2 * MIB) {
        let seen = import(&mut own, descriptor, 2 * MIB, 3);
        report(
            "e",
            "import an own descriptor",
            words(&seen.map(|_| "mapped")),
        );
    }
    let mut importer = remote();
    let primary = importer.one("current", &[]);
    report(
        "e",
        "open in the primary context",
        words(&importer.call("open", &handle).map(|_| "opened")),
    );
    importer.call("new_context", &[0]).ok();
    report(
        "e",
        "open the same in a second context too",
        words(&importer.call("open", &handle).map(|_| "opened")),
    );
    importer.call("use_context", &[primary]).ok();
    report(
        "e",
        "and once more in the primary one",
        words(&importer.call("open", &handle).map(|_| "opened")),
    );
}

/// Streams of the primary context with events and memory of another context, also if that context fails.
fn two_contexts() {
    let mut own = remote();
    let primary = own.one("current", &[]);
    let (ours, event) = (
        own.one("stream", &[NON_BLOCKING]),
        own.one("event", &[NO_TIMES]),
    );
    let here = own.one("alloc", &[2 * MIB]);
    let Ok(other) = own.call("new_context", &[0]) else {
        return report("e", "two contexts", "not run: there is no second one");
    };
    let (theirs, there) = (
        own.one("stream", &[NON_BLOCKING]),
        own.one("alloc", &[2 * MIB]),
    );
    let (plain, last) = (own.one("event", &[NO_TIMES]), own.one("event", &[NO_TIMES]));
    own.done("set", &[there, 7, 2 * MIB, theirs]);
    own.done("record", &[plain, theirs]);
    own.done("use_context", &[primary]);
    report(
        "e",
        "record an event on a stream of another context",
        words(&own.call("record", &[event, theirs])),
    );
    let waited = own
        .call("wait_event", &[plain, ours])
        .and_then(|_| own.call("copy", &[here, there, 2 * MIB, ours]))
        .and_then(|_| own.call("sync", &[ours]))
        .and_then(|_| own.call("uniform", &[here, 2 * MIB]));
    report(
        "e",
        "wait for an event of another context, and copy from its memory (7, 2097152)",
        words(&waited),
    );
    own.done("use_context", &other);
    let failed = own
        .call("trap_kernel", &[theirs])
        .and_then(|_| own.call("record", &[last, theirs]));
    own.done("use_context", &[primary]);
    let waits = failed.and_then(|_| own.call("wait_event", &[last, ours]));
    std::thread::sleep(Duration::from_secs(1));
    let seen = waits.and_then(|_| own.call("query", &[ours]));
    report(
        "e",
        "a stream 1 s after it waited for a context whose kernel failed",
        words(&seen),
    );
    report(
        "e",
        "the primary context then",
        words(&own.call("alloc", &[4096])),
    );
}

/// What a failed kernel does to contexts that have nothing to do with it.
fn failure_of_another_context() {
    for failing in ["a second context", "the primary context"] {
        let mut own = remote();
        let primary = own.one("current", &[]);
        let here = own.one("alloc", &[4096]);
        let ours = own.one("stream", &[NON_BLOCKING]);
        let Ok(other) = own.call("new_context", &[0]) else {
            return;
        };
        let there = own.one("alloc", &[4096]);
        let theirs = own.one("stream", &[NON_BLOCKING]);
        let (failed, unrelated, memory, stream) = if failing == "a second context" {
            (other[0], primary, here, ours)
        } else {
            (primary, other[0], there, theirs)
        };
        own.done("use_context", &[failed]);
        let _ = own.call("trap_kernel", &[0]);
        let _ = own.call("synchronize", &[]);
        own.done("use_context", &[unrelated]);
        for (what, call, arguments) in [
            ("look at its stream", "query", vec![stream]),
            ("fill its memory", "set_now", vec![memory, 1, 4096]),
            ("synchronise it", "synchronize", vec![]),
            ("allocate in it", "alloc", vec![4096]),
            ("make a context", "new_context", vec![0]),
        ] {
            let what = format!("after a kernel of {failing} failed, in an unrelated one: {what}");
            let result = own.call(call, &arguments).map(|_| "no error");
            report("e", &what, words(&result));
        }
    }
}

/// Whether a kernel of a second context can read memory of the primary one. CUDA's guide: "each context has its own distinct address
/// space". Each attempt has its own process, because it may put the context in error.
fn memory_of_another_context() {
    let mut exporter = remote();
    let memory = exporter.one("alloc", &[2 * MIB]);
    let handle = exporter.handle(memory);
    let descriptor = shareable(&mut exporter, 2 * MIB)
        .map(|[_, descriptor]| exporter.take_descriptor(descriptor));
    for what in ["own memory", "an opened handle", "an imported descriptor"] {
        let mut own = remote();
        let memory = match (what, &descriptor) {
            ("own memory", _) => own.call("alloc", &[2 * MIB]).map(|found| found[0]),
            ("an opened handle", _) => own.call("open", &handle).map(|found| found[0]),
            (_, Ok(descriptor)) => {
                let number = own.give_descriptor(descriptor);
                import(&mut own, number, 2 * MIB, 1).map(|(seen, _)| seen)
            }
            (_, Err(error)) => Err(error.clone()),
        };
        let read = memory.and_then(|memory| {
            own.call("new_context", &[0])?;
            let sum = own.call("alloc", &[8])?[0];
            own.call("sum_kernel", &[memory, 4096, sum, 0])?;
            own.call("synchronize", &[])
        });
        report(
            "e",
            &format!("a kernel of a second context reads {what} of the primary one"),
            words(&read),
        );
    }
}

fn namespaces() {
    let inside = || {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"])
            .arg(own_path());
        command
    };
    let works = Command::new("unshare")
        .args(["--pid", "--ipc", "--fork", "--mount-proc", "true"])
        .status();
    if !works.is_ok_and(|status| status.success()) {
        return report(
            "f",
            "PID and IPC namespaces",
            "not run: unshare is not allowed here",
        );
    }
    let (mut exporter, mut importer) = (start(inside()), start(inside()));
    let memory = exporter.one("alloc", &[2 * MIB]);
    exporter.done("set_now", &[memory, 6, 2 * MIB]);
    exporter.done("synchronize", &[]);
    let handle = exporter.handle(memory);
    let what = "legacy: open between two PID and IPC namespaces";
    let seen = importer.call("open", &handle);
    report("f", what, words(&seen));
    if let Ok(seen) = seen {
        report(
            "f",
            "legacy: read there (6, 4096)",
            words(&importer.call("uniform", &[seen[0], 4096])),
        );
    }
    report(
        "f",
        "legacy: open from outside both",
        words(&remote().call("open", &handle)),
    );
    if let Ok([_, descriptor]) = shareable(&mut exporter, 2 * MIB) {
        let descriptor = exporter.take_descriptor(descriptor);
        let number = importer.give_descriptor(&descriptor);
        let read = import(&mut importer, number, 2 * MIB, 3)
            .and_then(|(seen, _)| importer.call("uniform", &[seen, 4096]));
        report(
            "f",
            "VMM: import and read between two PID and IPC namespaces (6, 4096)",
            words(&read),
        );
    }
    let event = exporter.one("event", &[INTERPROCESS]);
    if let Ok(handle) = exporter.call("event_handle", &[event]) {
        let opened = importer.call("open_event", &handle).map(|_| "opened");
        report(
            "f",
            "interprocess event: open between two PID and IPC namespaces",
            words(&opened),
        );
    }
    report(
        "f",
        "MIG instances",
        "not run: the card's settings are left as they are",
    );
}
