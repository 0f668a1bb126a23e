// SPDX-License-Identifier: MPL-2.0

//! Checks a text of another process before GStreamer parses it, and limits the names that GLib keeps.
//!
//! GStreamer's parser is recursive, and ten thousand levels overflow the stack. It keeps each name that it finds until the process
//! ends. The check reads a text as the parser does, so that both agree where strings, lists and structures begin and end. A text
//! with which they could disagree is refused. GStreamer writes no such text.

use std::sync::atomic::{AtomicU32, Ordering};

use gst::glib;

/// The maximum nesting of lists and structures.
const MAX_DEPTH: usize = 64;
/// The maximum nesting of square brackets. The parser tries several meanings for each, so the time grows exponentially.
const MAX_SQUARE: usize = 4;
/// The maximum nesting of texts in strings and samples.
const MAX_TEXTS: usize = 8;

/// Whether GStreamer's parser can be used for this text.
pub(crate) fn is_parseable(text: &str) -> bool {
    let limits = Limits {
        square: MAX_SQUARE,
        texts: MAX_TEXTS,
    };
    !text.contains('\0') && Scan::new(limits).check(text.as_bytes())
}

/// How much nesting may follow.
#[derive(Debug, Clone, Copy)]
struct Limits {
    square: usize,
    texts: usize,
}

/// How the parser reads a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    /// As it is.
    Text,
    /// As structures.
    Structure,
    /// Fields of a sample contain structures in base64.
    Sample,
    /// In a way that is not known here. A string may contain structures.
    Other,
}

impl Type {
    fn of(name: &[u8]) -> Self {
        match name {
            b"string" | b"str" | b"s" | b"gchararray" => Self::Text,
            b"structure" | b"GstStructure" | b"caps" | b"GstCaps" => Self::Structure,
            b"taglist" | b"GstTagList" | b"GstSegment" => Self::Structure,
            b"sample" | b"GstSample" => Self::Sample,
            _ => Self::Other,
        }
    }
}

/// What the parser expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Structure,
    Field,
    Value,
}

/// The structures of one text.
#[derive(Debug)]
struct Scan {
    limits: Limits,
    /// For each open bracket the one that closes it, and the type of the values inside.
    open: Vec<(u8, Type)>,
    /// The type in parentheses before a value.
    cast: Option<Type>,
    next: Next,
}

