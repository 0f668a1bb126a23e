// SPDX-License-Identifier: MPL-2.0

//! The sources of `xmem share`.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use xmem_core::discovery::printable;

use crate::Error;
use crate::child::{self, END_TIMEOUT};
use crate::launch::{not_started, property};

/// How long a packet may be late, in milliseconds. rtspsrc itself allows two seconds, for players. A pool would keep the frames of two
/// seconds for each consumer that shows them at their times.
const RTSP_LATENCY: u32 = 200;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Source {
    Test,
    Camera(Camera),
    Address(Address),
    File(Film),
    /// A pipeline description, as for gst-launch-1.0.
    Pipeline(String),
}

/// A file with a film or a picture.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Film {
    path: PathBuf,
    /// Its caps, such as `video/mpegts, systemstream=(boolean)true`: a demuxer may need the fields, too.
    caps: String,
}

/// An address for a URI handler of GStreamer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    text: String,
    way: Way,
}

/// What an address is opened as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Video,
    /// Sound is decoded too. The demuxer of Flash video ends if the first stream that comes is not linked.
    VideoAndSound,
    /// Pictures one after another over HTTP, without times, as network cameras send them. `has_failed`: the last run had none.
    Pictures {
        has_failed: bool,
    },
}

impl Address {
    fn begins_with(&self, scheme: &str) -> bool {
        let begin = self.text.as_bytes().get(..scheme.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(scheme.as_bytes()))
    }

    fn elements(&self, latency: Option<u32>) -> Vec<String> {
        if let Way::Pictures { .. } = self.way {
            // uridecodebin would wait until its buffers are full. A picture's time is that of its arrival. Some cameras say image/jpg.
            let mut elements = vec!["souphttpsrc".to_owned(), property("location", &self.text)];
            let rest = "is-live=true do-timestamp=true ! multipartdemux single-stream=true \
                        ! capssetter join=false replace=true caps=image/jpeg ! jpegdec";
            elements.extend(rest.split(' ').map(str::to_owned));
            return elements;
        }
        let mut elements = vec!["uridecodebin".to_owned(), property("uri", &self.text)];
        if self.way == Way::Video {
            elements.extend(ONLY_VIDEO.map(str::to_owned));
        }
        if let Some(latency) = latency {
            // uridecodebin gives its source this name.
            elements.push(format!("source::latency={latency}"));
        }
        elements
    }
}

/// A device of Video4Linux.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Camera {
    /// As it was given: a link such as those in /dev/v4l/by-id may have another target after the camera was plugged in again.
    path: PathBuf,
    /// Whether the driver is to write frames into buffers of the next element. No driver does so with encoded frames, and some
    /// drivers never do.
    writes_into_others: bool,
}

/// What the elements behind a camera can read. GStreamer 1.26 prefers caps of DMA buffers otherwise.
const READABLE: &str =
    "caps=video/x-raw;image/jpeg;video/x-h264;video/x-h265;video/mpeg;video/mpegts";

impl Camera {
    fn elements(&self) -> Vec<String> {
        let mut elements = vec!["v4l2src".to_owned(), property("device", &self.path)];
        if self.writes_into_others {
            elements.push("io-mode=userptr".to_owned());
        }
        elements.extend(["!", "capsfilter", READABLE, "!", "decodebin"].map(str::to_owned));
        elements
    }
}

impl Source {
    pub(super) fn of(source: &OsStr) -> Result<Self, Error> {
        match source.to_str() {
            Some("test") => return Ok(Self::Test),
            Some(text) if text.contains(" ! ") => return Ok(Self::Pipeline(text.to_owned())),
            Some(text) if text.contains("://") => {
                return Ok(Self::Address(Address {
                    text: text.to_owned(),
                    way: Way::Video,
                }));
            }
            _ => {}
        }
        let path = Path::new(source);
        let unreadable = |error| {
            let path = path.display();
            format!(
                "cannot read {path}: {error}. A source is `test`, a camera, an address, a file or a pipeline"
            )
        };
        let kind = fs::metadata(path).map_err(unreadable)?.file_type();
        if kind.is_dir() {
            return Err(format!("{} is a directory", path.display()).into());
        }
        // Checked before the pipeline opens the device, because some cameras can be opened only once.
        File::open(path).map_err(unreadable)?;
        Ok(if kind.is_char_device() {
            Self::Camera(Camera {
                path: path.to_owned(),
                writes_into_others: true,
            })
        } else {
            Self::File(Film::of(&fs::canonicalize(path).map_err(unreadable)?)?)
        })
    }

