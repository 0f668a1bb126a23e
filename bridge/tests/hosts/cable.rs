// SPDX-License-Identifier: MPL-2.0

//! Two hosts, each a network namespace, with a virtual cable between them. Root is not needed if users may create namespaces.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// The addresses of hosts a and b.
pub(crate) const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// A process that keeps a network namespace alive. It ends when this process ends.
struct Keeper(Child);

impl Keeper {
    fn start(mut command: Command) -> Result<Self, String> {
        command.args(["sh", "-c", "echo ready && exec cat"]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.stderr(Stdio::inherit()).spawn();
        let mut keeper = Self(child.map_err(|error| error.to_string())?);
        let mut line = String::new();
        let mut stdout = BufReader::new(keeper.0.stdout.take().unwrap());
        match stdout.read_line(&mut line) {
            Ok(1..) => Ok(keeper),
            _ => Err("unshare fails".to_owned()),
        }
    }

    fn target(&self) -> String {
        format!("--target={}", self.0.id())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Hosts a and b. They are removed when the value is dropped.
pub(crate) struct Cable([Keeper; 2]);

impl Cable {
    /// Creates the hosts. The error is the reason why the machine does not allow it.
    pub(crate) fn new() -> Result<Self, String> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--net"]);
        let a = Keeper::start(unshare)?;
        let mut unshare = Command::new("nsenter");
        unshare.args(["--user", "--preserve-credentials", &a.target()]);
        unshare.args(["unshare", "--net"]);
        let cable = Self([a, Keeper::start(unshare)?]);
        let other = cable.0[1].0.id().to_string();
        cable.ip(
            "a",
            &format!("link add cable type veth peer name cable netns {other}"),
        )?;
        for (host, address) in ["a", "b"].into_iter().zip(ADDRESSES) {
            cable.ip(host, &format!("address add {address}/24 dev cable"))?;
            cable.ip(host, "link set cable up")?;
        }
        Ok(cable)
    }

    /// A command that runs the program in its arguments on a host.
    pub(crate) fn on(&self, host: &str) -> Command {
        let keeper = &self.0[usize::from(host != "a")];
        let mut command = Command::new("nsenter");
        command.args(["--user", "--net", "--preserve-credentials"]);
        command.arg(keeper.target());
        command
    }

    /// Limits what host a sends, in the syntax of tc. The error is the reason why the machine does not allow it.
    pub(crate) fn limit(&self, rate: &str) -> Result<(), String> {
        let args = format!("qdisc add dev cable root tbf rate {rate} burst 64kb latency 50ms");
        self.run("a", "tc", &args)
    }

    /// Cuts the cable, or connects it again.
    pub(crate) fn cut(&self, is_cut: bool) {
        let state = if is_cut { "down" } else { "up" };
        self.ip("a", &format!("link set cable {state}")).unwrap();
    }

    fn ip(&self, host: &str, args: &str) -> Result<(), String> {
        self.run(host, "ip", args)
    }

    fn run(&self, host: &str, program: &str, args: &str) -> Result<(), String> {
        let output = self.on(host).arg(program).args(args.split(' ')).output();
        let output = output.map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}
