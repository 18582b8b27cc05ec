//! Findings as sentences with a command.

pub(super) use crate::analysis::growth_rate as rate;
use crate::analysis::{Finding, FindingCommand};
use crate::render::shared::{bytes, one_line, suggestion, suggestion_on};

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
