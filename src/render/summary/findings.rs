//! Findings as sentences with a command.

use std::io::Write;

pub(super) use crate::analysis::growth_rate as rate;
use crate::analysis::{Finding, FindingCommand};
use crate::render::shared::{
    EscapeGuard, OutputError, bytes, one_line, suggestion, suggestion_on, wrapped,
};

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
    pub(super) fn lines(&self) -> [String; 2] {
        let back = self.frees.map_or_else(String::new, |frees| format!("{} back: ", bytes(frees)));
        [format!("* {back}{}", self.text), format!("    {}", self.command)]
    }
}

/// Writes findings, each with its command.
pub fn findings_text(
    out: &mut dyn Write,
    findings: &[FindingText],
    width: Option<usize>,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    if findings.is_empty() {
        writeln!(out, "no findings")?;
    }
    for FindingText { text, command, .. } in findings {
        for line in wrapped(&format!("* {text}"), width) {
            writeln!(out, "{line}")?;
        }
        writeln!(out, "    {command}")?;
    }
    Ok(())
}
