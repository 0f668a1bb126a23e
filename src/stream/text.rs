// SPDX-License-Identifier: MPL-2.0

//! Structures, caps and tags as text, for exchange between processes.

use gst::{glib, prelude::*};

use super::untrusted::is_parseable;

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
    // The text of an object is its name, and that of an empty buffer is empty. Neither can be read back. Features would be read
    // as names that are kept; see untrusted.rs.
    kind != gst::CapsFeatures::static_type()
        && !of_this_process.iter().any(|no| kind.is_a(*no))
        && value.serialize().is_ok_and(|text| !text.is_empty())
}

/// Parses a structure that another process wrote. `None`: it is invalid.
pub(crate) fn to_structure(text: &str) -> Option<gst::Structure> {
    is_parseable(text).then(|| text.parse().ok())?
}

/// Parses caps that another process wrote. `None`: they are invalid.
pub(crate) fn to_caps(text: &str) -> Option<gst::Caps> {
    is_parseable(text).then(|| text.parse().ok())?
}

/// The maximum length of an event's structure, in bytes.
const MAX_LEN: usize = 64 << 10;

/// The structure of an event as text, with all of its fields. `Err`: why it cannot be shared.
pub(crate) fn of_whole_structure(structure: &gst::StructureRef) -> Result<String, &'static str> {
    if !structure.iter().all(|(_, value)| is_plain(value)) {
        return Err("it has content that means something in its own process only");
    }
    let text = structure.to_string();
    if text.len() > MAX_LEN {
        return Err("it is too long");
    }
    // GStreamer cannot read back each text that it writes.
    match to_bounded_structure(&text) {
        Some(same) if *same == *structure => Ok(text),
        _ => Err("it has no text form"),
    }
}

/// Parses the structure of an event that another process wrote. `None`: it is invalid.
pub(crate) fn to_bounded_structure(text: &str) -> Option<gst::Structure> {
    (text.len() <= MAX_LEN).then(|| to_structure(text))?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    proptest! {
        // Proptest stores no failures in a file.
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

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

    #[test]
    fn plain_values_round_trip() {
        gst::init().unwrap();
        let inner = gst::Structure::builder("inner")
            .field("text", "a \"b\", c=[")
            .build();
        let structure = gst::Structure::builder("outer")
            .field("number", 7u64)
            .field("inner", inner)
            .field("fraction", gst::Fraction::new(30, 1))
            .field("list", gst::List::new([1i32, 2]))
            .field("buffer", gst::Buffer::from_slice([1, 2, 3]))
            .build();
        let text = of_whole_structure(&structure).unwrap();
        let same = to_bounded_structure(&text).unwrap();
        assert_eq!(same.get::<u64>("number"), Ok(7));
        assert_eq!(
            same.get::<gst::Structure>("inner")
                .unwrap()
                .get::<&str>("text"),
            Ok("a \"b\", c=[")
        );
    }

    #[test]
    fn other_values_are_refused() {
        gst::init().unwrap();
        let inner = gst::Structure::builder("inner")
            .field("object", gst::Bus::new())
            .build();
        let outer = gst::Structure::builder("outer")
            .field("inner", inner.clone())
            .build();
        assert!(of_whole_structure(&inner).is_err());
        assert!(of_whole_structure(&outer).is_err());
        let long = gst::Structure::builder("long")
            .field("text", "x".repeat(MAX_LEN))
            .build();
        assert!(of_whole_structure(&long).is_err());
    }
}
