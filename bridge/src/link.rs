// SPDX-License-Identifier: MPL-2.0

//! Zenoh, as the bridge uses it. No other module knows of it.
//!
//! Nothing here waits for another host but [`Link::ask`]: all messages may be dropped (`CongestionControl::Drop`). Zenoh would
//! otherwise wait until its queue has room, and with it the thread that every other importer needs.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use zenoh::bytes::ZBytes;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::{CongestionControl, Priority};
use zenoh::query::{ConsolidationMode, Queryable};
use zenoh::{Config, Session, Wait};

use crate::Error;

/// How long [`Link::ask`] waits for the other host.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// The files of one side for mutual authentication.
#[derive(Debug, Clone)]
pub struct Identity {
    /// This side's certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that signed the other side's certificate.
    pub authority: PathBuf,
}

/// Where a link begins or ends.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Host and port, as Zenoh writes them.
    pub address: String,
    /// With these files over QUIC. `None`: over TCP, without protection.
    pub identity: Option<Identity>,
}

/// Which side makes the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It waits for others.
    Listens,
    /// It connects, and again whenever the connection is lost.
    Connects,
    /// It connects once, or fails.
    ConnectsOnce,
    /// It connects to a router, or fails. If that connection is lost, it connects again.
    ConnectsToRouter,
}

fn quoted(text: impl Display) -> String {
    let text = text.to_string();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Zenoh's own errors would not name the file, and one that connects would try for ever.
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

/// An error of Zenoh without the places in its sources.
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

/// The kind of a [`Fault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// This side refused the certificate of the other one.
    TheirCertificate,
    /// The other side closed the connection, as it does when it refuses the certificate of this one.
    OwnCertificate,
    /// Any other, or an unknown one.
    Other,
}

/// In errors of quinn and Zenoh when the other side closes a connection, by the time at which that arrives.
const CLOSED: [&str; 3] = ["aborted by peer", "connection lost", "Connection closed"];

/// Why a link cannot be opened, and what to check.
#[derive(Debug, Clone)]
pub struct Fault {
    kind: FaultKind,
    text: String,
}

impl Fault {
    fn other(text: impl Display) -> Self {
        Self {
            kind: FaultKind::Other,
            text: text.to_string(),
        }
    }

    /// From Zenoh's error while a connection was opened. Zenoh has no type for it, so its words are searched. Without known
    /// words the text names all that may be wrong with certificates.
    fn of_connection(endpoint: &Endpoint, error: &str) -> Self {
        let address = &endpoint.address;
        let host = address.rsplit_once(':').map_or("", |(host, _)| host);
        if endpoint.identity.is_none() {
            return Self::other(format_args!("cannot connect to {address}: {error}"));
        }
        // Rustls has the same words for both sides; the other side may send them with the end of the connection.
        let reason = error.split_once("invalid peer certificate: ");
        let reason = reason.map(|(_, reason)| reason);
        // The other side checks a certificate after this side has the connection.
        if CLOSED.iter().any(|words| error.contains(words)) {
            let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            let text = format!(
                "{address} closes the connection, as it does when it refuses a certificate{reason}; check --certificate here, \
                 and --client-ca there"
            );
            let kind = FaultKind::OwnCertificate;
            return Self { kind, text };
        }
        if let Some(reason) = reason {
            let text = format!(
                "the certificate of {address} is refused: {reason}; check --server-ca here, and that the certificate there is \
                 valid and has the name {host:?}"
            );
            let kind = FaultKind::TheirCertificate;
            return Self { kind, text };
        }
        Self::other(format_args!(
            "cannot connect to {address}: {error}; check that an exporter or a router is there with quic/, --certificate and --server-ca \
             here, --client-ca there, and that the certificate there has the name {host:?}"
        ))
    }

