//! Gives up rights that a command does not need.
//!
//! This limits mistakes, not intruders: root without capabilities still owns root's files.

use rustix::thread::{CapabilitySet, CapabilitySets};

use super::args::{Command, ModeArg, RecordArgs};

/// For the user's files.
const FILES: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::FOWNER);
/// For a job: its memory, its mapped files, other users' jobs; and to yield to it.
const JOB: CapabilitySet = FILES
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SYS_NICE);
/// For probes, and samples of a job's threads.
const KEEPER: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_RESOURCE);
/// To place probes and read their events.
const PROBES: CapabilitySet = JOB.union(KEEPER).union(CapabilitySet::IPC_LOCK);

fn live(probes: bool) -> CapabilitySet {
    if probes { PROBES } else { JOB }
}

/// Threads started later inherit this.
pub(super) fn give_up(command: &Command) {
    if let Some(kept) = kept_by(command) {
        keep(kept);
    }
}

fn kept_by(command: &Command) -> Option<CapabilitySet> {
    Some(match command {
        Command::Flame(_)
        | Command::Lines(_)
        | Command::Export(_)
        | Command::Report(_)
        | Command::Diff(_)
        | Command::Iterations(_)
        | Command::OomReport(_)
        | Command::Join(_)
        | Command::WhatIf(_)
        | Command::Man(_)
        | Command::Completions(_) => FILES,
        Command::Dump(args) if args.pid.is_none() => FILES,
        Command::Dump(_)
        | Command::Tensors(_)
        | Command::Why(_)
        | Command::Graph(_)
        | Command::History(_)
        | Command::Exporter(_) => JOB,
        Command::Top(args) => live(args.exact),
        // They record exactly where the kernel allows that.
        Command::Doctor(_) | Command::Summary(_) | Command::Growth(_) => PROBES,
        // Later: a program it starts gets all of memspy's rights.
        Command::Record(_) | Command::DryRun(_) => return None,
        // Each call gives up its own rights.
        Command::Mcp(_) => return None,
        // The driver's libraries may start programs that load modules or create devices.
        Command::Devices(_) | Command::Pause(_) | Command::Resume(_) => return None,
    })
}

/// The same for `record`, once its program is started.
pub(super) fn give_up_for(args: &RecordArgs, mode: ModeArg) {
    let signals =
        if !args.program.is_empty() { CapabilitySet::KILL } else { CapabilitySet::empty() };
    let probes = matches!(mode, ModeArg::Auto | ModeArg::Exact);
    keep(live(probes).union(signals));
}

/// For a recording without probes.
pub(super) fn give_up_probes() {
    keep(JOB.union(CapabilitySet::KILL));
}

pub(super) fn give_up_for_keeper() {
    keep(KEEPER);
}

fn keep(kept: CapabilitySet) {
    // If rights cannot be given up, they stay.
    let Ok(own) = rustix::thread::capabilities(None) else { return };
    // Before Linux 5.9 only CAP_SYS_ADMIN opens mapped files.
    let kept = match own.permitted.contains(CapabilitySet::CHECKPOINT_RESTORE) {
        true => kept,
        false => kept.union(CapabilitySet::SYS_ADMIN),
    };
    let _ = rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: own.effective & kept,
            permitted: own.permitted & kept,
            inheritable: own.inheritable & kept,
        },
    );
    let _ = rustix::thread::set_no_new_privs(true);
}

#[cfg(test)]
mod tests {
    use super::super::args::CliArgs;
    use super::*;

    /// They run for days, and never need probes.
    #[test]
    fn top_and_exporter_drop_probe_rights_by_default() {
        let kept = |words: &[&str]| {
            let args = CliArgs::from_words([&["memspy"], words].concat()).unwrap();
            kept_by(&args.command).unwrap()
        };
        let probes = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
        assert!(!kept(&["top", "-p", "1"]).intersects(probes));
        assert!(!kept(&["exporter", "-p", "1"]).intersects(probes));
        assert!(kept(&["top", "-p", "1", "--exact"]).contains(probes));
    }
}
