// SPDX-License-Identifier: MPL-2.0

//! `xmem://` addresses: a pool by name or by path, and properties.
//!
//! The part after `xmem://` is the percent-encoded name of the pool. A name that begins with a slash is the path of the pool's
//! socket, so such an address has three slashes. A question mark separates properties of the element.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

use gst::{glib, prelude::*};

use crate::bytes;

pub(crate) const PROTOCOLS: &[&str] = &["xmem"];
const PREFIX: &str = "xmem://";
const FORM: &str = "write xmem://NAME or xmem:///PATH/OF/THE/SOCKET";

/// The parts of an address.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    pool: OsString,
    properties: Vec<(String, String)>,
}

/// The address of a pool. `None`: it has no name.
pub(crate) fn of_pool(pool: &OsStr) -> Option<String> {
    let escaped = glib::Uri::escape_bytes(pool.as_bytes(), Some("/"));
    (!pool.is_empty()).then(|| format!("{PREFIX}{escaped}"))
}

/// Sets the properties in an address on an element that is not running. If any part is invalid, nothing is changed.
///
/// `pool` is the name of the property for the pool. Other properties must belong to the element's own class.
///
/// `idle` is the last state in which the element has not read its properties yet.
pub(crate) fn apply(
    element: &gst::Element,
    idle: gst::State,
    pool: &str,
    uri: &str,
) -> Result<(), glib::Error> {
    let (_, current, pending) = element.state(gst::ClockTime::ZERO);
    if current.max(pending) > idle {
        return Err(error(
            gst::URIError::BadState,
            format!(
                "{} is running: stop it before its address is changed",
                bytes::name_of(element)
            ),
        ));
    }
    let address = parse(uri).map_err(|reason| {
        error(
            gst::URIError::BadUri,
            format!("The address {uri:?} cannot be used: {reason}"),
        )
    })?;
    let mut values = Vec::new();
    for (name, text) in &address.properties {
        let value = value(element, pool, name, text).map_err(|reason| {
            error(
                gst::URIError::BadReference,
                format!("The address {uri:?} cannot be used: {reason}"),
            )
        })?;
        values.push((name, value));
    }
    element.set_property(pool, Path::new(&address.pool));
    for (name, value) in values {
        element.set_property_from_value(name, &value);
    }
    Ok(())
}

fn error(kind: gst::URIError, text: String) -> glib::Error {
    glib::Error::new(kind, &text)
}

/// `Err`: why it is invalid.
fn parse(uri: &str) -> Result<Address, String> {
    let (scheme, rest) = uri.split_at_checked(PREFIX.len()).unwrap_or((uri, ""));
    if !scheme.eq_ignore_ascii_case(PREFIX) {
        return Err(FORM.to_owned());
    }
    if rest.contains('#') {
        return Err("it has a fragment; a # in a name is written %23".to_owned());
    }
    let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
    let pool = OsString::from_vec(decode(name)?);
    xmem_core::discovery::socket_path(&pool).map_err(|error| match error {
        xmem_core::NameError::Empty => format!("it names no pool: {FORM}"),
        error => error.to_string(),
    })?;
    let mut properties: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("{pair:?} is not PROPERTY=VALUE"))?;
        let (name, value) = (decode_text(name)?, decode_text(value)?);
        if properties.iter().any(|(other, _)| *other == name) {
            return Err(format!("it sets {name} twice"));
        }
        properties.push((name, value));
    }
    Ok(Address { pool, properties })
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    let bytes = glib::Uri::unescape_bytes(text, None)
        .map_err(|_| format!("{text:?} is not percent-encoded; a % itself is written %25"))?;
    // C would see only the bytes before it.
    if bytes.contains(&0) {
        return Err(format!("{text:?} has a null character in it"));
    }
    Ok(bytes.to_vec())
}

fn decode_text(text: &str) -> Result<String, String> {
    String::from_utf8(decode(text)?).map_err(|_| format!("{text:?} is not UTF-8"))
}

/// Parses the value of a property. `Err`: why it is invalid.
fn value(
    element: &gst::Element,
    pool: &str,
    name: &str,
    text: &str,
) -> Result<glib::Value, String> {
    let is_ours = |pspec: &glib::ParamSpec| {
        pspec.owner_type() == element.type_()
            && pspec.flags().contains(glib::ParamFlags::WRITABLE)
            && pspec.name() != pool
    };
    let pspec = element.find_property(name).filter(is_ours).ok_or_else(|| {
        let names: Vec<_> = element
            .list_properties()
            .iter()
            .filter(|pspec| is_ours(pspec))
            .map(|pspec| pspec.name().to_owned())
            .collect();
        format!("it cannot set {name:?}, only {}", names.join(", "))
    })?;
    glib::Value::deserialize_with_pspec(text, &pspec)
        .ok()
        .filter(|value| pspec.value_is_valid(value))
        .ok_or_else(|| format!("{text:?} is not a value of {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_round_trip() {
        for (pool, uri) in [
            ("cam0", "xmem://cam0"),
            ("/run/shared/cam0", "xmem:///run/shared/cam0"),
            ("here/cam0", "xmem://here/cam0"),
            (
                "Vorgärten & Höfe?#%",
                "xmem://Vorg%C3%A4rten%20%26%20H%C3%B6fe%3F%23%25",
            ),
            ("a:80@b", "xmem://a%3A80%40b"),
        ] {
            assert_eq!(of_pool(OsStr::new(pool)).as_deref(), Some(uri));
            assert_eq!(parse(uri).unwrap().pool, pool);
        }
        let path = OsStr::from_bytes(b"/a/\xff");
        assert_eq!(of_pool(path).as_deref(), Some("xmem:///a/%FF"));
        assert_eq!(parse("xmem:///a/%ff").unwrap().pool, path);
        assert_eq!(of_pool(OsStr::new("")), None);
        assert_eq!(parse("XMEM://Cam0").unwrap().pool, "Cam0");
        assert_eq!(parse("xmem://a:80@b").unwrap().pool, "a:80@b");
    }

    #[test]
    fn properties() {
        let address = parse("xmem://p?max-held=4&client-name=a%26b%3D&x=").unwrap();
        let pairs = [("max-held", "4"), ("client-name", "a&b="), ("x", "")];
        assert_eq!(
            address.properties,
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn bad_addresses_are_refused_with_the_reason() {
        for (uri, reason) in [
            ("xmem:cam0", "write xmem://NAME"),
            ("file:///cam0", "write xmem://NAME"),
            ("", "write xmem://NAME"),
            ("ä", "write xmem://NAME"),
            ("xmem://", "names no pool"),
            ("xmem://?max-held=4", "names no pool"),
            ("xmem://cam0/", "directory"),
            ("xmem://a%0Ab", "control character"),
            ("xmem://a%2", "%25"),
            ("xmem://a%zz", "%25"),
            ("xmem://a%00b", "null"),
            ("xmem://a?b%00=c", "null"),
            ("xmem://a?b=%00c", "null"),
            ("xmem://%ff", "UTF-8"),
            ("xmem://a?b=%ff", "UTF-8"),
            ("xmem://cam0#here", "fragment"),
            ("xmem://cam0?max-held", "PROPERTY=VALUE"),
            ("xmem://cam0?a=1&a=2", "twice"),
            (&format!("xmem:///{}", "x".repeat(200)), "shorter"),
        ] {
            let error = parse(uri).unwrap_err();
            assert!(error.contains(reason), "{uri}: {error}");
        }
    }
}
