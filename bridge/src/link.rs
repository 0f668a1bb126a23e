// SPDX-License-Identifier: MPL-2.0

//! The network transport. No other module uses Zenoh.
//!
//! Sending never blocks: every message has `CongestionControl::Drop`. Otherwise Zenoh waits until its queue has room, and blocks
//! the thread that all importers share. Only [`Link::ask`] waits for another host, and [`Link::open`] for a side that must connect.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use zenoh::bytes::ZBytes;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::{CongestionControl, Priority};
use zenoh::query::{ConsolidationMode, Queryable};
use zenoh::{Config, Session, Wait};

use crate::Error;

/// The timeout of a query. [`Link::ask`] starts no further query after this time.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// The files for mutual authentication, in the PEM format.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate of this side.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authority that signs certificates of the other side.
    pub authority: PathBuf,
}

/// The address to listen at or to connect to, with the means of authentication.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Host and port, in Zenoh's syntax.
    pub address: String,
    /// The files for QUIC. `None` selects TCP, without protection.
    pub identity: Option<Identity>,
}

/// The role of this side when the connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It listens.
    Listens,
    /// It connects in the background, and connects again whenever the connection is lost.
    Connects,
    /// It makes one attempt to connect. If that fails, [`Link::open`] fails.
    ConnectsOnce,
    /// It connects to a router. If the first attempt fails, [`Link::open`] fails. If the connection is lost later, it connects
    /// again.
    ConnectsToRouter,
}

fn quoted(text: impl Display) -> String {
    let text = text.to_string();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Checks that a PEM file contains a certificate or a key, because Zenoh's error does not name the file, and a side that connects
/// in the background would retry forever.
fn check_pem(file: &Path, holds: &str) -> Result<(), Error> {
    let text = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    if String::from_utf8_lossy(&text).contains(holds) {
        return Ok(());
    }
    Err(format!(
        "{}: no line ends in {holds:?}, as in a PEM file",
        file.display()
    )
    .into())
}

/// The text of Zenoh's error without the names of source files.
fn plain(error: impl Display) -> String {
    let text = error.to_string();
    let mut parts = text.split(" at /");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let behind = part.split_once(".rs:").map_or("", |(_, behind)| behind);
        let behind = behind.trim_start_matches(|c: char| c.is_ascii_digit());
        text + behind.strip_prefix('.').unwrap_or(behind)
    })
}

/// Texts in errors of quinn and Zenoh for a connection that the other side closed. The text depends on the stage at which the close
/// arrives.
const CLOSED: [&str; 3] = ["aborted by peer", "connection lost", "Connection closed"];

/// The reason why a link cannot be opened, with advice on what to check.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Fault {
    /// This side refused the certificate of the other side.
    #[error("{0}")]
    TheirCertificate(String),
    /// The other side closed the connection. It does so when it refuses the certificate of this side.
    #[error("{0}")]
    OwnCertificate(String),
    /// Another fault, or an unknown one.
    #[error("{0}")]
    Other(String),
}

impl Fault {
    fn other(text: impl Display) -> Self {
        Self::Other(text.to_string())
    }

    /// Makes a fault from Zenoh's error. Zenoh has no type for this error, so its text is searched for known words. Without known
    /// words, the fault lists all possible causes.
    fn of_connection(endpoint: &Endpoint, error: &str) -> Self {
        let address = &endpoint.address;
        let host = address.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_matches(['[', ']']);
        if endpoint.identity.is_none() {
            return Self::other(format_args!("cannot connect to {address}: {error}"));
        }
        if error.contains("KeyMismatch") {
            return Self::other("--key is not the key of --certificate");
        }
        // The text of rustls is the same whichever side refuses a certificate, because the side that refuses may send it when it
        // closes the connection. So check first whether the other side closed the connection.
        let reason = error.split_once("invalid peer certificate: ");
        let reason = reason.map(|(_, reason)| reason);
        // The other side checks the certificate of this side after this side regards the connection as open.
        if CLOSED.iter().any(|words| error.contains(words)) {
            let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            return Self::OwnCertificate(format!(
                "{address} closes the connection, as it does when it refuses a certificate{reason}; check --certificate here, \
                 and --client-ca there"
            ));
        }
        if let Some(reason) = reason {
            return Self::TheirCertificate(format!(
                "the certificate of {address} is refused: {reason}; check --server-ca here, and that the certificate there is \
                 valid and has the name {host:?}"
            ));
        }
        Self::other(format_args!(
            "cannot connect to {address}: {error}; check that an exporter or a router is there with quic/, --certificate and --server-ca \
             here, --client-ca there, and that the certificate there has the name {host:?}"
        ))
    }
}

