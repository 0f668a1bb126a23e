// SPDX-License-Identifier: MPL-2.0

//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::Error;
use crate::link::{Endpoint, Identity};

const PORT: u16 = 7447;

#[derive(Debug, Parser)]
#[command(name = "xmem-bridge", version, about, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Log messages on standard error
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Export pools of this host to other hosts
    Export(Export),
    /// Publish an exported pool of another host as a local pool, until SIGINT or SIGTERM
    Import(Import),
    /// List the pools that a host exports
    List(List),
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Names of the pools to export. A pool need not exist yet
    #[arg(required = true)]
    pub(crate) pools: Vec<String>,
    /// The address to listen at: quic/ADDRESS:PORT, or tcp/ADDRESS:PORT together with --trusted-network
    #[arg(long, default_value = "quic/0.0.0.0:7447")]
    pub(crate) listen: String,
    /// Connect to the Zenoh router at quic/HOST:PORT or tcp/HOST:PORT instead of listening. Importers connect to the same router
    #[arg(long, value_name = "ADDRESS", conflicts_with = "listen")]
    pub(crate) router: Option<String>,
    /// The certificate of this host, a PEM file
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// The private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The authority that signs the certificates of importers, a PEM file. Importers without such a certificate are refused
    #[arg(long, value_name = "FILE", conflicts_with = "router")]
    client_ca: Option<PathBuf>,
    /// The authority that signs the certificate of the router, a PEM file
    #[arg(long, value_name = "FILE", requires = "router")]
    server_ca: Option<PathBuf>,
    /// Allow tcp/, which has no protection: each host that reaches the port can read the frames, and hosts on the route can change
    /// them
    #[arg(long)]
    trusted_network: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Client {
    /// The certificate of this host, a PEM file
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// The private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The authority that signs the certificate of the exporter or router, a PEM file
    #[arg(long, value_name = "FILE")]
    server_ca: Option<PathBuf>,
    /// Connect over TCP, to an exporter with `--listen tcp/...`: hosts on the route can read and change the frames
    #[arg(long)]
    trusted_network: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The pool and the host that exports it: POOL@HOST or POOL@HOST:PORT
    pub(crate) source: String,
    /// The name of the local pool. Default: the name of the exported pool
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The permissions of the local pool, in octal. With 0666 all users may read it. Default: 0600
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub(crate) socket_mode: Option<u32>,
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// The host that exports the pools: HOST or HOST:PORT
    pub(crate) host: String,
    #[command(flatten)]
    pub(crate) client: Client,
}

impl Export {
    /// The value of `--router`, or else of `--listen`.
    pub(crate) fn place(&self) -> &str {
        self.router.as_deref().unwrap_or(&self.listen)
    }

    /// Validates the options, and returns the address with the certificate files.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, Error> {
        let place = self.place();
        let Some((protocol, address)) = place.split_once('/') else {
            return Err(wrong_place(place));
        };
        let identity = match protocol {
            "tcp" if self.trusted_network => None,
            "tcp" => {
                return Err(
                    "tcp/ has no protection: use quic/ with certificates, or add --trusted-network"
                        .into(),
                );
            }
            "quic" if self.trusted_network && self.certificate.is_none() => {
                let option = self.router.as_ref().map_or("--listen", |_| "--router");
                return Err(format!("--trusted-network needs {option} tcp/ADDRESS:PORT").into());
            }
            "quic" => {
                let (authority, names) = match self.router {
                    Some(_) => (&self.server_ca, "--certificate, --key and --server-ca"),
                    None => (&self.client_ca, "--certificate, --key and --client-ca"),
                };
                Some(identity([&self.certificate, &self.key, authority], names)?)
            }
            _ => return Err(wrong_place(place)),
        };
        Ok(Endpoint {
            address: address.to_owned(),
            identity,
        })
    }
}

fn wrong_place(place: &str) -> Error {
    format!("{place:?}: write quic/ADDRESS:PORT or tcp/ADDRESS:PORT").into()
}

impl Client {
    /// Validates the options, and returns the address of `host` with the certificate files.
    pub(crate) fn endpoint(&self, host: &str) -> Result<Endpoint, Error> {
        let identity = if self.trusted_network {
            None
        } else {
            let files = [&self.certificate, &self.key, &self.server_ca];
            let names = "--certificate, --key and --server-ca";
            Some(identity(files, names)?)
        };
        Ok(Endpoint {
            address: address(host)?,
            identity,
        })
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|it| *it <= 0o777);
    mode.ok_or_else(|| "write it as 0600, 0660 or 0666".to_owned())
}

fn identity(files: [&Option<PathBuf>; 3], names: &str) -> Result<Identity, Error> {
    let [Some(certificate), Some(key), Some(authority)] = files else {
        return Err(
            format!("give {names}, or --trusted-network for TCP without protection").into(),
        );
    };
    let (certificate, key) = (certificate.clone(), key.clone());
    Ok(Identity {
        certificate,
        key,
        authority: authority.clone(),
    })
}

