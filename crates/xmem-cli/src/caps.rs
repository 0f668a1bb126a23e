// SPDX-License-Identifier: MPL-2.0

//! Caps: parsing GStreamer's text, and a short description.

use xmem_core::PoolStats;

/// The caps of encoded frames that are read by a parser and a decoder alone. Containers and playlists are not among them: whatever
/// GStreamer finds in them decides what it opens, also addresses and files of this user.
const ENCODED: &str = "\
    video/x-h264;video/x-h265;video/x-h266;video/x-h263;video/x-av1;video/x-vp8;video/x-vp9;\
    video/mpeg,systemstream=false;video/x-theora;video/x-dirac;video/x-prores;video/x-dnxhd;\
    video/x-wmv;video/x-ffv;video/x-huffyuv;video/x-cineform;image/jpeg;image/png;image/webp;\
    image/x-jpc;video/x-divx";

/// The maximum number of characters of a short description.
const MAX_SUMMARY: usize = 100;

/// The first structure of caps.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    name: String,
    fields: Vec<(String, String)>,
}

impl Caps {
    /// The caps of a pool. `None` if it has none.
    pub(crate) fn of(stats: &PoolStats) -> Option<Self> {
        let caps = stats.sticky.iter().find(|(key, _)| key == "caps");
        caps.and_then(|(_, caps)| Self::from_text(caps))
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut parts = split(text);
        let name = parts.next()?.split('(').next()?.trim();
        name.contains('/').then(|| Self {
            name: name.to_owned(),
            fields: parts.filter_map(field).collect(),
        })
    }

    /// The media type, such as `video/x-h264`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn get(&self, key: &str) -> Option<&str> {
        let field = self.fields.iter().find(|(name, _)| name == key);
        field.map(|(_, value)| value.as_str())
    }

    /// Whether the media type is video or an image, raw or encoded.
    pub(crate) fn is_video(&self) -> bool {
        self.name.starts_with("video/") || self.name.starts_with("image/")
    }

    /// Whether the frames are not encoded.
    pub(crate) fn is_raw(&self) -> bool {
        self.name.ends_with("/x-raw")
    }

    /// Whether frames that are encoded need no more than a parser and a decoder.
    pub(crate) fn is_elementary(&self) -> bool {
        let mut names = ENCODED.split(';').filter_map(|caps| caps.split(',').next());
        names.any(|name| name == self.name) && self.get("systemstream") != Some("true")
    }

    /// The format of raw frames.
    pub(crate) fn format(&self) -> Option<&str> {
        self.get("format").filter(|_| self.is_raw())
    }

    /// Caps with these fields of raw frames, for a capsfilter. Without one, frames of another size or format could follow.
    pub(crate) fn filter(&self) -> String {
        let mut filter = "video/x-raw".to_owned();
        // The values come from another process.
        let is_plain = |value: &&str| {
            let mut letters = value.bytes();
            !value.is_empty()
                && letters.all(|byte| byte.is_ascii_alphanumeric() || b"_-/".contains(&byte))
        };
        let keys: &[&str] = if self.is_raw() {
            &["format", "width", "height", "framerate", "interlace-mode"]
        } else {
            &["width", "height"]
        };
        for key in keys {
            if let Some(value) = self.get(key).filter(is_plain) {
                filter += &format!(",{key}={value}");
            }
        }
        filter
    }

    /// In words, what differs between frames with these caps and others, for a pipeline with a [filter](Self::filter). `None`: nothing.
    pub(crate) fn difference(&self, other: &Self) -> Option<(String, String)> {
        let filters = (self.filter(), other.filter());
        if self.name == other.name && filters.0 == filters.1 {
            return None;
        }
        let words = (self.summary(), other.summary());
        Some(if words.0 == words.1 { filters } else { words })
    }

    /// Whether the values of YUV frames have the full range.
    pub(crate) fn has_full_range(&self) -> bool {
        // As decoders of JPEG state it, whatever the caps of its frames say.
        if self.name == "image/jpeg" {
            return true;
        }
        match self.get("colorimetry") {
            // The range and the matrix: that of RGB is 1.
            Some(text) => text.starts_with("1:") && !text.starts_with("1:1:"),
            None => self.get("format").is_some_and(|it| it.starts_with("GRAY")),
        }
    }

    /// Width and height in pixels.
    pub(crate) fn size(&self) -> Option<(usize, usize)> {
        let number = |key| self.get(key)?.parse().ok();
        number("width").zip(number("height"))
    }

    /// Whether frames come at no fixed rate, which is 0/1, or at an unknown one.
    pub(crate) fn has_variable_rate(&self) -> bool {
        self.get("framerate").is_none_or(|it| it.starts_with("0/"))
    }

    /// A short description such as `NV12 1280x720 30/1`.
    pub(crate) fn summary(&self) -> String {
        let mut words = vec![match self.get("format") {
            Some(format) if self.is_raw() => format.to_owned(),
            _ => self.name.clone(),
        }];
        words.extend(
            self.size()
                .map(|(width, height)| format!("{width}x{height}")),
        );
        let rate = self.get("framerate").filter(|_| !self.has_variable_rate());
        words.extend(rate.map(str::to_owned));
        if self.name.starts_with("audio/") {
            words.extend(self.get("rate").map(|rate| format!("{rate} Hz")));
            words.extend(self.get("channels").map(|channels| match channels {
                "1" => "1 channel".to_owned(),
                several => format!("{several} channels"),
            }));
        }
        // The caps come from another process.
        words.join(" ").chars().take(MAX_SUMMARY).collect()
    }
}

/// A capsfilter that lets through only frames that need no more than a parser and a decoder, or none.
pub(crate) fn elementary_filter() -> String {
    format!("capsfilter caps=video/x-raw;{ENCODED}")
}

/// Splits the first structure of caps at commas, except for commas in quotes and brackets.
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

/// Parses `key=(type)value`.
fn field(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once('=')?;
    let value = value.trim();
    let typed = value
        .strip_prefix('(')
        .and_then(|typed| typed.split_once(')'));
    let value = typed.map_or(value, |(_, value)| value);
    Some((
        key.trim().to_owned(),
        value.trim().trim_matches('"').to_owned(),
    ))
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
                "audio/x-raw, format=(string)U8, rate=(int)8000, channels=(int)1",
                "U8 8000 Hz 1 channel",
            ),
            (
                "image/jpeg, width=3, height=2; video/x-raw, format=RGB",
                "image/jpeg 3x2",
            ),
            ("application/octet-stream", "application/octet-stream"),
        ] {
            assert_eq!(Caps::from_text(caps).unwrap().summary(), words, "{caps}");
        }
        assert_eq!(Caps::from_text(""), None);
        assert_eq!(Caps::from_text("ANY"), None);
    }
}
