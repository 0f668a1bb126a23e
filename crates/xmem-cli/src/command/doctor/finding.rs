// SPDX-License-Identifier: MPL-2.0

//! The result of one check.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Ok,
    /// Something that some users need is missing or does not work.
    Warning,
    /// Pools do not work.
    Problem,
}

/// The result of one check.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) what: String,
    /// The remedy.
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self {
            check,
            verdict: Verdict::Ok,
            what: what.into(),
            advice: None,
        }
    }

    pub(super) fn warning(
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Warning,
            advice: Some(advice.into()),
            ..Self::ok(check, what)
        }
    }

    pub(super) fn problem(
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Problem,
            ..Self::warning(check, what, advice)
        }
    }
}

/// Whether a version is older than `than`. `false` if the version cannot be parsed.
pub(super) fn is_older(version: &str, than: (u32, u32)) -> bool {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse().ok());
    let mut next = || numbers.next().flatten();
    let version: Option<(u32, u32)> = next().zip(next());
    version.is_some_and(|version| version < than)
}