/// Zenoh's configuration. The values were found by measurement: `docs/design/bridge.md` has the reasons.
fn config(endpoint: &Endpoint, side: Side) -> Result<Config, Error> {
    let protocol = if endpoint.identity.is_some() {
        "quic"
    } else {
        "tcp"
    };
    let mut address = endpoint.address.clone();
    if side != Side::Listens && endpoint.identity.is_some() {
        // Zenoh compares the name in the certificate with all before the last colon.
        address.retain(|it| !"[]".contains(it));
    }
    let there = format!("[{}]", quoted(format_args!("{protocol}/{address}")));
    let none = "[]".to_owned();
    let (listen, connect) = match side {
        Side::Listens => (there, none),
        Side::Connects | Side::ConnectsOnce | Side::ConnectsToRouter => (none, there),
    };
    // At a router, one side must be a client, because Zenoh assumes that all peers at a router are connected with each other, and
    // forwards nothing between them. The importer cannot be the client, because a client cannot start before the other side.
    let mode = match side {
        Side::ConnectsToRouter => "client",
        _ => "peer",
    };
    let mut config = Config::default();
    let mut set = |name: &str, value: &str| {
        let set = config.insert_json5(name, value);
        set.map_err(|error| format!("{name} {value}: {error}"))
    };
    set("mode", &quoted(mode))?;
    set("scouting/multicast/enabled", "false")?;
    set("scouting/gossip/enabled", "false")?;
    set("listen/endpoints", &listen)?;
    set("connect/endpoints", &connect)?;
    let retry = "{period_init_ms: 200, period_max_ms: 1000, period_increase_factor: 2}";
    set("connect/retry", retry)?;
    set("transport/link/tx/lease", "5000")?;
    set("transport/link/tx/queue/size/data", "16")?;
    let drop = "transport/link/tx/queue/congestion_control/drop";
    set(&format!("{drop}/wait_before_drop"), "0")?;
    set("transport/link/rx/buffer_size", "1048576")?;
    // Messages of the bridge fit into a batch. Zenoh would put fragments together to messages of 1 GiB.
    set("transport/link/rx/max_message_size", "262144")?;
    set("transport/unicast/open_timeout", "1500")?;
    set("transport/unicast/accept_timeout", "1500")?;
    if matches!(side, Side::ConnectsOnce | Side::ConnectsToRouter) {
        // Make only one attempt, which `open_timeout` limits, because the error after several attempts does not contain the
        // cause.
        set("connect/timeout_ms", "0")?;
        set("connect/exit_on_failure", "true")?;
    }
    if let Some(identity) = &endpoint.identity {
        let [own, own_key] = match side {
            Side::Listens => ["listen_certificate", "listen_private_key"],
            _ => ["connect_certificate", "connect_private_key"],
        };
        let (certificate, key) = ("BEGIN CERTIFICATE-----", "PRIVATE KEY-----");
        for (name, file, holds) in [
            ("root_ca_certificate", &identity.authority, certificate),
            (own, &identity.certificate, certificate),
            (own_key, &identity.key, key),
        ] {
            check_pem(file, holds)?;
            let name = format!("transport/link/tls/{name}");
            set(&name, &quoted(file.display()))?;
        }
        set("transport/link/tls/enable_mtls", "true")?;
    }
    Ok(config)
}

/// A Zenoh session.
#[derive(Debug, Clone)]
pub struct Link(Session);

/// Sends messages with one key.
#[derive(Debug)]
pub struct Outlet(Publisher<'static>);

/// A subscription to messages. It ends when the value is dropped.
#[derive(Debug)]
pub struct Inlet {
    _subscriber: Subscriber<()>,
}

/// A registration that answers queries. It ends when the value is dropped.
#[derive(Debug)]
pub struct Answers {
    _queryable: Queryable<()>,
}

/// The priority of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// The stream: frames, and the items and probes between them.
    Stream,
    /// Messages that frames in flight must not delay.
    Urgent,
}

impl Link {
    /// Opens a session.
    ///
    /// # Errors
    ///
    /// If a file is missing or invalid, the address to listen at is in use, or the connection fails ([`Side::ConnectsOnce`],
    /// [`Side::ConnectsToRouter`]).
    pub fn open(endpoint: &Endpoint, side: Side) -> Result<Self, Fault> {
        let config = config(endpoint, side).map_err(Fault::other)?;
        let session = zenoh::open(config).wait();
        let session = session.map_err(|error| {
            let (address, error) = (&endpoint.address, plain(error));
            match side {
                Side::Listens => Fault::other(format_args!("cannot listen at {address}: {error}")),
                // The error of a client does not contain the cause, so connect once as a peer to get it.
                Side::ConnectsToRouter => Self::open(endpoint, Side::ConnectsOnce)
                    .err()
                    .unwrap_or_else(|| Fault::of_connection(endpoint, &error)),
                _ => Fault::of_connection(endpoint, &error),
            }
        })?;
        Ok(Self(session))
    }

    /// Declares an outlet for messages with this key.
    ///
    /// # Errors
    ///
    /// If the session is closed.
    pub fn outlet(&self, key: String, urgency: Urgency) -> Result<Outlet, Error> {
        let publisher = self.0.declare_publisher(key);
        let publisher = publisher.congestion_control(CongestionControl::Drop);
        let publisher = match urgency {
            Urgency::Stream => publisher.priority(Priority::Data),
            Urgency::Urgent => publisher.priority(Priority::RealTime).express(true),
        };
        Ok(Outlet(publisher.wait()?))
    }

