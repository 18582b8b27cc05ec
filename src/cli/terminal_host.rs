//! Messages of `memspy record`.

use std::path::Path;

use crate::analysis::OomBuilder;
use crate::flight::{HostEvent, RecordingHost};
use crate::model::{SinkError, SinkResult, TriggerFired};

use super::flight::{warn, write_oom_report};
use super::{eprint_line, set_line_prefix};

pub(super) struct TerminalHost {
    label: Option<String>,
    force: bool,
}

impl TerminalHost {
    pub(super) fn new(label: Option<String>, force: bool) -> TerminalHost {
        TerminalHost { label, force }
    }
}

impl RecordingHost for TerminalHost {
    fn tell(&mut self, event: HostEvent) {
        // The recording thread does not know the label yet.
        if let Some(label) = &self.label {
            set_line_prefix(label);
        }
        let was_met =
            |fired: &TriggerFired| format!("'{}' was met: {}", fired.condition, fired.seen);
        match event {
            HostEvent::Warning(warning) => warn(warning),
            HostEvent::Triggered(fired) => eprint_line(&was_met(&fired)),
            HostEvent::RecordingWritten { triggered, recording, report } => {
                eprint_line(&format!(
                    "{}; wrote {} and {}",
                    was_met(&triggered),
                    recording.display(),
                    report.display()
                ));
            }
            HostEvent::TriggersIgnored(count) => eprint_line(&format!(
                "conditions were met {count} more times within 2 s of a recording that was written"
            )),
        }
    }

    fn write_oom_report(&mut self, reports: &mut OomBuilder, path: &Path) -> SinkResult {
        let written = write_oom_report(reports, path, self.force);
        written.map_err(|error| SinkError::Failed(error.into()))
    }
}
