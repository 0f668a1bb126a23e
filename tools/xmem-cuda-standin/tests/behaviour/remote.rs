// SPDX-License-Identifier: MPL-2.0

//! A child process that executes CUDA calls on command: `alloc 4096` returns a pointer, or the name of an error. The child is this
//! test program with the test [`the_other_side`].

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use xmem_cuda_standin::Machine;

/// The time limit of a call.
const PATIENCE: Duration = Duration::from_secs(30);

const SOCKET: &str = "XMEM_STANDIN_TEST_SOCKET";

/// The name of a CUresult.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failed(pub(crate) String);

/// A child process.
#[derive(Debug)]
pub(crate) struct Remote {
    child: Child,
    stream: BufReader<UnixStream>,
    patience: Duration,
    _folder: tempfile::TempDir,
}

impl Remote {
    /// Starts a child without a context.
    pub(crate) fn bare(machine: &Machine, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.args(["--exact", "remote::the_other_side", "--nocapture"]);
        machine.prepare(&mut command);
        command.envs(variables.iter().copied());
        Self::start(command)
    }

    /// Starts a child with a command of the caller, whose program calls [`serve`].
    pub(crate) fn start(mut command: Command) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bind");
        command.env(SOCKET, &path).stdout(Stdio::null());
        let child = command.spawn().expect("spawn");
        let stream = listener.accept().expect("accept").0;
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self {
            child,
            stream: BufReader::new(stream),
            patience: PATIENCE,
            _folder: folder,
        }
    }

    /// Starts a child with the primary context of the first device.
    pub(crate) fn new(machine: &Machine) -> Self {
        Self::with(machine, &[])
    }

    pub(crate) fn with(machine: &Machine, variables: &[(&str, &str)]) -> Self {
        let mut remote = Self::bare(machine, variables);
        remote.done("init", &[]);
        remote.one("primary", &[0]);
        remote
    }

    /// Sets another time limit for calls.
    #[allow(dead_code)] // for xmem-gpu
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(patience)).expect("a timeout");
        self.patience = patience;
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Executes a call.
    pub(crate) fn call(&mut self, name: &str, arguments: &[u64]) -> Result<Vec<u64>, Failed> {
        let words = arguments
            .iter()
            .map(|number| format!(" {number}"))
            .collect::<String>();
        self.stream
            .get_mut()
            .write_all(format!("{name}{words}\n").as_bytes())
            .expect("send");
        self.answer(name)
    }

    /// Sends a call and does not wait for its result.
    pub(crate) fn begin(&mut self, name: &str, arguments: &[u64]) {
        let words = arguments
            .iter()
            .map(|number| format!(" {number}"))
            .collect::<String>();
        self.stream
            .get_mut()
            .write_all(format!("{name}{words}\n").as_bytes())
            .expect("send");
    }

    pub(crate) fn answer(&mut self, name: &str) -> Result<Vec<u64>, Failed> {
        let mut line = String::new();
        if let Err(error) = self.stream.read_line(&mut line) {
            return Err(Failed(format!("{name} hangs: {error}")));
        }
        let mut words = line.split_whitespace();
        match words.next() {
            Some("ok") => Ok(words.map(|word| word.parse().expect("a number")).collect()),
            Some("error") => Err(Failed(words.next().expect("a name").to_owned())),
            _ => Err(Failed(format!("{name}: the process has ended"))),
        }
    }

    /// Executes a call that returns one number.
    #[track_caller]
    pub(crate) fn one(&mut self, name: &str, arguments: &[u64]) -> u64 {
        match self.call(name, arguments).as_deref() {
            Ok([number]) => *number,
            other => panic!("{name} {arguments:?}: {other:?}"),
        }
    }

    /// Executes a call that returns nothing.
    #[track_caller]
    pub(crate) fn done(&mut self, name: &str, arguments: &[u64]) {
        let answer = self.call(name, arguments);
        assert_eq!(answer.as_deref(), Ok(&[][..]), "{name} {arguments:?}");
    }

    /// Receives a descriptor from the child.
    pub(crate) fn take_descriptor(&mut self, number: u64) -> OwnedFd {
        self.begin("send_descriptor", &[number]);
        let descriptor = receive(self.stream.get_ref());
        self.answer("send_descriptor").expect("sent");
        descriptor
    }

    /// Sends a descriptor to the child. Returns its number there.
    pub(crate) fn give_descriptor(&mut self, descriptor: &OwnedFd) -> u64 {
        self.begin("receive_descriptor", &[]);
        send(self.stream.get_ref(), descriptor.as_raw_fd());
        self.answer("receive_descriptor").expect("received")[0]
    }

    /// The legacy handle of a pointer, as the arguments of `open`.
    pub(crate) fn handle(&mut self, pointer: u64) -> Vec<u64> {
        self.call("ipc_handle", &[pointer]).expect("a handle")
    }

    /// Kills the child and waits for it.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Executes a call that kills the child. Returns the signal.
    pub(crate) fn dies_of(mut self, name: &str, arguments: &[u64]) -> Option<i32> {
        self.begin(name, arguments);
        self.child.wait().expect("wait").signal()
    }

    /// Lets the child exit. Returns its exit code. `None`: it hangs, or a signal killed it.
    pub(crate) fn end(mut self) -> Option<i32> {
        self.stream
            .get_mut()
            .shutdown(std::net::Shutdown::Both)
            .expect("shutdown");
        let start = Instant::now();
        while start.elapsed() < self.patience {
            match self.child.try_wait().expect("wait") {
                Some(status) => return status.code(),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(stream: &UnixStream, number: i32) {
    // SAFETY: the descriptor belongs to the caller and is open during this call.
    let descriptors = [unsafe { BorrowedFd::borrow_raw(number) }];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(
        stream,
        &[IoSlice::new(b"!")],
        &mut control,
        SendFlags::empty(),
    )
    .expect("sendmsg");
}

fn receive(stream: &UnixStream) -> OwnedFd {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .expect("recvmsg");
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    descriptors.next().expect("a descriptor")
}

/// The child process. As a normal test it does nothing.
#[test]
fn the_other_side() {
    serve();
}

/// Executes calls if this process is a child. Returns whether it is.
pub(crate) fn serve() -> bool {
    let Some(path) = std::env::var_os(SOCKET) else {
        return false;
    };
    let mut stream = UnixStream::connect(path).expect("connect");
    // Byte by byte, so that a buffer does not consume a descriptor.
    loop {
        let mut line = Vec::new();
        let mut byte = [0];
        while byte != *b"\n" {
            match stream.read(&mut byte) {
                Ok(1) => line.push(byte[0]),
                _ => return true,
            }
        }
        let line = String::from_utf8(line).expect("text");
        let mut words = line.split_whitespace();
        let name = words.next().expect("a name").to_owned();
        let arguments = words
            .map(|word| word.parse().expect("a number"))
            .collect::<Vec<u64>>();
        let answer = match name.as_str() {
            "send_descriptor" => {
                send(&stream, arguments[0] as i32);
                Ok(Vec::new())
            }
            "receive_descriptor" => Ok(vec![receive(&stream).into_raw_fd() as u64]),
            "close_descriptor" => {
                // SAFETY: the number is from a call that passed the ownership of the descriptor.
                drop(unsafe { OwnedFd::from_raw_fd(arguments[0] as i32) });
                Ok(Vec::new())
            }
            _ => calls::call(&name, &arguments),
        };
        let text = match answer {
            Ok(numbers) => numbers
                .iter()
                .fold("ok".to_owned(), |text, number| format!("{text} {number}")),
            Err(error) => format!("error {error:?}"),
        };
        if stream.write_all(format!("{text}\n").as_bytes()).is_err() {
            return true;
        }
    }
}

#[path = "calls.rs"]
mod calls;