    /// Whether it is a camera that is not plugged in.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Camera(camera) if !camera.path.exists())
    }

    /// Called after a run without a frame, with the reason. Changes how the source is opened, if there is another way. Returns whether
    /// that is a way that was not tried since the last pause.
    pub(super) fn try_another_way(&mut self, reason: &str) -> bool {
        if self.is_absent() {
            return false;
        }
        match self {
            Self::Camera(camera) => {
                camera.writes_into_others = !camera.writes_into_others;
                !camera.writes_into_others
            }
            Self::Address(address) => {
                let before = address.way;
                address.way = match before {
                    Way::Video if reason.contains(NOT_LINKED) => Way::VideoAndSound,
                    // A camera that allows one client may not know yet that the last one has gone.
                    Way::Pictures { has_failed: false } => Way::Pictures { has_failed: true },
                    Way::Pictures { has_failed: true } => Way::Video,
                    way => way,
                };
                before == Way::Video && address.way != before
            }
            _ => false,
        }
    }

    /// Whether the tool's messages show how to open it.
    pub(super) fn is_told_by_messages(&self) -> bool {
        matches!(self, Self::Address(address)
            if address.begins_with("http") && !matches!(address.way, Way::Pictures { .. }))
    }

    /// Called when its server has said that it sends pictures.
    pub(super) fn set_has_pictures(&mut self) {
        if let Self::Address(address) = self {
            address.way = Way::Pictures { has_failed: false };
        }
    }

    /// A line of the tool without what may be secret in addresses.
    pub(super) fn without_secrets(&self, line: &str) -> String {
        let Self::Address(address) = self else {
            return without_passwords(line);
        };
        let Address { text, .. } = address;
        let line = line.replace(text, &public(text));
        let user = text.split_once("://").and_then(|(_, rest)| {
            let (user, _) = rest.rsplit_once('@')?;
            user.contains(':').then_some(user)
        });
        without_passwords(&user.map_or(line.clone(), |user| line.replace(user, "...")))
    }

    /// Whether it is an address for rtspsrc.
    pub(super) fn is_rtsp(&self) -> bool {
        matches!(self, Self::Address(address) if address.begins_with("rtsp"))
    }

    /// Whether it is a file with one picture.
    pub(super) fn is_picture(&self) -> bool {
        matches!(self, Self::File(film) if film.caps.starts_with("image/") && !film.caps.starts_with("image/gif"))
    }

    /// The elements that produce the frames of the source. `latency`: of an address for rtspsrc, in milliseconds.
    pub(super) fn elements(&self, latency: Option<u32>) -> Vec<String> {
        // The tool joins them again: the spaces of texts in quotes must stay.
        let words = |words: &str| words.split(' ').map(str::to_owned).collect();
        match self {
            Self::Test => words(
                "videotestsrc is-live=true ! video/x-raw,width=1280,height=720,framerate=30/1",
            ),
            Self::Camera(camera) => camera.elements(),
            Self::Address(address) => {
                let latency = latency.unwrap_or(RTSP_LATENCY);
                address.elements(self.is_rtsp().then_some(latency))
            }
            Self::File(film) => film.elements(),
            Self::Pipeline(elements) => words(elements),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Test => "test".to_owned(),
            Self::Camera(Camera { path, .. }) | Self::File(Film { path, .. }) => {
                path.display().to_string()
            }
            Self::Address(address) => public(&address.text),
            Self::Pipeline(_) => "pipeline".to_owned(),
        };
        f.write_str(&printable(&text))
    }
}

impl Film {
    /// Fails for playlists and other files that name what GStreamer should open. Otherwise, whoever made the file could choose
    /// addresses, and files of this user.
    fn of(path: &Path) -> Result<Self, Error> {
        let caps = caps_of_file(path)?;
        let kind = caps.split(',').next().unwrap_or_default();
        let in_files = [
            "application/ogg",
            "application/mxf",
            "application/x-yuv4mpeg",
            "application/vnd.rn-realmedia",
            "application/x-3gp",
            "application/x-id3",
            "application/x-ape",
        ];
        let has_frames = ["video/", "image/", "audio/"].map(|it| kind.starts_with(it));
        if has_frames.contains(&true) && kind != "image/svg+xml" || in_files.contains(&kind) {
            let path = path.to_owned();
            return Ok(Self { path, caps });
        }
        let kind = match kind {
            "" => "unknown to GStreamer".to_owned(),
            kind => printable(kind),
        };
        Err(format!(
            "{} isn't a film or a picture: its type is {kind}",
            path.display()
        )
        .into())
    }

    /// The type is given, so that nothing else is played if the file has changed since it was determined.
    fn elements(&self) -> Vec<String> {
        let mut elements = vec!["filesrc".to_owned(), property("location", &self.path)];
        let caps = property("sink-caps", &self.caps);
        elements.extend(["!", "decodebin", &caps].map(str::to_owned));
        elements.extend(ONLY_VIDEO.map(str::to_owned));
        elements
    }
}

