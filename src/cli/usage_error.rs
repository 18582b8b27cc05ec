//! Turns invalid arguments into one line: what was tried, why it failed, what to do.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Command, Error};

/// `None`: clap shows the help.
pub(super) fn line(error: &Error, command: &Command, words: &[OsString]) -> Option<String> {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return None;
    }
    let tried = subcommand(command, words);
    let (mut message, mut hints) = (String::new(), Vec::new());
    for paragraph in error.render().to_string().split("\n\n") {
        let mut lines = paragraph.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default();
        if let Some(said) = first.strip_prefix("error: ") {
            message = with_details(said, lines);
        } else if let Some(usage) = first.strip_prefix("Usage: ") {
            if error.kind() == ErrorKind::MissingRequiredArgument {
                hints.push(format!("usage: {usage}"));
            }
        } else if !first.starts_with("For more information") {
            hints.extend(std::iter::once(first).chain(lines).filter_map(tip));
        }
    }
    if tried == Some("lines") && message.contains("'--at'") {
        hints = vec![
            "its table shows the peak: 'memspy flame TRACE --at MOMENT' shows another moment, and 'memspy diff TRACE --from \
             MOMENT --to MOMENT' what changed by line between two"
                .to_owned(),
        ];
    }
    // Another option may be missing as well.
    let misses_process =
        error.kind() == ErrorKind::MissingRequiredArgument && message.contains("--pid");
    if tried == Some("record") && misses_process {
        message = "no process and no program is given".to_owned();
        hints = vec![
            "'memspy record -p PID' records a running process, and 'memspy record -- PROGRAM' starts one".to_owned(),
        ];
    }
    let (tried, help) = match tried {
        Some(name) => (format!("{name}: "), format!("memspy {name} --help")),
        None => (String::new(), "memspy --help".to_owned()),
    };
    hints.push(format!("see '{help}'"));
    Some(format!("error: {tried}{message}; {}", hints.join("; ")))
}

fn with_details<'a>(message: &str, details: impl Iterator<Item = &'a str>) -> String {
    let (values, missing): (Vec<&str>, Vec<&str>) = details.partition(|line| line.starts_with('['));
    let mut text = message.to_owned();
    if !missing.is_empty() {
        text = format!("{} {}", text, missing.join(", "));
    }
    for values in values {
        text = format!("{text} {values}");
    }
    text
}

/// clap's suggestion, except two dashes before any word, which never help.
fn tip(line: &str) -> Option<String> {
    let tip = line.strip_prefix("tip: ").unwrap_or(line);
    (!tip.starts_with("to pass ")).then(|| tip.to_owned())
}

fn subcommand<'a>(command: &'a Command, words: &[OsString]) -> Option<&'a str> {
    words.iter().skip(1).filter_map(|word| word.to_str()).find_map(|word| {
        let is_begun = |sub: &&Command| !word.is_empty() && sub.get_name().starts_with(word);
        let named = command.find_subcommand(word);
        named.or_else(|| command.get_subcommands().find(is_begun)).map(Command::get_name)
    })
}
