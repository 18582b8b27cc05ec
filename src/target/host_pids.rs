//! Finds processes by the driver's pids.

use procfs::process::Process;

use super::proc_files::{self, MAX_MAPPINGS};

/// `PROC_PID_INIT_INO` of include/linux/proc_ns.h.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// A process found by the driver's pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundProcess {
    /// In memspy's pid namespace.
    pub pid: u32,
    /// In its innermost namespace, if different.
    pub pid_inside: Option<u32>,
    /// Command line, else name in brackets.
    pub command: Option<String>,
}

/// Translates the driver's pids.
///
/// Older drivers give the host's pids, newer ones those of the asking process's namespace. In a
/// container a host's pid may be another process's by chance.
#[derive(Debug, Clone, Copy)]
pub struct HostPids {
    initial: bool,
    /// Levels from memspy's namespace to that of /proc.
    depth: usize,
}

impl HostPids {
    /// Examines memspy's namespace.
    pub fn read() -> HostPids {
        let namespace = proc_files::link("self", "ns/pid");
        let own = Process::myself().and_then(|own| own.status()).ok().and_then(|s| s.nspid);
        HostPids {
            initial: namespace.is_ok_and(|n| n.as_os_str() == INITIAL_PID_NAMESPACE),
            depth: own.map_or(0, |ids| ids.len().saturating_sub(1)),
        }
    }

    /// Whether they are those of memspy's namespace.
    pub fn is_on_host(self) -> bool {
        self.initial
    }

    /// Processes with these pids; `None`: ambiguous or hidden.
    pub fn find(self, listed: &[u32]) -> Vec<Option<FoundProcess>> {
        // In a container, trust the numbers only if all are processes here that can use a GPU, or
        // if /proc is the host's and gives both numbers.
        if self.initial || self.depth > 0 || listed.iter().all(|pid| may_use_gpu(*pid)) {
            listed.iter().map(|pid| self.found(*pid)).collect()
        } else {
            vec![None; listed.len()]
        }
    }

    fn found(self, listed: u32) -> Option<FoundProcess> {
        let process = Process::new(i32::try_from(listed).ok()?).ok()?;
        let ids = process.status().ok().and_then(|s| s.nspid).unwrap_or_default();
        let id = |at: usize| ids.get(at).map(|id| *id as u32);
        let pid = if self.depth == 0 { listed } else { id(self.depth)? };
        let pid_inside = ids.last().map(|id| *id as u32).filter(|inside| *inside != pid);
        let words = super::process::command_of(listed).unwrap_or_default();
        let name = || process.stat().ok().map(|stat| format!("[{}]", stat.comm));
        let command = if words.is_empty() { name() } else { Some(words.join(" ")) };
        Some(FoundProcess { pid, pid_inside, command })
    }
}

/// `true` if unreadable.
fn may_use_gpu(pid: u32) -> bool {
    let mut is_one = false;
    let mut check = |line: &[u8]| {
        let holds = |name: &[u8]| line.windows(name.len()).any(|window| window == name);
        is_one = holds(b"nvidia") || holds(b"libcuda");
        !is_one
    };
    match proc_files::each_line(pid, "maps", MAX_MAPPINGS, &mut check) {
        Ok(()) => is_one,
        // The driver may be mapped beyond the limit.
        Err(error) => matches!(
            error.kind(),
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::FileTooLarge
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memspy_finds_itself_with_its_command() {
        let own = std::process::id();
        let found = HostPids { initial: true, depth: 0 }.find(&[own, 0x3fff_fff0]);
        let process = found[0].as_ref().unwrap();
        assert_eq!(process.pid, own);
        assert!(process.command.as_ref().unwrap().contains("memspy"), "{process:?}");
        assert_eq!(found[1], None);
    }

    #[test]
    fn host_pid_of_a_process_without_the_driver_is_unknown() {
        let below = HostPids { initial: false, depth: 0 };
        assert_eq!(below.find(&[std::process::id()]), [None]);
        assert_eq!(below.find(&[0x3fff_fff0]), [None]);
    }

    #[test]
    fn pids_of_an_outer_proc_are_translated_if_shown() {
        // This /proc shows no deeper namespace.
        let own = Process::myself().unwrap().status().unwrap().nspid.unwrap();
        let below = HostPids { initial: false, depth: own.len() };
        assert_eq!(below.find(&[std::process::id()]), [None]);
    }
}
