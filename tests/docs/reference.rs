// SPDX-License-Identifier: MPL-2.0

//! The reference pages of the elements: made from the properties that GObject knows, and from their comments in the sources.
//! `cargo xtask docs --write` writes the pages; otherwise the tests compare them.

use std::{env, fmt::Write, fs, path::Path};

use gst::{glib, prelude::*};

use super::{page, support::*};

#[test]
fn sink() {
    check("xmemsink", "GstXmemSink", "consumers");
}

#[test]
fn src() {
    check("xmemsrc", "GstXmemSrc", "settings");
}

fn check(name: &str, class: &str, signals: &str) {
    init();
    let element = gst::ElementFactory::make(name).build().unwrap();
    let source = |file: &str| page(&format!("src/{name}/{file}.rs"));
    let comments = Comments(source("settings") + &source(signals), class);
    let made = reference(&element, &comments);
    let file = format!("docs/reference/{name}.md");
    if env::var_os("XMEM_WRITE_REFERENCE").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
        fs::write(path, made).unwrap();
        return;
    }
    assert!(
        page(&file) == made,
        "{file} is out of date: run `cargo xtask docs --write`"
    );
}

fn reference(element: &gst::Element, comments: &Comments) -> String {
    let name = element.factory().unwrap().name();
    let specs = element.list_properties();
    let ours = specs.iter().filter(|it| it.owner_type() == element.type_());
    let mut rows = String::new();
    let mut sections = String::new();
    for spec in ours {
        let (name, blurb) = (spec.name(), spec.blurb().unwrap());
        assert!(!spec.nick().is_empty() && spec.nick() != name);
        let (default, kind) = (default_of(spec), kind_of(spec));
        let comment = comments.of(name);
        let link = match &comment {
            Some(_) => format!("[`{name}`](#{name})"),
            None => format!("`{name}`"),
        };
        writeln!(rows, "| {link} | {default} | {kind} | {blurb} |").unwrap();
        let Some(comment) = comment else { continue };
        writeln!(sections, "\n### {name}\n\n{blurb}.\n\n{comment}").unwrap();
        let Some(choices) = glib::EnumClass::with_type(spec.value_type()) else {
            continue;
        };
        sections.push('\n');
        for choice in choices.values() {
            // The name begins with the nick, as others of GStreamer do.
            let (_, meaning) = choice.name().split_once(": ").unwrap();
            writeln!(sections, "- `{}`: {meaning}", choice.nick()).unwrap();
        }
    }
    let mut page = format!(
        "# Reference of {name}\n\n\
         This page is made from the element itself, by `cargo xtask docs --write`. [{name}](../{name}.md) explains how to use it.\n\n\
         ## Properties\n\n\
         | property | default | type | meaning |\n|---|---|---|---|\n{rows}{sections}"
    );
    let signals = comments.signals();
    if !signals.is_empty() {
        page.push_str("\n## Signals\n");
    }
    for signal in signals {
        assert!(glib::subclass::SignalId::lookup(&signal, element.type_()).is_some());
        let comment = comments.of(&format!(":{signal}")).unwrap();
        writeln!(page, "\n### {signal}\n\n{comment}").unwrap();
    }
    page
}

/// The comments in the form of GObject's own documentation: `Class:property:` or `Class::signal:`, and text.
struct Comments<'a>(String, &'a str);

impl Comments<'_> {
    fn signals(&self) -> Vec<String> {
        let begin = format!("* {}::", self.1);
        let found = self.0.split(&begin).skip(1);
        found
            .map(|rest| rest.split(':').next().unwrap().into())
            .collect()
    }

    fn of(&self, name: &str) -> Option<String> {
        let (_, rest) = self.0.split_once(&format!("* {}:{name}:\n", self.1))?;
        let (text, _) = rest.split_once("*/").unwrap();
        let lines = text.lines().map(|line| line.trim_start());
        let lines = lines.map(|line| line.strip_prefix("* ").unwrap_or(line.trim_matches('*')));
        let text = lines.collect::<Vec<_>>().join("\n");
        Some(text.trim().replace("\n* ", "\n- "))
    }
}

/// The default as it is written on the command line.
fn default_of(spec: &glib::ParamSpec) -> String {
    if !spec.flags().contains(glib::ParamFlags::WRITABLE) {
        return "read-only".into();
    }
    let value = spec.default_value();
    let text = match value.get::<Option<String>>() {
        Ok(text) => text.unwrap_or_default(),
        Err(_) => value.serialize().unwrap().into(),
    };
    match &*text {
        "" => "unset".into(),
        text => format!("`{text}`"),
    }
}

fn kind_of(spec: &glib::ParamSpec) -> String {
    match spec.value_type() {
        glib::Type::STRING => "string".into(),
        glib::Type::BOOL => "boolean".into(),
        glib::Type::I32 => "int".into(),
        glib::Type::U32 => "uint".into(),
        glib::Type::U64 => "uint64".into(),
        other if other.is_a(glib::Type::ENUM) => "enum".into(),
        other => other.name().into(),
    }
}

/// The page names each statistic that there is, and no other.
#[test]
fn statistics() {
    init();
    for name in ["xmemsink", "xmemsrc"] {
        let page = page(&format!("docs/reference/{name}.md"));
        let (_, section) = page.split_once("\n### stats\n").unwrap();
        let section = section.split("\n#").next().unwrap();
        // The fields of a consumer are listed behind those of the pool.
        let section = section
            .split("`application/x-xmem-client` describes")
            .next()
            .unwrap();
        let rows = section.lines().filter(|line| line.starts_with("- `"));
        let names = rows.flat_map(|row| row.split(": ").next().unwrap().split(", "));
        let documented: Vec<_> = names.map(|name| name.split('`').nth(1).unwrap()).collect();
        let element = gst::ElementFactory::make(name).build().unwrap();
        let stats = element.property::<gst::Structure>("stats");
        for field in stats.fields() {
            assert!(documented.contains(&field.as_str()), "{field} is missing");
        }
        for name in documented {
            assert!(stats.has_field(name), "there is no {name}");
        }
    }
}
