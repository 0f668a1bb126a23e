// SPDX-License-Identifier: MPL-2.0

//! Structures, caps and tags as text, for exchange between processes.

use std::sync::atomic::{AtomicU32, Ordering};

use gst::{glib, prelude::*};

/// The maximum nesting in a text. GStreamer's parser is recursive, and about ten thousand levels overflow the stack. Real caps
/// need fewer.
const MAX_DEPTH: usize = 64;
/// The maximum nesting of strings in strings.
const MAX_QUOTE_DEPTH: usize = 8;

/// Whether a text of another process can be passed to GStreamer's parser.
pub(crate) fn is_parseable(text: &str) -> bool {
    !text.contains('\0') && is_flat(text.as_bytes(), MAX_QUOTE_DEPTH)
}

/// Whether brackets are not nested too deeply. Strings are checked too, because they can hold structures.
fn is_flat(text: &[u8], quoted: usize) -> bool {
    let mut depth = 0_usize;
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        match byte {
            b'{' | b'<' | b'[' => depth += 1,
            b'}' | b'>' | b']' => depth = depth.saturating_sub(1),
            b'"' if quoted == 0 || !is_flat(&unquote(&mut rest), quoted - 1) => return false,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return false;
        }
    }
    true
}

/// The text inside quotes, with GStreamer's escapes resolved. Reads up to the end quote.
fn unquote(bytes: &mut impl Iterator<Item = u8>) -> Vec<u8> {
    let mut content = Vec::new();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => break,
            b'\\' => match bytes.next() {
                Some(first @ b'0'..=b'3') => {
                    let digits = [Some(first), bytes.next(), bytes.next()];
                    let code = digits.iter().flatten().fold(0_u8, |code, digit| {
                        code.wrapping_mul(8).wrapping_add(digit.wrapping_sub(b'0'))
                    });
                    content.push(code);
                }
                other => content.extend(other),
            },
            byte => content.push(byte),
        }
    }
    content
}

/// A quark for a string of another process. GLib keeps it until the process ends, so the number is limited. `None`: it is not
/// valid, or the limit is reached.
pub(crate) fn to_quark(text: &str) -> Option<glib::Quark> {
    const MAX_LEN: usize = 256;
    const MAX_NEW: u32 = 10_000;
    static NEW: AtomicU32 = AtomicU32::new(0);
    if text.is_empty() || text.len() > MAX_LEN || text.contains('\0') {
        return None;
    }
    glib::Quark::try_from_str(text).or_else(|| {
        let may = NEW.fetch_add(1, Ordering::Relaxed) < MAX_NEW;
        may.then(|| glib::Quark::from_str(text))
    })
}

/// A structure as text, and the names of the fields that were left out because they cannot be text, such as pointers and
/// objects.
pub(crate) fn of_structure(structure: &gst::StructureRef) -> (String, Vec<String>) {
    let lost: Vec<_> = structure
        .iter()
        .filter(|(_, value)| !is_plain(value))
        .map(|(name, _)| name.to_string())
        .collect();
    if lost.is_empty() {
        return (structure.to_string(), lost);
    }
    let mut kept = structure.to_owned();
    kept.remove_fields(lost.iter().map(String::as_str));
    (kept.to_string(), lost)
}

/// Whether a value and the values inside it can be written as text with the same meaning in another process.
pub(crate) fn is_plain(value: &glib::Value) -> bool {
    use glib::Type;
    let kind = value.type_();
    // Most values have these types, and need no trial.
    let simple = [
        Type::STRING,
        Type::BOOL,
        Type::I32,
        Type::U32,
        Type::I64,
        Type::U64,
        Type::F32,
        Type::F64,
    ];
    if simple.contains(&kind) {
        return true;
    }
    if let Ok(list) = value.get::<gst::List>() {
        return list.iter().all(|value| is_plain(value));
    }
    if let Ok(array) = value.get::<gst::Array>() {
        return array.iter().all(|value| is_plain(value));
    }
    if let Ok(Some(structure)) = value.get::<Option<gst::Structure>>() {
        return structure.iter().all(|(_, value)| is_plain(value));
    }
    let of_this_process = [
        Type::POINTER,
        Type::OBJECT,
        Type::PARAM_SPEC,
        Type::INTERFACE,
    ];
    // The text of an object is its name, and that of an empty buffer is empty. Neither can be read back.
    !of_this_process.iter().any(|no| kind.is_a(*no))
        && value.serialize().is_ok_and(|text| !text.is_empty())
}

/// Parses a structure that another process wrote. `None`: it is invalid.
pub(crate) fn to_structure(text: &str) -> Option<gst::Structure> {
    if !is_parseable(text) {
        return None;
    }
    text.parse().ok()
}

