// SPDX-License-Identifier: MPL-2.0

//! Converts statistics to JSON.

use gst::glib;
use serde_json::{Map, Value, json};

pub(crate) fn of_structure(structure: &gst::StructureRef) -> Value {
    let fields = structure.iter();
    Value::Object(
        fields
            .map(|(name, value)| (name.to_string(), of_value(value)))
            .collect::<Map<_, _>>(),
    )
}

fn of_value(value: &glib::SendValue) -> Value {
    if let Ok(number) = value.get::<u64>() {
        json!(number)
    } else if let Ok(number) = value.get::<u32>() {
        json!(number)
    } else if let Ok(text) = value.get::<Option<String>>() {
        json!(text)
    } else if let Ok(structure) = value.get::<gst::Structure>() {
        of_structure(&structure)
    } else if let Ok(array) = value.get::<gst::ArrayRef<'_>>() {
        array.iter().map(of_value).collect()
    } else {
        json!(format!("{value:?}"))
    }
}