/// Validates `host`, and adds the default port if it has none.
fn address(host: &str) -> Result<String, Error> {
    // A colon inside brackets does not separate a port: `[2001:db8::1]:7447`.
    let after = host.rfind(']').map_or(0, |at| at + 1);
    let port = host.get(after..).unwrap_or_default().rsplit_once(':');
    let name = port.map_or(host, |(_, port)| {
        let end = host.len().saturating_sub(port.len() + 1);
        host.get(..end).unwrap_or_default()
    });
    let is_number = port.is_none_or(|(_, port)| port.parse::<u16>().is_ok());
    let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_[]:".contains(c);
    let is_v6 = name.contains(':') && !name.starts_with('[');
    if name.is_empty() || !is_number || !name.chars().all(is_name) || is_v6 {
        return Err(format!("{host:?}: write HOST, HOST:PORT or [IPV6]:PORT").into());
    }
    Ok(match port {
        Some(_) => host.to_owned(),
        None => format!("{host}:{PORT}"),
    })
}

impl Import {
    /// The name of the pool, and the host that exports it.
    pub(crate) fn source(&self) -> Result<(&str, &str), Error> {
        let source = self.source.split_once('@');
        source.ok_or_else(|| format!("{:?}: write POOL@HOST", self.source).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_have_a_port() {
        for (host, expected) in [
            ("camhost", Some("camhost:7447")),
            ("camhost:1", Some("camhost:1")),
            ("192.0.2.7", Some("192.0.2.7:7447")),
            ("[2001:db8::1]", Some("[2001:db8::1]:7447")),
            ("[2001:db8::1]:9", Some("[2001:db8::1]:9")),
            ("2001:db8::1", None),
            ("camhost:x", None),
            ("camhost:70000", None),
            (":7447", None),
            ("", None),
            ("a#b", None),
        ] {
            assert_eq!(address(host).ok().as_deref(), expected, "{host}");
        }
    }

    #[test]
    fn tcp_needs_a_trusted_network_and_quic_certificates() {
        let endpoint = |args: &[&str]| {
            let args = [&["xmem-bridge", "export", "cam0"], args].concat();
            let Command::Export(export) = Cli::try_parse_from(args).unwrap().command else {
                panic!("it is no export");
            };
            export.endpoint()
        };
        assert!(endpoint(&[]).is_err());
        assert!(endpoint(&["--listen", "tcp/0.0.0.0:1"]).is_err());
        let error = endpoint(&["--trusted-network"]).unwrap_err().to_string();
        assert!(error.contains("needs --listen tcp/"), "{error}");
        assert!(endpoint(&["--listen", "tls/0.0.0.0:1", "--trusted-network"]).is_err());
        let tcp = endpoint(&["--listen", "tcp/0.0.0.0:1", "--trusted-network"]).unwrap();
        assert_eq!(
            (tcp.address.as_str(), tcp.identity.is_none()),
            ("0.0.0.0:1", true)
        );
        let files = ["--certificate", "c", "--key", "k", "--client-ca", "a"];
        assert!(endpoint(&files).unwrap().identity.is_some());
        assert!(endpoint(&files[..4]).is_err());
        let router = ["--router", "tcp/there:1"];
        assert!(endpoint(&router).is_err());
        let router = endpoint(&[&router[..], &["--trusted-network"]].concat()).unwrap();
        assert_eq!(router.address, "there:1");
    }

    #[test]
    fn units_and_the_compose_file_have_valid_commands() {
        let read = |file: &str| {
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
            std::fs::read_to_string(format!("{dir}/{file}")).unwrap()
        };
        let files = [
            ("contrib/xmem-bridge-export@.service", "ExecStart=/usr/bin/"),
            ("contrib/xmem-bridge-import@.service", "ExecStart=/usr/bin/"),
            ("examples/compose-two-hosts.yaml", "command: "),
        ];
        for (file, begin) in files {
            let text = read(file);
            let lines = text.lines().filter_map(|it| it.trim().strip_prefix(begin));
            let lines: Vec<_> = lines.filter(|it| it.starts_with("xmem-bridge ")).collect();
            assert!(!lines.is_empty(), "{file}");
            for line in lines {
                let line = line
                    .replace("${SOURCE}", "cam0@there")
                    .replace("%i", "cam0");
                let line = line.replace("${HOST_A:-hostA}", "hostA");
                let line = line.replace("$OPTIONS", "");
                let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
                let is_valid = match cli.command {
                    Command::Export(export) => export.endpoint().is_ok(),
                    Command::Import(import) => {
                        let host = import.source().unwrap().1;
                        import.client.endpoint(host).is_ok()
                    }
                    Command::List(_) => false,
                };
                assert!(is_valid, "{file}: {line}");
            }
        }
    }

    #[test]
    fn a_mode_is_octal() {
        assert_eq!((mode("0666"), mode("660")), (Ok(0o666), Ok(0o660)));
        for text in ["", "0999", "1000", "-1", "u+w"] {
            assert!(mode(text).is_err(), "{text}");
        }
    }
}
