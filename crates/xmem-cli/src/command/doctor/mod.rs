// SPDX-License-Identifier: MPL-2.0

//! `xmem doctor`

mod cameras;
mod cuda;
mod directories;
mod finding;
mod gstreamer;
mod system;

use std::io::Write;
use std::process::ExitCode;

use xmem_core::discovery::printable;

use crate::Error;
use crate::cli::Format;
use crate::format::json;
use finding::{Finding, Verdict};

pub(crate) fn run(format: Format, out: &mut impl Write) -> Result<ExitCode, Error> {
    let checks = [
        directories::check,
        system::check,
        gstreamer::check,
        cuda::check,
        cameras::check,
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