/// The caps of a file, by its first bytes. Empty if they are unknown.
fn caps_of_file(path: &Path) -> Result<String, Error> {
    let mut command = child::dependent("gst-typefind-1.0");
    let ended = child::run(command.arg(path), END_TIMEOUT).map_err(not_started)?;
    let text = ended.map_or_else(String::new, |ended| ended.stdout);
    // After the path, such as ` - video/quicktime, variant=(string)iso`.
    let (_, caps) = text.trim_end().rsplit_once(" - ").unwrap_or_default();
    let kind = caps.split(',').next().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-+._".contains(&byte);
    let is_name = kind.contains('/') && kind.bytes().all(is_plain);
    Ok(if is_name { caps } else { "" }.to_owned())
}

/// Part of the error of a demuxer.
const NOT_LINKED: &str = "reason not-linked";

/// Other streams are not decoded. With this property, decodebin does not find the decoders of video with alpha.
pub(super) const ONLY_NEEDED: &str = "expose-all-streams=false";
/// Properties of elements that decode: other streams are ignored.
const ONLY_VIDEO: [&str; 2] = [ONLY_NEEDED, "caps=video/x-raw(ANY)"];

/// Removes what may be secret from the addresses in a line of the tool, because the output may be logged.
pub(super) fn without_passwords(text: &str) -> String {
    let words: Vec<_> = text.split(' ').map(public).collect();
    words.join(" ")
}

/// An address without its user, password and query.
fn public(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else {
        return address.to_owned();
    };
    // A password may contain any character. Removes too much of an address with a port and an @ in its path.
    let place = match rest.rsplit_once('@') {
        Some((user, place)) if user.contains(':') || !user.contains('/') => place,
        _ => rest,
    };
    let place = place.split('?').next().unwrap_or_default();
    format!("{scheme}://{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_recognized() {
        let of = |text: &str| Source::of(OsStr::new(text));
        assert_eq!(of("test").unwrap(), Source::Test);
        let rtsp = of("rtsp://user:secret@host:554/a").unwrap();
        assert_eq!(rtsp.to_string(), "rtsp://host:554/a");
        let has = |source: &Source, latency, word: &str| {
            source.elements(latency).contains(&word.to_owned())
        };
        assert!(has(&rtsp, None, "source::latency=200"));
        assert!(has(&rtsp, Some(0), "source::latency=0"));
        assert!(!has(
            &of("http://host/a").unwrap(),
            None,
            "source::latency=200"
        ));
        assert_eq!(
            of("rtsp://host/a@b").unwrap().to_string(),
            "rtsp://host/a@b"
        );
        let slash = of("rtsp://user:se/cr@t@host/a").unwrap().to_string();
        assert_eq!(slash, "rtsp://host/a");
        let pipeline = r#"a b="c  d" ! e"#;
        assert_eq!(of(pipeline).unwrap().elements(None).join(" "), pipeline);
        for (wrong, part) in [
            ("/none", "cannot read /none: No such file"),
            ("/", "/ is a directory"),
        ] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.starts_with(part), "{error}");
        }
    }

    #[test]
    fn a_camera_keeps_the_path_that_was_given() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("by-id");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let mut camera = Source::of(link.as_os_str()).unwrap();
        let device = property("device", &link);
        assert!(camera.elements(None).contains(&device), "{camera:?}");
        assert_eq!(camera.to_string(), link.display().to_string());
        let is_shared = |camera: &Source| {
            camera
                .elements(None)
                .contains(&"io-mode=userptr".to_owned())
        };
        assert!(is_shared(&camera));
        assert!(camera.try_another_way("") && !is_shared(&camera));
        assert!(!camera.try_another_way("") && is_shared(&camera));
        assert!(!camera.is_absent());
        fs::remove_file(&link).unwrap();
        assert!(camera.is_absent() && !camera.try_another_way(""));
    }

    #[test]
    fn the_words_of_the_tool_have_no_password() {
        let line = "Not Found (404), URL: http://user:secret@host/a, Redirect to: (NULL)";
        assert_eq!(
            without_passwords(line),
            "Not Found (404), URL: http://host/a, Redirect to: (NULL)"
        );
        let line = "no property in location=rtsp://user:secret@host";
        assert!(!without_passwords(line).contains("secret"));
        let line = "URL: http://host/a?user=admin&password=secret, Redirect";
        assert_eq!(without_passwords(line), "URL: http://host/a Redirect");
        let source = Source::of(OsStr::new("rtsp://user:pa ss?@host/a?b=secret")).unwrap();
        assert_eq!(source.to_string(), "rtsp://host/a");
        let line = "Could not open rtsp://user:pa ss?@host/a?b=secret, with user:pa ss?";
        assert_eq!(
            source.without_secrets(line),
            "Could not open rtsp://host/a, with ..."
        );
        assert_eq!(without_passwords("a  b: //c@d "), "a  b: //c@d ");
    }
}
