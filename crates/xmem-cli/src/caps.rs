// SPDX-License-Identifier: MPL-2.0

//! Caps in the words that people use for them.

/// Such as `NV12 1280x720 30/1` for the text of caps. `None`: it is no text of caps.
pub(crate) fn summary(caps: &str) -> Option<String> {
    let mut fields = split(caps);
    let name = fields.next()?.split('(').next()?.trim();
    let (kind, subtype) = name.split_once('/')?;
    let fields: Vec<(&str, String)> = fields.filter_map(field).collect();
    let get = |key: &str| {
        let field = fields.iter().find(|(name, _)| *name == key);
        field.map(|(_, value)| value.as_str())
    };
    let mut words = vec![match (subtype, get("format")) {
        ("x-raw", Some(format)) => format.to_owned(),
        _ => name.to_owned(),
    }];
    if let (Some(width), Some(height)) = (get("width"), get("height")) {
        words.push(format!("{width}x{height}"));
    }
    // Without a constant rate it is 0/1.
    words.extend(
        get("framerate")
            .filter(|it| !it.starts_with("0/"))
            .map(str::to_owned),
    );
    if kind == "audio" {
        words.extend(get("rate").map(|rate| format!("{rate} Hz")));
        words.extend(get("channels").map(|channels| format!("{channels} channels")));
    }
    Some(words.join(" "))
}

/// The parts between commas, as far as the first structure goes. Commas in quotes and brackets separate nothing.
fn split(caps: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut quoted, mut escaped, mut over) = (0_u32, false, false, false);
    caps.split(move |c| {
        let is_escaped = escaped;
        escaped = c == '\\' && !is_escaped;
        match c {
            _ if over || is_escaped => {}
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '{' | '[' | '<' => depth += 1,
            ')' | '}' | ']' | '>' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => {
                over = true;
                return true;
            }
            ',' => return depth == 0,
            _ => {}
        }
        false
    })
    .map(str::trim)
}

/// `key=(type)value`.
fn field(text: &str) -> Option<(&str, String)> {
    let (key, value) = text.split_once('=')?;
    let value = value.trim();
    let value = match value
        .strip_prefix('(')
        .and_then(|typed| typed.split_once(')'))
    {
        Some((_, value)) => value,
        None => value,
    };
    Some((key.trim(), value.trim().trim_matches('"').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_are_summarized() {
        for (caps, words) in [
            (
                "video/x-raw, format=(string)NV12, width=(int)1280, height=(int)720, framerate=(fraction)30/1",
                "NV12 1280x720 30/1",
            ),
            (
                "video/x-raw(memory:CUDAMemory, meta:GstVideoOverlayComposition), format=P010_10LE, width=8, height=4",
                "P010_10LE 8x4",
            ),
            (
                r#"video/x-h264, codec_data=(buffer)01, note="a, width=1\", b", width=(int)64, height=(int)48, framerate=(fraction)0/1"#,
                "video/x-h264 64x48",
            ),
            (
                "audio/x-raw, format=(string)S16LE, rate=(int)48000, channels=(int)2",
                "S16LE 48000 Hz 2 channels",
            ),
            (
                "image/jpeg, width=3, height=2; video/x-raw, format=RGB",
                "image/jpeg 3x2",
            ),
            ("application/octet-stream", "application/octet-stream"),
        ] {
            assert_eq!(summary(caps).as_deref(), Some(words), "{caps}");
        }
        assert_eq!(summary(""), None);
        assert_eq!(summary("ANY"), None);
    }
}
