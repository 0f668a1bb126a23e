// SPDX-License-Identifier: MPL-2.0

//! Structures of events as text. Structures that are too long or have a field without text are refused.

use crate::stream::text;

/// The maximum length of an event's structure, in bytes.
const MAX_LEN: usize = 64 << 10;

/// A structure as text. `Err`: why it cannot be shared.
pub(crate) fn of_structure(structure: &gst::StructureRef) -> Result<String, &'static str> {
    if !structure.iter().all(|(_, value)| text::is_plain(value)) {
        return Err("it has content that means something in its own process only");
    }
    let text = structure.to_string();
    if text.len() > MAX_LEN {
        return Err("it is too long");
    }
    // GStreamer cannot read back each text that it writes.
    match to_structure(&text) {
        Some(same) if *same == *structure => Ok(text),
        _ => Err("it has no text form"),
    }
}

/// `None`: the text is invalid.
pub(crate) fn to_structure(text: &str) -> Option<gst::Structure> {
    if text.len() > MAX_LEN {
        return None;
    }
    text::to_structure(text)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let text = of_structure(&structure).unwrap();
        let same = to_structure(&text).unwrap();
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
        assert!(of_structure(&inner).is_err());
        assert!(of_structure(&outer).is_err());
        let long = gst::Structure::builder("long")
            .field("text", "x".repeat(MAX_LEN))
            .build();
        assert!(of_structure(&long).is_err());
    }
}
