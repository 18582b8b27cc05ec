//! Findings as sentences with a command.

use std::io::Write;

use super::text::MIN_SNAPSHOTS;
pub(super) use crate::analysis::growth_rate as rate;
use crate::analysis::{Finding, FindingCommand, GrowthWatch};
use crate::model::OwnershipSnapshot;
use crate::render::shared::{
    EscapeGuard, OutputError, bytes, number, one_line, suggestion, suggestion_on, wrapped,
};

/// Of `memspy why`.
const LARGEST: usize = 5;

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
        command,
    }
}

impl FindingText {
    /// Two lines of a screen.
    fn lines(&self) -> [String; 2] {
        let back = self.frees.map_or_else(String::new, |frees| format!("{} back: ", bytes(frees)));
        [format!("* {back}{}", self.text), format!("    {}", self.command)]
    }
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

/// Findings as lines: the first `most` of them, and how many more there are, with what shows them.
pub(super) fn finding_lines(
    findings: &[FindingText],
    most: usize,
    for_more: String,
) -> Vec<String> {
    let mut lines: Vec<String> = findings.iter().take(most).flat_map(FindingText::lines).collect();
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
    for line in finding_lines(findings, LARGEST, all).iter().flat_map(|line| wrapped(line, width)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
