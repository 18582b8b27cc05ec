//! Memory by module, as text.

use std::io::Write;

use crate::analysis::modules::{ModuleBytes, ModuleEvidence, groups};
use crate::analysis::{Moment, Profile};
use crate::model::CudaIndex;
use crate::render::shared::{
    EscapeGuard, OutputError, bytes, count, one_line, percent, short_bytes, warnings, wrapped,
};

/// How modules are listed.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModulesOptions {
    /// Steps of a path; `None`: all, with `[*]` for the members of a container.
    pub depth: Option<usize>,
    /// At most this many rows.
    pub limit: Option<usize>,
    /// Of the terminal.
    pub width: Option<usize>,
}

/// Writes a table of modules: bytes at a moment, and all that was allocated, if known.
pub fn modules_text(
    out: &mut dyn Write,
    profile: &Profile,
    (device, moment): (CudaIndex, Moment),
    live: &ModuleBytes,
    allocated: Option<&ModuleBytes>,
    options: ModulesOptions,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    for line in wrapped(&headline(device, moment, live), options.width) {
        writeln!(out, "{line}")?;
    }
    for warning in warnings(profile) {
        writeln!(out, "warning: {}", one_line(&warning))?;
    }
    let lists = [Some(live), allocated].into_iter().flatten();
    let lists: Vec<&[_]> = lists.map(|list| &list.rows[..]).collect();
    let groups = groups(&lists, options.depth);
    let shown = options.limit.unwrap_or(groups.len()).min(groups.len());
    let head = if allocated.is_some() { "   allocated" } else { "" };
    writeln!(out, "   live at     share{head}")?;
    writeln!(
        out,
        "  the peak          {}  module",
        if allocated.is_some() { "      in all" } else { "" }
    )?;
    for group in &groups[..shown] {
        let live_bytes = group.bytes.first().copied().unwrap_or_default();
        let share = format!("{:.1} %", percent(live_bytes, live.total));
        let all = group.bytes.get(1).map(|bytes| format!("{:>12}", short_bytes(*bytes)));
        let alike = match group.modules {
            0 | 1 => String::new(),
            modules => format!("  ({} modules)", count(modules)),
        };
        let name = one_line(&group.name);
        let size = short_bytes(live_bytes);
        writeln!(out, "{size:>10}  {share:>8}{}  {name}{alike}", all.unwrap_or_default())?;
    }
    for note in notes(&groups[..shown], groups.len(), live, options) {
        for line in wrapped(&note, options.width) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

fn headline(device: CudaIndex, moment: Moment, live: &ModuleBytes) -> String {
    let when = match (moment, live.evidence) {
        (_, ModuleEvidence::Owners(time)) => {
            format!("at the owner snapshot of {:.3} s", time.seconds())
        }
        (Moment::Peak, ModuleEvidence::Calls) => "at the peak".to_owned(),
        (Moment::End, ModuleEvidence::Calls) => "at the end".to_owned(),
    };
    format!("GPU {}, {when}: {} by module", device.0, bytes(live.total))
}

/// What says which module it is.
pub(super) fn evidence_note(evidence: ModuleEvidence) -> &'static str {
    match evidence {
        ModuleEvidence::Calls => {
            "A module is the innermost one whose call allocated (self of its frame). Parameters from before the \
             recording: by their owners."
        }
        ModuleEvidence::Owners(_) => {
            "Modules by the owners of parameters, buffers, gradients and optimizer state; other memory has none \
             (record with --exact for the modules that allocate)."
        }
    }
}

fn notes(
    shown: &[crate::analysis::modules::ModuleGroup],
    all: usize,
    live: &ModuleBytes,
    options: ModulesOptions,
) -> Vec<String> {
    let mut notes = vec![evidence_note(live.evidence).to_owned()];
    if shown.len() < all {
        notes.push(format!("{} more: --limit 0 lists all.", count((all - shown.len()) as u64)));
    }
    if options.depth.is_none() && shown.iter().any(|group| group.name.contains("[*]")) {
        notes.push("--depth N opens [*] down to N steps of the path.".to_owned());
    }
    notes
}
