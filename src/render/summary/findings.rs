//! Findings as sentences with a command.

use std::io::Write;

use super::text::MIN_SNAPSHOTS;
pub(super) use crate::analysis::growth_rate as rate;
use crate::analysis::{Finding, FindingCommand, GrowthWatch};
use crate::model::OwnershipSnapshot;
use crate::render::shared::{
    EscapeGuard, OutputError, bytes, cut, number, one_line, suggestion, suggestion_on, wrapped,
};

/// Of `memspy why`.
const LARGEST: usize = 5;
/// Of a problem that is cut.
const MIN_PROBLEM: usize = 40;

/// A finding as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingText {
    /// `grows`, `graphs kept`, `garbage`, …
    pub kind: &'static str,
    /// Bytes concerned; for growth, bytes a minute.
    pub bytes: u64,
    /// What the change gives back, if known.
    pub frees: Option<u64>,
    /// The sentence.
    pub text: String,
    /// Its end: what to change; may be empty.
    pub change: String,
    /// The command that shows more.
    pub command: String,
}

/// A finding about process `pid`.
pub fn finding_text(finding: &Finding, pid: u32) -> FindingText {
    let command = match &finding.command {
        FindingCommand::OfMachine(command) => suggestion([command]),
        FindingCommand::OfJob(command, options) => {
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            suggestion_on(pid, command, &options)
        }
    };
    FindingText {
        kind: finding.kind,
        bytes: finding.bytes,
        frees: finding.frees,
        text: one_line(&finding.text()),
        change: one_line(&finding.change),
        command,
    }
}

impl FindingText {
    /// The sentence, in at most `room` characters, and the command.
    fn lines(&self, room: Option<usize>) -> [String; 2] {
        let back = self.frees.map_or_else(String::new, |frees| format!("{} back: ", bytes(frees)));
        let whole = format!("* {back}{}", self.text);
        let sentence = match room.filter(|room| width(&whole) > *room && !self.change.is_empty()) {
            Some(room) => self.shortened(&without_measures(&whole), room),
            None => whole,
        };
        [sentence, format!("    {}", self.command)]
    }

    /// The change is what helps: the problem is cut.
    fn shortened(&self, whole: &str, room: usize) -> String {
        match whole.strip_suffix(&self.change).and_then(|rest| rest.strip_suffix(": ")) {
            Some(problem) if width(whole) > room => {
                let change = format!(": {}", self.change);
                let left = room.saturating_sub(width(&change)).max(MIN_PROBLEM);
                format!("{}{change}", cut(problem, left))
            }
            _ => whole.to_owned(),
        }
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// Without `(+4.00 MiB in 2.0 s; +4 storages)`.
fn without_measures(text: &str) -> String {
    let parts = text.split_once(" (+").and_then(|(before, rest)| {
        let (_, after) = rest.split_once(')')?;
        Some(format!("{before}{after}"))
    });
    parts.unwrap_or_else(|| text.to_owned())
}

/// What findings could not be looked for: in what was not read, and by growth.
pub fn unchecked(snapshot: Option<&OwnershipSnapshot>, watch: &GrowthWatch) -> Vec<String> {
    let mut parts: Vec<String> = match snapshot {
        None => vec!["owners, and what they keep".to_owned()],
        Some(snapshot) => {
            let missing = snapshot.incomplete.iter().flat_map(|incomplete| &incomplete.missing);
            missing.map(|part| (*part).to_owned()).collect()
        }
    };
    if watch.snapshots() < MIN_SNAPSHOTS {
        parts.push("what grows (too few snapshots)".to_owned());
    }
    parts
}

/// `no findings`, and where none could be found.
pub(super) fn no_findings(unchecked: &[String]) -> String {
    match unchecked {
        [] => "no findings".to_owned(),
        parts => format!("no findings; not checked: {}", parts.join(", ")),
    }
}

/// Findings as lines: the first `most` of them, each in `room` characters, and how many more there
/// are, with what shows them.
pub(super) fn finding_lines(
    findings: &[FindingText],
    (most, room): (usize, Option<usize>),
    for_more: String,
) -> Vec<String> {
    let shown = findings.iter().take(most);
    let mut lines: Vec<String> = shown.flat_map(|finding| finding.lines(room)).collect();
    let left = findings.len().saturating_sub(most) as u64;
    if left > 0 {
        lines.push(format!("* {}", number(left, "more finding")));
        lines.push(format!("    {for_more}"));
    }
    lines
}

/// Writes the largest findings about process `pid`, each with its command.
pub fn findings_text(
    out: &mut dyn Write,
    pid: u32,
    findings: &[FindingText],
    unchecked: &[String],
    width: Option<usize>,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    if findings.is_empty() {
        for line in wrapped(&no_findings(unchecked), width) {
            writeln!(out, "{line}")?;
        }
    }
    let all = suggestion_on(pid, "why", &["--json"]);
    for line in
        finding_lines(findings, (LARGEST, None), all).iter().flat_map(|line| wrapped(line, width))
    {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