    /// Its kind.
    pub fn kind(&self) -> FaultKind {
        self.kind
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Fault {}

/// The values were found by measurement: `docs/design/bridge.md` has the reasons.
fn config(endpoint: &Endpoint, side: Side) -> Result<Config, Error> {
    let protocol = if endpoint.identity.is_some() {
        "quic"
    } else {
        "tcp"
    };
    let there = format!(
        "[{}]",
        quoted(format_args!("{protocol}/{}", endpoint.address))
    );
    let none = "[]".to_owned();
    let (listen, connect) = match side {
        Side::Listens => (there, none),
        Side::Connects | Side::ConnectsOnce | Side::ConnectsToRouter => (none, there),
    };
    // Zenoh assumes that all peers at a router are connected with each other, and forwards nothing between them. So one side has
    // to be a client. It cannot be the importer: a client cannot start before the other side.
    let mode = match side {
        Side::ConnectsToRouter => "client",
        _ => "peer",
    };
    let queue = "transport/link/tx/queue";
    let mut settings = vec![
        ("mode".to_owned(), quoted(mode)),
        ("scouting/multicast/enabled".to_owned(), "false".to_owned()),
        ("scouting/gossip/enabled".to_owned(), "false".to_owned()),
        ("listen/endpoints".to_owned(), listen),
        ("connect/endpoints".to_owned(), connect),
        (
            "connect/retry".to_owned(),
            "{period_init_ms: 200, period_max_ms: 1000, period_increase_factor: 2}".to_owned(),
        ),
        ("transport/link/tx/lease".to_owned(), "5000".to_owned()),
        (format!("{queue}/size/data"), "16".to_owned()),
        (
            format!("{queue}/congestion_control/drop/wait_before_drop"),
            "0".to_owned(),
        ),
        (
            "transport/link/rx/buffer_size".to_owned(),
            "1048576".to_owned(),
        ),
        (
            "transport/unicast/open_timeout".to_owned(),
            "1500".to_owned(),
        ),
        (
            "transport/unicast/accept_timeout".to_owned(),
            "1500".to_owned(),
        ),
    ];
    if matches!(side, Side::ConnectsOnce | Side::ConnectsToRouter) {
        // One attempt: the error of several does not have the cause. `open_timeout` is its limit.
        settings.push(("connect/timeout_ms".to_owned(), "0".to_owned()));
        settings.push(("connect/exit_on_failure".to_owned(), "true".to_owned()));
    }
    if let Some(identity) = &endpoint.identity {
        let [own, own_key] = match side {
            Side::Listens => ["listen_certificate", "listen_private_key"],
            _ => ["connect_certificate", "connect_private_key"],
        };
        let files = [
            ("root_ca_certificate", &identity.authority),
            (own, &identity.certificate),
            (own_key, &identity.key),
        ];
        for (name, file) in files {
            let holds = if file == &identity.key {
                "PRIVATE KEY-----"
            } else {
                "BEGIN CERTIFICATE-----"
            };
            check_pem(file, holds)?;
            let name = format!("transport/link/tls/{name}");
            settings.push((name, quoted(file.display())));
        }
        settings.push((
            "transport/link/tls/enable_mtls".to_owned(),
            "true".to_owned(),
        ));
    }
    let mut config = Config::default();
    for (name, value) in settings {
        let set = config.insert_json5(&name, &value);
        set.map_err(|error| format!("{name} {value}: {error}"))?;
    }
    Ok(config)
}

/// A session of Zenoh.
#[derive(Debug, Clone)]
pub struct Link(Session);

/// Sends messages of one kind.
#[derive(Debug)]
pub struct Outlet(Publisher<'static>);

/// Keeps a function that takes messages.
#[derive(Debug)]
pub struct Inlet {
    _subscriber: Subscriber<()>,
}

/// Keeps a function that answers questions.
#[derive(Debug)]
pub struct Answers {
    _queryable: Queryable<()>,
}

/// How urgent messages of one kind are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Frames, and what has its place between them.
    Stream,
    /// What the frames under way must not delay.
    Urgent,
}

impl Link {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// If a file is missing, the address is not free, or nothing is there ([`Side::ConnectsOnce`]).
    pub fn open(endpoint: &Endpoint, side: Side) -> Result<Self, Fault> {
        let config = config(endpoint, side).map_err(Fault::other)?;
        let session = zenoh::open(config).wait();
        let session = session.map_err(|error| {
            let (address, error) = (&endpoint.address, plain(error));
            match side {
                Side::Listens => Fault::other(format_args!("cannot listen at {address}: {error}")),
                // The error of a client does not have the cause.
                Side::ConnectsToRouter => Self::open(endpoint, Side::ConnectsOnce)
                    .err()
                    .unwrap_or_else(|| Fault::of_connection(endpoint, &error)),
                _ => Fault::of_connection(endpoint, &error),
            }
        })?;
        Ok(Self(session))
    }

    /// Sends messages with this key.
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

    /// Calls `f` with the key and the bytes of each message with such a key. It must not wait.
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

    /// Sends one message. For those that are rare.
    pub fn send(&self, key: String, message: Vec<u8>) {
        let put = self.0.put(key, message);
        let put = put.congestion_control(CongestionControl::Drop);
        // A session that is closed is reported by silence.
        let _ = put.priority(Priority::RealTime).express(true).wait();
    }

    /// Answers each question with this key.
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

    /// Asks the other host, which may need a moment to announce that it answers. A router has the answers of several hosts.
    /// Empty: no answer came in time.
    pub fn ask(&self, key: &str) -> Vec<String> {
        let (start, mut answers) = (Instant::now(), Vec::new());
        while answers.is_empty() && start.elapsed() < ANSWER_TIME {
            let get = self.0.get(key).timeout(ANSWER_TIME);
            let get = get.congestion_control(CongestionControl::Drop);
            // All of them have one key, and each one counts.
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
    /// Sends a message: `head`, then `body`, which is not copied before Zenoh puts it into its queue. Whether it was dropped
    /// is not known.
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
    use std::path::PathBuf;

    use super::{Endpoint, Fault, FaultKind, Identity, plain};

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
        for (error, kind, words) in [
            (
                "a: invalid peer certificate: UnknownIssuer",
                FaultKind::TheirCertificate,
                ["UnknownIssuer", "--server-ca", "\"[::1]\""],
            ),
            (
                "a: connection lost",
                FaultKind::OwnCertificate,
                ["[::1]:7447", "--certificate here", "--client-ca there"],
            ),
            (
                "aborted by peer: error 48: invalid peer certificate: UnknownIssuer",
                FaultKind::OwnCertificate,
                ["(UnknownIssuer)", "--certificate here", "--client-ca there"],
            ),
            (
                "a: Connection closed",
                FaultKind::OwnCertificate,
                ["[::1]:7447", "--certificate here", "--client-ca there"],
            ),
            (
                "timed out",
                FaultKind::Other,
                ["timed out", "--client-ca there", "\"[::1]\""],
            ),
        ] {
            let fault = Fault::of_connection(&endpoint, error);
            assert_eq!(fault.kind(), kind);
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
