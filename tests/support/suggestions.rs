//! Checks commands that an output suggests: complete, quoted for a shell, and accepted by memspy.

use memspy::cli::args::CliArgs;

/// Start and end of a command in a sentence.
const IN_SENTENCE: [(&str, char); 3] = [("'memspy ", '\''), ("`memspy ", '`'), ("(memspy ", ')')];
/// Separates a command from its explanation.
const COMMENT: &str = "    # ";

/// The commands that a text suggests, verbatim.
pub fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("memspy ") {
            found.push(line.split(COMMENT).next().unwrap().trim().to_owned());
            continue;
        }
        for (begin, end) in IN_SENTENCE {
            for (at, _) in line.match_indices(begin) {
                let rest = &line[at + 1..];
                let length =
                    rest.find(end).unwrap_or_else(|| panic!("a command is cut in: {line}"));
                found.push(rest[..length].to_owned());
            }
        }
    }
    found
}

/// The arguments as bash reads them. Panics if the shell would expand anything.
pub fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = command.chars().peekable();
    while rest.peek().is_some() {
        let mut word = String::new();
        while let Some(c) = rest.next_if(|c| *c != ' ') {
            match c {
                '\'' => loop {
                    match rest.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => panic!("a quote is open in: {command}"),
                    }
                },
                '\\' => word.push(rest.next().unwrap()),
                '$' if rest.next_if_eq(&'\'').is_some() => word.push_str(&spelled(&mut rest)),
                c if "\"`$;&|<>*?()[]{}!#~".contains(c) => {
                    panic!("a shell takes {c} for its own in: {command}")
                }
                c => word.push(c),
            }
        }
        words.push(word);
        while rest.next_if_eq(&' ').is_some() {}
    }
    words
}

/// The content of `$'…'`.
fn spelled(rest: &mut impl Iterator<Item = char>) -> String {
    let mut bytes = Vec::new();
    loop {
        match rest.next().expect("a quote is open") {
            '\'' => return String::from_utf8(bytes).unwrap(),
            '\\' => match rest.next().unwrap() {
                'x' => {
                    let digits: String = rest.take(2).collect();
                    bytes.push(u8::from_str_radix(&digits, 16).unwrap());
                }
                c => bytes.extend(c.to_string().bytes()),
            },
            c => bytes.extend(c.to_string().bytes()),
        }
    }
}

/// Panics unless memspy accepts every command that a text suggests. Returns their number.
#[track_caller]
pub fn all_are_understood(text: &str) -> usize {
    let commands = commands(text);
    for command in &commands {
        // Placeholders for the user's own values.
        let words = words(command).into_iter().map(|word| match word.as_str() {
            "PID" => "1".to_owned(),
            "MOMENT" => "peak".to_owned(),
            _ => word,
        });
        if let Err(error) = CliArgs::from_words(words)
            && error.use_stderr()
        {
            panic!("{command}\n{error}\nis suggested by:\n{text}");
        }
    }
    commands.len()
}

#[test]
fn commands_are_found_anywhere_in_a_text() {
    let text = "held by (memspy tensors -p 4)\n    memspy referrers -p 4 'it'\\''s: a b'\n\
                memspy: warning: 'memspy doctor -p PID' says why\n  memspy lines 'a b'    # it's all\n";
    assert_eq!(
        commands(text),
        [
            "memspy tensors -p 4",
            "memspy referrers -p 4 'it'\\''s: a b'",
            "memspy doctor -p PID",
            "memspy lines 'a b'"
        ]
    );
    assert_eq!(words("memspy r 'it'\\''s: a' $'b\\x0a'"), ["memspy", "r", "it's: a", "b\n"]);
    assert_eq!(all_are_understood(text), 4);
    for cut in ["    memspy referrers -p 4 'it", "see 'memspy lines"] {
        assert!(std::panic::catch_unwind(|| all_are_understood(cut)).is_err(), "{cut}");
    }
}
