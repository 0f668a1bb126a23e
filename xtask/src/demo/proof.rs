// SPDX-License-Identifier: MPL-2.0

//! The results of the demo: a list of claims that hold or do not hold.

use std::fmt;

#[derive(Debug, Default)]
pub(super) struct Proof {
    proved: Vec<String>,
    not_proved: Vec<String>,
}

impl Proof {
    /// Adds a claim with the observed figures.
    pub(super) fn claim(&mut self, holds: bool, claim: &str, seen: &str) {
        let text = if seen.is_empty() {
            claim.to_owned()
        } else {
            format!("{claim} ({seen})")
        };
        if holds {
            self.proved.push(text);
        } else {
            self.not_proved.push(text);
        }
    }

    pub(super) fn holds(&self) -> bool {
        self.not_proved.is_empty()
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut write = |title: &str, claims: &[String]| {
            let lines = claims.iter().map(|claim| format!("\n  - {claim}"));
            write!(f, "{title}:{}", lines.collect::<String>())
        };
        write("Proved", &self.proved)?;
        // The failed claims are printed last, so that the user sees them first.
        if !self.not_proved.is_empty() {
            write("\nNOT proved", &self.not_proved)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Proof;

    #[test]
    fn one_failed_claim_fails_the_proof() {
        let mut proof = Proof::default();
        proof.claim(true, "a", "1 ms");
        assert!(proof.holds());
        assert_eq!(proof.to_string(), "Proved:\n  - a (1 ms)");
        proof.claim(false, "b", "");
        assert!(!proof.holds());
        assert_eq!(
            proof.to_string(),
            "Proved:\n  - a (1 ms)\nNOT proved:\n  - b"
        );
    }
}