impl Scan {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            open: Vec::new(),
            cast: None,
            next: Next::Structure,
        }
    }

    /// Whether the text is harmless.
    fn check(mut self, text: &[u8]) -> bool {
        let mut rest = text;
        while let Some((&byte, after)) = rest.split_first() {
            let after = match byte {
                _ if is_simple(byte) => self.token(rest),
                b'(' => self.type_name(after),
                b'"' => self.string(after),
                b'{' => self.enter(b'}').then_some(after),
                b'<' => self.enter(b'>').then_some(after),
                b'[' => self.enter(b']').then_some(after),
                b'}' | b'>' | b']' => self.leave(byte).then_some(after),
                b';' => self.expect(Next::Structure).then_some(after),
                b'=' => self.expect(Next::Value).then_some(after),
                b',' => self.expect(self.after_comma()).then_some(after),
                _ => Some(after),
            };
            let Some(after) = after else { return false };
            rest = after;
        }
        true
    }

    fn expect(&mut self, next: Next) -> bool {
        self.next = next;
        true
    }

    fn after_comma(&self) -> Next {
        match self.open.last() {
            Some((b'}' | b'>', _)) => Next::Value,
            _ => Next::Field,
        }
    }

    /// A name or a value. Returns the text after it. `None`: it is refused.
    fn token<'a>(&mut self, text: &'a [u8]) -> Option<&'a [u8]> {
        let (token, after) = split(text, |byte| !is_simple(byte));
        let next = std::mem::replace(&mut self.next, Next::Field);
        let read_as = self.take_type();
        // GStreamer checks the name of a structure before it keeps it.
        let is_structure = (next == Next::Structure || read_as == Type::Structure)
            && token.first().is_some_and(u8::is_ascii_alphabetic);
        let is_field = next == Next::Field && is_assigned(after);
        if (is_structure || is_field) && !may_be_kept(token)
            || read_as == Type::Sample && !self.is_sample_harmless(token)
        {
            return None;
        }
        let Some(features) = after.strip_prefix(b"(") else {
            return Some(after);
        };
        let (features, after) = parentheses(features)?;
        let mut features = features.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        features.all(may_be_kept).then_some(after)
    }

    /// The type of the next value.
    fn type_name<'a>(&mut self, text: &'a [u8]) -> Option<&'a [u8]> {
        let (name, after) = parentheses(text)?;
        let name = name.trim_ascii();
        self.cast = Some(Type::of(name));
        // Such a value would be a list of names.
        (name != b"GstCapsFeatures").then_some(after)
    }

    fn string<'a>(&mut self, text: &'a [u8]) -> Option<&'a [u8]> {
        let (string, after) = split_string(text);
        // The parser searches the end of a structure without regard to strings.
        let is_square = self.open.iter().any(|(close, _)| *close == b']');
        let next = std::mem::replace(&mut self.next, Next::Field);
        if next == Next::Structure || is_square && string.iter().any(|byte| b"[]".contains(byte)) {
            return None;
        }
        let is_harmless =
            self.take_type() == Type::Text || self.is_text_harmless(&unescape(string));
        is_harmless.then_some(after)
    }

    /// An open bracket.
    fn enter(&mut self, close: u8) -> bool {
        let inside = self.take_type();
        self.open.push((close, inside));
        self.next = if close == b']' {
            Next::Structure
        } else {
            Next::Value
        };
        self.open.len() <= MAX_DEPTH && self.squares() <= self.limits.square
    }

    fn leave(&mut self, close: u8) -> bool {
        self.cast = None;
        self.next = Next::Field;
        self.open.pop().is_some_and(|(open, _)| open == close)
    }

    fn squares(&self) -> usize {
        let square = self.open.iter().filter(|(close, _)| *close == b']');
        square.count()
    }

    /// The type of a value that begins here.
    fn take_type(&mut self) -> Type {
        let inherited = self.open.last().map_or(Type::Text, |(_, inside)| *inside);
        self.cast.take().unwrap_or(inherited)
    }

    /// Checks a text inside of this one.
    fn is_text_harmless(&self, text: &[u8]) -> bool {
        let Some(texts) = self.limits.texts.checked_sub(1) else {
            return false;
        };
        let square = self.limits.square.saturating_sub(self.squares());
        Self::new(Limits { square, texts }).check(text)
    }

    /// Checks a sample: a buffer, caps, a segment and a structure.
    fn is_sample_harmless(&self, sample: &[u8]) -> bool {
        let fields: Vec<_> = sample.split(|byte| *byte == b':').collect();
        let [_, texts @ ..] = &fields[..] else {
            return true;
        };
        texts.len() != 3
            || texts
                .iter()
                .all(|text| self.is_text_harmless(&decode(text)))
    }
}

/// Whether a byte can be in a name, or in a value without quotes.
fn is_simple(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-+/:.".contains(&byte)
}

/// Whether a value follows a name.
fn is_assigned(after: &[u8]) -> bool {
    let (_, after) = split(after, |byte| !byte.is_ascii_whitespace() && byte != b'\\');
    after.starts_with(b"=")
}

/// Whether GStreamer may keep this name until the process ends.
fn may_be_kept(name: &[u8]) -> bool {
    str::from_utf8(name).is_ok_and(|name| name.is_empty() || to_quark(name).is_some())
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

/// Splits before the first byte that is an end.
fn split(text: &[u8], is_end: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| is_end(*byte));
    text.split_at_checked(end.unwrap_or(text.len()))
        .unwrap_or_default()
}

/// Splits a text after a parenthesis: the content, and the text after the end. `None`: the content is neither a type nor the
/// features of caps.
fn parentheses(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (content, after) = split(text, |byte| byte == b')');
    let is_usual = content
        .iter()
        .all(|byte| is_simple(*byte) || b", ".contains(byte));
    is_usual.then(|| (content, after.get(1..).unwrap_or_default()))
}

/// Splits a text after a quote: the content with its escapes, and the text after the end.
fn split_string(text: &[u8]) -> (&[u8], &[u8]) {
    let mut is_escaped = false;
    let end = text.iter().position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    });
    let (content, after) = text
        .split_at_checked(end.unwrap_or(text.len()))
        .unwrap_or_default();
    (content, after.get(1..).unwrap_or_default())
}

/// The content of a string, with GStreamer's escapes resolved.
fn unescape(string: &[u8]) -> Vec<u8> {
    let mut content = Vec::with_capacity(string.len());
    let mut bytes = string.iter();
    while let Some(byte) = bytes.next() {
        if *byte != b'\\' {
            content.push(*byte);
            continue;
        }
        if let [b'0'..=b'3', ..] = bytes.as_slice() {
            // GStreamer refuses strings in which other digits follow.
            let digits = bytes.by_ref().take(3);
            content.push(digits.fold(0, |code: u8, digit| {
                code.wrapping_mul(8).wrapping_add(digit.wrapping_sub(b'0'))
            }));
        } else {
            content.extend(bytes.next());
        }
    }
    content
}