/// Parses caps that another process wrote. `None`: they are invalid.
pub(crate) fn to_caps(text: &str) -> Option<gst::Caps> {
    if !is_parseable(text) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn usual_spellings_are_parsed() {
        for text in [
            "video/x-raw(memory:X), format=(string){ NV12, I420 }, width=[ 1, 100 ]",
            r#"a/b, json=(string)"{\"list\":\[1,2,{\"x\":\"y\"}]}""#,
            r#"a/b, s=(structure)"c\,\ d\=\(string\)\"x\"\;""#,
            "a/b, empty=\"\", open=\"",
            "",
        ] {
            assert!(is_parseable(text), "{text}");
        }
    }

    /// A text that passes the check must not end this program.
    #[test]
    fn deep_nesting_is_refused() {
        gst::init().unwrap();
        for (open, close) in [("{", "}"), ("<", ">"), ("[b, y=", "]")] {
            let nested =
                |levels: usize| format!("{}1{}", open.repeat(levels), close.repeat(levels));
            assert!(to_structure(&format!("a/b, x={}", nested(10))).is_some());
            let deep = nested(500_000);
            assert_eq!(to_structure(&format!("a/b, x={deep}")), None);
            assert_eq!(to_caps(&format!("a/b, x={deep}")), None);
            assert_eq!(
                to_structure(&format!("a/b, s=(structure)\"c, x={deep}\"")),
                None
            );
            let octal = r"\173".repeat(500_000);
            assert_eq!(
                to_structure(&format!("a/b, s=(structure)\"c, x={octal}\"")),
                None
            );
        }
        let quotes = (0..12).fold("x".to_owned(), |text, _| {
            format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
        });
        assert_eq!(to_structure(&format!("a/b, s={quotes}")), None);
    }

    /// Runs in a process of its own. With `cargo test`, all tests are threads of one process, and the others would count too
    /// and fail after the limit.
    #[test]
    fn strings_that_are_kept_for_good_are_counted() {
        let (_, module) = module_path!().split_once("::").unwrap();
        let name = format!("{module}::all_strings_that_may_be_kept_are_used_up");
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", &name])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
    }

    #[test]
    #[ignore = "started by the one above"]
    fn all_strings_that_may_be_kept_are_used_up() {
        gst::init().unwrap();
        let quarks = (0..20_000)
            .filter_map(|n| to_quark(&format!("made up {n}")))
            .count();
        assert_eq!(quarks, 10_000);
        assert_eq!(to_quark("made up 5").unwrap().as_str(), "made up 5");
        for bad in ["", "a\0b", &"x".repeat(257)] {
            assert_eq!(to_quark(bad), None);
        }
    }

    #[test]
    fn fields_without_text_are_left_out() {
        gst::init().unwrap();
        let mut structure = gst::Structure::builder("s").field("good", 1).build();
        let pad = gst::Pad::new(gst::PadDirection::Src);
        structure.set(
            "inside",
            gst::List::new([gst::Structure::builder("t").field("pad", &pad).build()]),
        );
        structure.set("pad", pad);
        let (text, lost) = of_structure(&structure);
        assert_eq!(lost, ["inside", "pad"]);
        assert_eq!(
            to_structure(&text).unwrap(),
            gst::Structure::builder("s").field("good", 1).build()
        );
    }

    /// Proptest stores no failures in a file.
    fn config() -> ProptestConfig {
        ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn structures_round_trip(
            text in "\\PC*",
            bytes in prop::collection::vec(any::<u8>(), 1..40),
            int in any::<i32>(),
            long in any::<u64>(),
            double in prop::num::f64::NORMAL | prop::num::f64::ZERO,
            float in prop::num::f32::NORMAL | prop::num::f32::ZERO,
            truth in any::<bool>(),
        ) {
            gst::init().unwrap();
            let inner = gst::Structure::builder("inner").field("text", &text).field("int", int).build();
            let structure = gst::Structure::builder("outer/name")
                .field("text", &text)
                .field("none", None::<String>)
                .field("buffer", gst::Buffer::from_slice(bytes))
                .field("long", long)
                .field("double", double)
                .field("float", float)
                .field("truth", truth)
                .field("inner", inner)
                .field("list", gst::List::new([int, 1]))
                .field("array", gst::Array::new([&text[..], "b"]))
                .field("fraction", gst::Fraction::new(int.saturating_abs(), 7))
                .build();
            let (as_text, lost) = of_structure(&structure);
            prop_assert!(lost.is_empty());
            let back = to_structure(&as_text).unwrap();
            // Buffers are compared by address.
            prop_assert_eq!(&back.to_string(), &as_text);
            prop_assert_eq!(back.n_fields(), structure.n_fields());
            for (name, value) in structure.iter().filter(|(name, _)| *name != "buffer") {
                prop_assert!(
                    back.value(name.as_str()).unwrap().compare(value) == Some(std::cmp::Ordering::Equal),
                    "{} of {}", name, as_text
                );
            }
        }

        #[test]
        fn no_text_ends_the_process(text in "[a-c\\[\\]{}<>,=\"\\\\0-9() ;]{0,200}") {
            gst::init().unwrap();
            // GStreamer logs messages about invalid names.
            glib::log_set_always_fatal(glib::LogLevels::LEVEL_ERROR);
            let _ = to_structure(&text);
            let _ = to_caps(&text);
        }
    }
}
