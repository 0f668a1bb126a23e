// SPDX-License-Identifier: MPL-2.0

//! Makes text of another process safe to print.

/// Replaces each character that could mislead the reader of a terminal or a log by U+FFFD: control characters, line ends, and
/// characters that change the direction of text.
///
/// Use it for all text from another process: its name, a key, the reason of a refusal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if is_misleading(c) {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

fn is_misleading(c: char) -> bool {
    // The line and paragraph separators, and embeddings, overrides and isolates (Unicode Standard Annex #9).
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_marked() {
        assert_eq!(printable("cam\x1b[2J\n"), "cam\u{fffd}[2J\u{fffd}");
        assert_eq!(printable("\u{202e}mac\u{2069}"), "\u{fffd}mac\u{fffd}");
        assert_eq!(printable("one\u{2028}two"), "one\u{fffd}two");
        assert_eq!(printable("größer, 日本"), "größer, 日本");
    }
}
