// SPDX-License-Identifier: MPL-2.0

//! `xmem doctor`

mod cuda;
mod directories;
mod gstreamer;
mod system;

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;
use xmem_core::printable;

use crate::Error;
use crate::cli::Format;
use crate::format::json;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ok,
    /// Something that some users need is missing or does not work.
    Warning,
    /// Pools do not work.
    Problem,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    what: String,
    /// The remedy.
    advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self {
            check,
            verdict: Verdict::Ok,
            what: what.into(),
            advice: None,
        }
    }

    fn warning(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Warning,
            advice: Some(advice.into()),
            ..Self::ok(check, what)
        }
    }

    fn problem(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Problem,
            ..Self::warning(check, what, advice)
        }
    }
}

pub(crate) fn run(format: Format, out: &mut impl Write) -> Result<ExitCode, Error> {
    let checks = [
        directories::check,
        system::check,
        gstreamer::check,
        cuda::check,
    ];
    let findings: Vec<Finding> = checks.into_iter().flat_map(|check| check()).collect();
    if format == Format::Json {
        json(out, &findings)?;
    } else {
        for finding in &findings {
            print(finding, out)?;
        }
    }
    let worst = findings.iter().map(|finding| finding.verdict).max();
    Ok(ExitCode::from(worst.map_or(0, |verdict| verdict as u8)))
}

/// Whether a version is older than `than`. `false` if the version cannot be parsed.
fn is_older(version: &str, than: (u32, u32)) -> bool {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse().ok());
    let mut next = || numbers.next().flatten();
    let version: Option<(u32, u32)> = next().zip(next());
    version.is_some_and(|version| version < than)
}

fn print(finding: &Finding, out: &mut impl Write) -> Result<(), Error> {
    let verdict = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Problem => "problem",
    };
    let what = printable(&finding.what);
    writeln!(out, "{verdict:<8} {:<18} {what}", finding.check)?;
    if let Some(advice) = &finding.advice {
        writeln!(out, "{:<27} {}", "", printable(advice))?;
    }
    Ok(())
}
