//! What every finding has.

/// Something that costs memory, and the change that gives it back.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Its kind, one of [`KINDS`](super::KINDS).
    pub kind: &'static str,
    /// The bytes that it is about; of growth, those of a minute.
    pub bytes: u64,
    /// The bytes that the change gives back; `None`: not known.
    pub frees: Option<u64>,
    /// What is wrong, the beginning of a sentence.
    pub problem: String,
    /// What to change, its end; may be empty.
    pub change: String,
    /// What shows more.
    pub command: FindingCommand,
    /// The owner whose growth it explains; may be empty.
    pub(super) owner: String,
}

/// A command of memspy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindingCommand {
    /// About the whole machine.
    OfMachine(&'static str),
    /// About the job, with its options.
    OfJob(&'static str, Vec<String>),
}

impl FindingCommand {
    pub(super) fn of_job(command: &'static str, options: &[&str]) -> FindingCommand {
        FindingCommand::OfJob(command, options.iter().map(|&option| option.to_owned()).collect())
    }
}

impl Finding {
    /// A finding without yield.
    pub(super) fn new(kind: &'static str, bytes: u64, problem: String) -> Finding {
        let command = FindingCommand::of_job("tensors", &[]);
        let (change, owner) = (String::new(), String::new());
        Finding { kind, bytes, frees: None, problem, change, command, owner }
    }

    pub(super) fn change(self, change: impl Into<String>) -> Finding {
        Finding { change: change.into(), ..self }
    }

    pub(super) fn of(self, owner: &str) -> Finding {
        Finding { owner: owner.to_owned(), ..self }
    }

    pub(super) fn frees(self, bytes: u64) -> Finding {
        Finding { frees: Some(bytes), ..self }
    }

    pub(super) fn command(self, command: &'static str, options: &[&str]) -> Finding {
        Finding { command: FindingCommand::of_job(command, options), ..self }
    }

    pub(super) fn on_machine(self, command: &'static str) -> Finding {
        Finding { command: FindingCommand::OfMachine(command), ..self }
    }

    /// By this they are ranked.
    pub(super) fn weight(&self) -> u64 {
        self.frees.unwrap_or(self.bytes)
    }

    /// The sentence.
    pub fn text(&self) -> String {
        match self.change.is_empty() {
            true => self.problem.clone(),
            false => format!("{}: {}", self.problem, self.change),
        }
    }
}

const MAX_NAMES: usize = 3;

/// `a, b, c and 4 more`.
pub(super) fn listed(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    match names.len() > MAX_NAMES {
        true => format!("{} and {} more", shown.join(", "), names.len() - MAX_NAMES),
        false => shown.join(", "),
    }
}
