//! What the kernel allows with a target.

use std::fs;

use super::proc_files;
use super::process::{Process, ProcessError};

/// From linux/capability.h.
const CAP_SYS_PTRACE: u8 = 19;
const CAP_SYS_ADMIN: u8 = 21;
const CAP_PERFMON: u8 = 38;
const CAP_BPF: u8 = 39;

/// Decides whether a target's memory may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessFacts {
    /// Yama's `ptrace_scope`: 0 same user, 1 descendants, 2 administrators, 3 nobody; `None`: no
    /// Yama.
    pub ptrace_scope: Option<u8>,
    /// memspy's effective user id.
    pub user: u32,
    /// The target's user id; `None` if unreadable.
    pub target_user: Option<u32>,
    /// memspy has CAP_SYS_PTRACE.
    pub sys_ptrace: bool,
    /// memspy has CAP_SYS_ADMIN.
    pub sys_admin: bool,
    /// memspy has CAP_PERFMON.
    pub perfmon: bool,
    /// memspy has CAP_BPF.
    pub bpf: bool,
    /// memspy seems to run in a container.
    pub in_container: bool,
    /// The target has another pid namespace.
    pub target_in_container: bool,
}

impl AccessFacts {
    /// Collects the facts.
    pub fn to(process: &Process) -> AccessFacts {
        let capabilities = effective_capabilities().unwrap_or(0);
        let has = |bit: u8| capabilities >> bit & 1 == 1;
        AccessFacts {
            ptrace_scope: proc_files::of_kernel("sys/kernel/yama/ptrace_scope")
                .ok()
                .and_then(|text| text.trim().parse().ok()),
            user: rustix::process::geteuid().as_raw(),
            target_user: process.owner().ok(),
            sys_ptrace: has(CAP_SYS_PTRACE),
            sys_admin: has(CAP_SYS_ADMIN),
            perfmon: has(CAP_PERFMON),
            bpf: has(CAP_BPF),
            in_container: in_container(),
            target_in_container: process.pids().len() > 1,
        }
    }
}

/// Whether `process` has memspy's user and all its capabilities.
pub fn has_no_more_rights(process: &Process) -> bool {
    let statuses =
        Process::open(std::process::id()).and_then(|own| Ok((own.status()?, process.status()?)));
    let Ok((own, job)) = statuses else { return false };
    let namespace = proc_files::link("self", "ns/user").ok();
    let same_namespace =
        namespace.is_some() && namespace == proc_files::link(process.pid(), "ns/user").ok();
    let users = [job.ruid, job.euid, job.suid, job.fuid];
    same_namespace && users.iter().all(|user| *user == own.euid) && own.capprm & !job.capprm == 0
}

pub(super) fn effective_capabilities() -> Result<u64, ProcessError> {
    let pid = std::process::id();
    let error = |why: String| ProcessError::Other { action: "read the capabilities of", pid, why };
    let status = proc_files::fields("self", "status").map_err(|e| error(e.to_string()))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .ok_or_else(|| error("no CapEff line".to_owned()))
}

/// Signals ignored since memspy's start, from bit 0 (signal 1); 0 if unknown.
pub fn ignored_signals() -> u64 {
    let status = proc_files::fields("self", "status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// The host's name, if the kernel gives it.
pub fn host_name() -> Option<String> {
    let name = proc_files::of_kernel("sys/kernel/hostname").ok()?.trim().to_owned();
    Some(name).filter(|name| !name.is_empty())
}

pub(super) fn in_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"].iter().any(|p| fs::exists(p).unwrap_or(false))
        || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        || proc_files::fields("self", "status").is_ok_and(|s| {
            s.lines().any(|l| l.starts_with("NSpid:") && l.split_whitespace().count() > 2)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_with_fewer_rights_is_recognised() {
        assert!(rustix::process::geteuid().is_root(), "this test has to run as root");
        assert!(has_no_more_rights(&Process::open(std::process::id()).unwrap()));
        for less in [&["--reuid=65534"][..], &["--bounding-set", "-chown"]] {
            let mut command = std::process::Command::new("setpriv");
            command.args(less).arg("cat").stdin(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            let comm = format!("/proc/{}/comm", child.id());
            while std::fs::read(&comm).unwrap() != b"cat\n" {
                std::thread::yield_now();
            }
            assert!(!has_no_more_rights(&Process::open(child.id()).unwrap()), "{less:?}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn the_facts_about_itself_are_known() {
        let access = AccessFacts::to(&Process::open(std::process::id()).unwrap());
        assert_eq!(access.target_user, Some(access.user));
        assert!(!access.target_in_container);
    }
}
