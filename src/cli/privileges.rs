//! Rights that a command does not need: given up before it begins.
//!
//! This bounds what a mistake can do, not what an intruder could: root without capabilities still owns root's files.

use rustix::thread::{CapabilitySet, CapabilitySets};

use super::args::{Command, ModeArg, RecordArgs};

/// To read and write the files that the user names.
const FILES: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::FOWNER);
/// To look into a job: its memory, the files mapped in it, others as its own user; and to give way to it.
const JOB: CapabilitySet = FILES
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SYS_NICE);
/// To ask the kernel for probes and for samples of a job's threads.
const KEEPER: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_RESOURCE);
/// To place probes in the kernel, and read what they tell.
const PROBES: CapabilitySet = JOB.union(KEEPER).union(CapabilitySet::IPC_LOCK);

/// What is needed to read a job, with probes or without.
fn live(probes: bool) -> CapabilitySet {
    if probes { PROBES } else { JOB }
}

/// Gives up what `command` does not need. Threads that are started later have no more.
pub(super) fn give_up(command: &Command) {
    if let Some(kept) = kept_by(command) {
        keep(kept);
    }
}

/// What `command` needs; `None` where it is not given up now.
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
        | Command::Man(_)
        | Command::Completions(_) => FILES,
        // A core file is a file.
        Command::Dump(args) if args.pid.is_none() => FILES,
        Command::Dump(_)
        | Command::Tensors(_)
        | Command::Referrers(_)
        | Command::Graph(_)
        | Command::History(_)
        | Command::Exporter(_) => JOB,
        Command::Top(args) => live(args.exact),
        // Lines are recorded exactly where that is allowed.
        Command::Doctor(_) | Command::Summary(_) | Command::Growth(_) => PROBES,
        // Later: the program that it may start is to have all that memspy was given.
        Command::Record(_) => return None,
        // Each call gives up by itself what it does not need.
        Command::Mcp(_) => return None,
        // The driver's libraries may start programs of their own, to load its modules or to make its devices.
        Command::Devices(_) | Command::Pause(_) | Command::Resume(_) => return None,
    })
}

/// The same for `record`, when the program is started, if there is one.
pub(super) fn give_up_for(args: &RecordArgs, mode: ModeArg) {
    let signals =
        if !args.program.is_empty() { CapabilitySet::KILL } else { CapabilitySet::empty() };
    let probes = matches!(mode, ModeArg::Auto | ModeArg::Exact);
    keep(live(probes).union(signals));
}

/// Those of probes, for a recording that does without them after all.
pub(super) fn give_up_probes() {
    keep(JOB.union(CapabilitySet::KILL));
}

/// The same for the process that keeps the probes of another memspy.
pub(super) fn give_up_for_keeper() {
    keep(KEEPER);
}

fn keep(kept: CapabilitySet) {
    // What cannot be given up does no harm that was not there before.
    let Ok(own) = rustix::thread::capabilities(None) else { return };
    // Kernels before 5.9 let only CAP_SYS_ADMIN open mapped files.
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

    /// They run for days: without the rights for probes, they can place none.
    #[test]
    fn top_and_exporter_keep_no_rights_for_probes_unless_told_to() {
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
