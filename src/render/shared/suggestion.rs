//! Suggested commands: complete, and quoted for a shell.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::escape::is_hidden;

/// `memspy WORDS`
pub fn suggestion<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> String {
    let mut text = "memspy".to_owned();
    for word in words {
        text.push(' ');
        text.push_str(&shell_word(word.as_ref()));
    }
    text
}

/// `memspy COMMAND -p PID MORE`
pub fn suggestion_on(pid: u32, command: &str, more: &[&str]) -> String {
    let pid = pid.to_string();
    suggestion([command, "-p", &pid].iter().chain(more))
}

/// Quoted with quotes that it does not contain.
pub fn in_sentence(command: &str) -> String {
    match command.contains('\'') {
        true => format!("`{command}`"),
        false => format!("'{command}'"),
    }
}

/// A word that cannot be read as an option.
pub fn file_word(path: &str) -> Cow<'_, str> {
    match path.starts_with('-') && path != "-" {
        true => Cow::Owned(format!("./{path}")),
        false => Cow::Borrowed(path),
    }
}

fn shell_word(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    if word.contains(is_hidden) {
        return Cow::Owned(spelled(word));
    }
    match !word.is_empty() && word.chars().all(is_plain) {
        true => Cow::Borrowed(word),
        false => Cow::Owned(format!("'{}'", word.replace('\'', r"'\''"))),
    }
}

/// `$'a\x0ab'`, for bash, zsh and ksh: printable on one line.
fn spelled(word: &str) -> String {
    let mut text = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\'' | '\\' => text.extend(['\\', c]),
            c if is_hidden(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "\\x{byte:02x}");
                }
            }
            c => text.push(c),
        }
    }
    text + "'"
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn quoted_words_survive_a_shell() {
        let words = [
            "referrers",
            "train: it's[\"a b\"][0]",
            "/tmp/a b.bin",
            "$HOME;`id`*",
            "",
            "größe",
            "~",
            "a\nb\u{202e}\\x'c",
            "--for=60s",
        ];
        let text = suggestion(words);
        assert!(!text.contains(is_hidden), "{text}");
        let script = format!("memspy() {{ printf '%s\\0' \"$@\"; }}; {text}");
        let run = Command::new("bash").args(["-c", &script]).output().unwrap();
        let read: Vec<&[u8]> = run.stdout.split(|byte| *byte == 0).collect();
        let meant: Vec<&[u8]> =
            words.iter().map(|word| word.as_bytes()).chain([&b""[..]]).collect();
        assert_eq!(read, meant, "{text}");
    }

    #[test]
    fn plain_words_stay_plain() {
        assert_eq!(suggestion_on(12, "growth", &["--for", "60s"]), "memspy growth -p 12 --for 60s");
        assert_eq!(in_sentence("memspy flame a.bin"), "'memspy flame a.bin'");
        assert_eq!(in_sentence("memspy flame 'a b'"), "`memspy flame 'a b'`");
        assert_eq!(file_word("-x.bin"), "./-x.bin");
        assert_eq!(file_word("-"), "-");
    }
}