    /// Calls `f` with the key and the bytes of each message that matches `key`. `f` must not block.
    ///
    /// # Errors
    ///
    /// If the session is closed.
    pub fn inlet(
        &self,
        key: String,
        f: impl Fn(&str, &[u8]) + Send + Sync + 'static,
    ) -> Result<Inlet, Error> {
        let subscriber = self.0.declare_subscriber(key).callback(move |sample| {
            f(sample.key_expr().as_str(), &sample.payload().to_bytes());
        });
        Ok(Inlet {
            _subscriber: subscriber.wait()?,
        })
    }

    /// Sends one message. Use an [`Outlet`] for frequent messages.
    pub fn send(&self, key: String, message: Vec<u8>) {
        let put = self.0.put(key, message);
        let put = put.congestion_control(CongestionControl::Drop);
        // Ignore the error of a closed session: the other side detects the silence.
        let _ = put.priority(Priority::RealTime).express(true).wait();
    }

    /// Answers each query for this key with the text that `f` returns.
    ///
    /// # Errors
    ///
    /// If the session is closed.
    pub fn answer(
        &self,
        key: &'static str,
        f: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Answers, Error> {
        let queryable = self.0.declare_queryable(key).callback(move |query| {
            if let Err(error) = query.reply(key, f()).wait() {
                log::debug!("an answer was not sent: {error}");
            }
        });
        Ok(Answers {
            _queryable: queryable.wait()?,
        })
    }

    /// Queries the other host, and repeats the query until an answer arrives, because the other host may not have announced yet
    /// that it answers. A router returns the answers of several hosts. Returns an empty list if no answer arrives in time.
    pub fn ask(&self, key: &str) -> Vec<String> {
        let (start, mut answers) = (Instant::now(), Vec::new());
        while answers.is_empty() && start.elapsed() < ANSWER_TIME {
            let get = self.0.get(key).timeout(ANSWER_TIME);
            let get = get.congestion_control(CongestionControl::Drop);
            // Without consolidation, which would keep only one answer, because all answers have the same key.
            let Ok(replies) = get.consolidation(ConsolidationMode::None).wait() else {
                break;
            };
            while let Ok(reply) = replies.recv() {
                if let Ok(sample) = reply.result() {
                    let text = sample.payload().to_bytes();
                    answers.push(String::from_utf8_lossy(&text).into_owned());
                }
            }
            if answers.is_empty() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        answers
    }
}

impl Outlet {
    /// Sends a message that consists of `head` and `body`. Zenoh copies `body` only into its queue. Zenoh does not report whether
    /// it dropped the message.
    pub fn send(&self, head: Vec<u8>, body: Bytes) {
        let mut writer = ZBytes::writer();
        writer.append(head.into());
        if !body.is_empty() {
            writer.append(body.into());
        }
        let _ = self.0.put(writer.finish()).wait();
    }
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;
    use std::path::PathBuf;

    use super::{Endpoint, Fault, Identity, plain};

    #[test]
    fn a_fault_over_quic_has_what_to_check() {
        let file = PathBuf::new;
        let [certificate, key, authority] = [file(), file(), file()];
        let identity = Identity {
            certificate,
            key,
            authority,
        };
        let endpoint = Endpoint {
            address: "[::1]:7447".to_owned(),
            identity: Some(identity),
        };
        type Kind = fn(String) -> Fault;
        for (error, kind, words) in [
            (
                "a: invalid peer certificate: UnknownIssuer",
                Fault::TheirCertificate as Kind,
                ["UnknownIssuer", "--server-ca", "\"::1\""],
            ),
            (
                "a: connection lost",
                Fault::OwnCertificate,
                ["[::1]:7447", "--certificate here", "--client-ca there"],
            ),
            (
                "aborted by peer: error 48: invalid peer certificate: UnknownIssuer",
                Fault::OwnCertificate,
                ["(UnknownIssuer)", "--certificate here", "--client-ca there"],
            ),
            (
                "a: Connection closed",
                Fault::OwnCertificate,
                ["[::1]:7447", "--certificate here", "--client-ca there"],
            ),
            (
                "timed out",
                Fault::Other,
                ["timed out", "--client-ca there", "\"::1\""],
            ),
        ] {
            let fault = Fault::of_connection(&endpoint, error);
            assert_eq!(discriminant(&fault), discriminant(&kind(String::new())));
            let text = fault.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        let tcp = Endpoint {
            identity: None,
            ..endpoint
        };
        let fault = Fault::of_connection(&tcp, "refused");
        assert_eq!(fault.to_string(), "cannot connect to [::1]:7447: refused");
    }

    #[test]
    fn places_in_sources_are_left_out() {
        let text = "no listener: [in use (os error 98) at /a b/tcp.rs:61.] at /c/unicast.rs:338.";
        assert_eq!(plain(text), "no listener: [in use (os error 98)]");
        assert_eq!(plain("look at /etc"), "look");
        assert_eq!(plain("plain"), "plain");
    }
}