/// The text that GStreamer finds in a field of a sample.
fn decode(field: &[u8]) -> Vec<u8> {
    let base64: String = field
        .iter()
        .map(|byte| char::from(if *byte == b'_' { b'=' } else { *byte }))
        .collect();
    let mut text = glib::base64_decode(&base64);
    // GStreamer decodes in place, so the end of the field follows, unless the text contains its end.
    text.extend(base64.bytes().skip(text.len()));
    let (text, _) = split(&text, |byte| byte == 0);
    text.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{
        sticky::{TAGS, parse_segment, parse_tags},
        text::{to_caps, to_structure},
    };

    #[test]
    fn usual_spellings_are_parsed() {
        for text in [
            "video/x-raw(memory:X), format=(string){ NV12, I420 }, width=[ 1, 100 ]",
            "video/x-raw(memory:X, meta:Y), rate=(fraction)[ 0/1, 30/1 ]; audio/x-raw",
            r#"a/b, json=(string)"{\"list\":\[1,2,{\"x\":\"y\"}]}""#,
            r#"a/b, s=(structure)"c\,\ d\=\(string\)\"x\"\;""#,
            r#"a/b, angles=(string)"<<{[)", more="]\\""#,
            "a/b, empty=\"\", open=\"",
            "a/b, s=(structure)[c, list={ [ 1, 2 ] }]",
            "",
        ] {
            assert!(is_parseable(text), "{text}");
        }
    }

    /// A sample as text, with this text as caps and as structure.
    fn sample(text: &str) -> String {
        let base64 = glib::base64_encode(format!("{text}\0").as_bytes()).replace('=', "_");
        format!("00:{base64}:None:{base64}")
    }

    /// A text that passes the check must not end this program.
    #[track_caller]
    fn assert_refused(text: &str) {
        gst::init().unwrap();
        assert!(to_structure(text).is_none());
        assert!(to_caps(text).is_none());
        assert!(parse_tags(TAGS, text).is_none());
        assert!(parse_segment(&format!("\"{text}\"")).is_none());
    }

    #[test]
    fn deep_nesting_is_refused() {
        gst::init().unwrap();
        for (open, close, few) in [("{", "}", 10), ("<", ">", 10), ("[b, y=", "]", 3)] {
            let nested =
                |levels: usize| format!("{}1{}", open.repeat(levels), close.repeat(levels));
            let harmless = format!("a/b, x={}", nested(few));
            assert!(to_structure(&harmless).is_some());
            let harmless = format!("a/b, x=(sample){}", sample(&harmless));
            assert!(to_structure(&harmless).is_some());
            let deep = format!("a/b, x={}", nested(50_000));
            let octal = format!("c, x={}", r"\173".repeat(50_000));
            assert_refused(&deep);
            assert_refused(&format!("a/b, s=(structure)\"{deep}\""));
            assert_refused(&format!("a/b, s=(structure)\"{octal}\""));
            assert_refused(&format!("a/b, s=(structure){{ \"{deep}\" }}"));
            assert_refused(&format!("a/b, x=(GstSample){}", sample(&deep)));
            assert_refused(&format!("a/b, x=(sample){{ {} }}", sample(&deep)));
            let inner = format!("c, x=(sample){}", sample(&deep));
            assert_refused(&format!("a/b, x=(sample){}", sample(&inner)));
        }
        let texts = (0..12).fold("x".to_owned(), |text, _| {
            let quoted = text.replace('\\', r"\\").replace('"', "\\\"");
            format!("c, s=(structure)\"{quoted}\"")
        });
        assert_refused(&texts);
    }

    /// GStreamer decodes in place. If the decoded text has no end, the end of the encoded text follows.
    #[test]
    fn the_end_of_a_sample_is_checked_too() {
        gst::init().unwrap();
        assert_eq!(decode(b"YS9i"), b"a/bi");
        assert_eq!(decode(b"YS9iAA__"), b"a/b");
        assert_eq!(decode(b"-Y.S9i"), b"a/bS9i");
    }

    /// Each of these hides a quote from a check that only counts quotes. Such a check finds every list in another string.
    #[test]
    fn nesting_between_strings_is_refused() {
        let lists = r#"{{"", "#.repeat(100_000);
        for hidden in [
            r#"a/b(memory:"), x="#,
            r#"a/b, s=[c; "], x="#,
            r#"a/b, s=(structure)[c; "], x="#,
            r#"a/b, s="\0", x="#,
            r#"a/b, x="#,
        ] {
            assert_refused(&format!("{hidden}{lists}"));
        }
        let closed = r#"{{[c; }} ], "#.repeat(100_000);
        assert_refused(&format!("a/b, x={closed}"));
    }

    /// The parser tries each square bracket as a range, as a structure and as caps.
    #[test]
    fn brackets_with_several_meanings_are_refused() {
        let brackets = format!("{}y=(none)1{}", "x=[b, ".repeat(40), "]".repeat(40));
        assert_refused(&format!("a/b, {brackets}"));
        let few = format!("{}y=(none)1{}", "x=[b, ".repeat(3), "]".repeat(3));
        let quoted = format!("x=[b, y=[c, s=(structure)\"d, {few}\"]]");
        assert_refused(&format!("a/b, {quoted}"));
    }

    /// Runs an ignored test in a process of its own. With `cargo test`, all tests are threads of one process, and the others would
    /// count too and fail after the limit.
    fn assert_passes_alone(test: &str) {
        let (_, module) = module_path!().split_once("::").unwrap();
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", &format!("{module}::{test}")])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}{errors}"
        );
    }

    #[test]
    fn strings_that_are_kept_for_good_are_counted() {
        assert_passes_alone("all_strings_that_may_be_kept_are_used_up");
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
    fn names_that_are_kept_for_good_are_counted() {
        assert_passes_alone("all_names_that_may_be_kept_are_used_up");
    }

    #[test]
    #[ignore = "started by the one above"]
    fn all_names_that_may_be_kept_are_used_up() {
        gst::init().unwrap();
        let fields = |from: u32| -> String {
            let fields = from..from + 4_000;
            fields.map(|n| format!(", made-up-{n}=1")).collect()
        };
        assert!(to_structure(&format!("a/b{}", fields(0))).is_some());
        assert!(to_structure(&format!("a/b{}", fields(4_000))).is_some());
        assert_refused(&format!("a/b{}", fields(8_000)));
        // Now each further name is refused.
        for text in [
            "new-a",
            "a/b, made-up-5=1; new-b",
            "a/b(memory:New), x=1",
            "a/b(memory:SystemMemory, memory:NewToo), x=1",
            "a/b, x=1, new-c\\ =1",
            "a/b, x=[new-d]",
            "a/b, x=[c, new-e=1]",
            "a/b, x=(structure)new-f",
            "a/b, x=(GstCaps){ a/b, new-g }",
            "a/b, x=(GstCapsFeatures)memory:NewAgain",
            r#"a/b, x=(structure)"a/b, new-h=1""#,
            r#"a/b, x=(GstCaps)<"a/b\,\ new\055i\=1">"#,
            &format!("a/b, x=(sample){}", sample("a/b, new-j=1")),
            &format!("a/b, x=(sample){{ {} }}", sample("new-k")),
        ] {
            assert_refused(text);
        }
        for name in "abcdefghijk".chars() {
            assert!(glib::Quark::try_from_str(&format!("new-{name}")).is_none());
        }
        // Values are not kept.
        let again = "a/b, made-up-5=other, made-up-6={ new-l, new-m }, made-up-7=(string)\"new-n=1\", made-up-8=[ 1, 2 ]";
        assert!(to_structure(again).is_some());
    }

    #[test]
    fn pictures_in_tags_are_parsed() {
        gst::init().unwrap();
        let picture: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        let caps = gst::Caps::builder("image/png").field("width", 640).build();
        let info = gst::Structure::builder("GstTagImageInfo")
            .field("image-type", 3)
            .build();
        let sample = gst::Sample::builder()
            .buffer(&gst::Buffer::from_slice(picture))
            .caps(&caps)
            .segment(&gst::FormattedSegment::<gst::ClockTime>::new())
            .info(info)
            .build();
        let mut tags = gst::TagList::new();
        tags.make_mut()
            .add::<gst::tags::Image>(&sample, gst::TagMergeMode::Append);
        tags.make_mut()
            .add::<gst::tags::PreviewImage>(&sample, gst::TagMergeMode::Append);
        let parsed = parse_tags(TAGS, &tags.to_string()).unwrap();
        let image = parsed.get::<gst::tags::Image>().unwrap().get();
        assert_eq!(image.caps(), Some(caps.as_ref()));
        assert_eq!(image.buffer().unwrap().size(), 200_000);
    }
}
