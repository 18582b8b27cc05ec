//! Escapes text from a target or a file: invisible characters and terminal commands.
//!
//! Every text from outside goes through [`visible`]. [`EscapeGuard`] is the second defence: code
//! that forgets the rule may misplace text, but cannot command a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Commands a terminal, reorders text, or is invisible.
pub(crate) fn is_hidden(c: char) -> bool {
    match c {
        // C0 with line ends and tabs, DEL, C1.
        _ if c.is_control() => true,
        // Direction marks, embeddings, overrides, isolates.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        // Line and paragraph separators.
        '\u{2028}' | '\u{2029}' => true,
        // Zero width: joiners, invisible operators, fillers, byte order mark, annotations, tags.
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => true,
        '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' => true,
        '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{ffa0}' | '\u{feff}' => true,
        '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}' => true,
        // Noncharacters, which XML forbids.
        _ => u32::from(c) & 0xfffe == 0xfffe || ('\u{fdd0}'..='\u{fdef}').contains(&c),
    }
}

fn spell(c: char, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = match c {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        c if c.is_ascii() => write!(out, "\\x{:02x}", u32::from(c)),
        c => write!(out, "\\u{{{:x}}}", u32::from(c)),
    };
}

fn spell_in_json(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// Escapes control characters as `\x1b` or `\n`, invisible ones as `\u{202e}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_hidden(c) {
            true => spell(c, &mut out),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Escapes what got past [`visible`].
pub struct EscapeGuard<W: Write> {
    out: W,
    /// memspy's own characters.
    own: fn(char) -> bool,
    spell: fn(char, &mut String),
    /// The start of an incomplete character.
    begun: Vec<u8>,
}

impl<W: Write> EscapeGuard<W> {
    /// For text in lines.
    pub fn text(out: W) -> EscapeGuard<W> {
        EscapeGuard { out, own: |c| c == '\n', spell, begun: Vec::new() }
    }

    /// Hidden characters occur only in strings, so they become JSON escapes.
    pub(crate) fn json(out: W) -> EscapeGuard<W> {
        EscapeGuard { out, own: |c| c == '\n', spell: spell_in_json, begun: Vec::new() }
    }

    fn pass(&mut self, text: &str) -> io::Result<()> {
        let own = self.own;
        let strange = |c: char| is_hidden(c) && !own(c);
        if !text.contains(strange) {
            return self.out.write_all(text.as_bytes());
        }
        let mut spelled = String::with_capacity(text.len() + 16);
        for c in text.chars() {
            match strange(c) {
                true => (self.spell)(c, &mut spelled),
                false => spelled.push(c),
            }
        }
        self.out.write_all(spelled.as_bytes())
    }
}

impl<W: Write> Write for EscapeGuard<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let whole = match self.begun.is_empty() {
            true => Cow::Borrowed(bytes),
            false => Cow::Owned([&std::mem::take(&mut self.begun), bytes].concat()),
        };
        let mut rest: &[u8] = &whole;
        while !rest.is_empty() {
            let (text, after) = match std::str::from_utf8(rest) {
                Ok(text) => (text, &rest[rest.len()..]),
                Err(error) => {
                    let (text, after) = rest.split_at(error.valid_up_to());
                    (std::str::from_utf8(text).unwrap_or_default(), after)
                }
            };
            self.pass(text)?;
            let wrong = std::str::from_utf8(after).err().map(|error| error.error_len());
            match wrong {
                None => break,
                Some(None) => {
                    self.begun = after.to_vec();
                    break;
                }
                Some(Some(length)) => {
                    let (bad, after) = after.split_at(length);
                    for byte in bad {
                        write!(self.out, "\\x{byte:02x}")?;
                    }
                    rest = after;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// As text in HTML.
pub(crate) fn html_escaped(text: &str) -> String {
    let mut html = String::new();
    for c in visible(text).chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_commands_and_deceptive_characters_are_escaped() {
        for (text, shown) in [
            ("train.py --größe=7b 日本 ✓", "train.py --größe=7b 日本 ✓"),
            ("\x1b]0;PWNED\x07", "\\x1b]0;PWNED\\x07"),
            ("a\nb\r\n\tc", "a\\nb\\r\\n\\tc"),
            ("\u{9b}31m\u{85}\x7f\0", "\\u{9b}31m\\u{85}\\x7f\\x00"),
            ("\u{202e}txt.\u{2066}\u{200f}\u{61c}", "\\u{202e}txt.\\u{2066}\\u{200f}\\u{61c}"),
            ("a\u{2028}b\u{2029}", "a\\u{2028}b\\u{2029}"),
            ("pass\u{200b}word\u{feff}\u{e0041}", "pass\\u{200b}word\\u{feff}\\u{e0041}"),
            ("\u{ffff}\u{10fffe}", "\\u{ffff}\\u{10fffe}"),
            ("C:\\dir", "C:\\dir"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }

    #[test]
    fn the_guard_passes_only_its_own_line_ends() {
        let mut out = Vec::new();
        let mut guard = EscapeGuard::text(&mut out);
        write!(guard, "GPU 0\n  größe\x1b[2J\t\u{202e}\n").unwrap();
        for part in [&b"\xe2"[..], b"\x82", b"\xac", b"\xff\xc3", b"("] {
            guard.write_all(part).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "GPU 0\n  größe\\x1b[2J\\t\\u{202e}\n€\\xff\\xc3(");
    }

    #[test]
    fn json_stays_the_same_text() {
        let value = serde_json::json!({"a\u{202e}": "\u{9b}2J\x7f\u{e0041}\n"});
        let mut out = Vec::new();
        serde_json::to_writer_pretty(EscapeGuard::json(&mut out), &value).unwrap();
        assert!(!String::from_utf8_lossy(&out).contains(|c| is_hidden(c) && c != '\n'));
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&out).unwrap(), value);
    }

    #[test]
    fn html_has_it_as_text() {
        assert_eq!(
            html_escaped("</title><b>\"x\u{2028}"),
            "&lt;/title&gt;&lt;b&gt;&quot;x\\u{2028}"
        );
    }
}
