// SPDX-License-Identifier: MPL-2.0

//! Certificates, and bridges that use them.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::*;

/// Makes two authorities and certificates that they sign, as the manual describes.
pub(crate) fn certificates(dir: &Path) {
    let script = r#"
        set -e
        authority() {
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$1" \
                -keyout "$1.key" -out "$1.pem"
        }
        host() {
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$2.key" -out "$2.csr"
            printf "subjectAltName=$3\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE" > "$2.ext"
            openssl x509 -req -in "$2.csr" -CA "$1.pem" -CAkey "$1.key" -CAcreateserial -days 30 -extfile "$2.ext" -out "$2.pem"
        }
        authority ours
        authority others
        host ours a IP:127.0.0.1,IP:10.77.0.1,IP:::1
        host ours b IP:127.0.0.1
        host others c IP:127.0.0.1
        host ours elsewhere DNS:elsewhere
    "#;
    let mut made = Command::new("sh");
    made.args(["-c", script]).current_dir(dir);
    let made = made.stderr(Stdio::null()).status().unwrap();
    assert!(made.success(), "openssl is missing, or failed");
}

/// The options of a host with this certificate that trusts this authority. `ca` is `--client-ca` or `--server-ca`.
pub(crate) fn identity(hosts: &Hosts, certificate: &str, ca: &str, authority: &str) -> Vec<String> {
    let file = |name: String| hosts.path().join(name).to_str().unwrap().to_owned();
    let files = [
        ("--certificate", format!("{certificate}.pem")),
        ("--key", format!("{certificate}.key")),
        (ca, format!("{authority}.pem")),
    ];
    let files = files.map(|(option, name)| [option.to_owned(), file(name)]);
    files.concat()
}

/// Starts a bridge with the options in `identity`.
pub(crate) fn start(hosts: &Hosts, host: &str, args: &[&str], identity: &[String]) -> Bridge {
    let identity: Vec<&str> = identity.iter().map(String::as_str).collect();
    hosts.bridge(host, &[args, &identity[..]].concat())
}
