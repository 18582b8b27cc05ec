//! Advice for known errors.

use std::path::Path;
use std::time::Duration;

use anyhow::{Error, anyhow};

use crate::model::ReachedLimit;
use crate::render::{in_sentence, suggestion};
use crate::sampler::{AttachError, PlacementError, TargetIdentity};
use crate::target::{AccessFacts, ProcessError, StopError};

use super::mode;

pub(super) fn attach(error: AttachError, pid: u32) -> Error {
    if error.is_denied() {
        return anyhow!("{error}; {}", denied(pid));
    }
    if error.is_not_python() {
        return anyhow!("{error}; {}", python_nearby(pid));
    }
    if error.is_starting() {
        return match ends_after(pid) {
            Some(age) => anyhow!(
                "{error}; it has run for {} s, so its Python is ending: nothing can be read of it any more",
                age.as_secs()
            ),
            None => anyhow!("{error}; try again in a moment"),
        };
    }
    match error {
        AttachError::Process(ProcessError::NotFound { .. }) => {
            anyhow!("{error}; 'pgrep -af python' lists the Python processes")
        }
        other => Error::new(other).context(format!("cannot attach to process {pid}")),
    }
}

/// Age of a process; `None` if it has just started.
fn ends_after(pid: u32) -> Option<Duration> {
    const MAX_START: Duration = Duration::from_secs(60);
    TargetIdentity::open(pid).ok()?.age().filter(|age| *age > MAX_START)
}

pub(super) fn core(error: AttachError, path: &Path) -> Error {
    if error.is_not_python() {
        return anyhow!("{error}; 'gdb PROGRAM {}' shows what it was", path.display());
    }
    // The user gave a file name instead of a number.
    let name = path.to_string_lossy();
    match error {
        AttachError::Core(_) if !path.exists() && name.parse::<u32>().is_ok() => {
            let command = in_sentence(&suggestion(["dump", "-p", &name]));
            anyhow!("{error}; a process is given by its number with -p: {command}")
        }
        other => Error::new(other),
    }
}

pub(super) fn probe(error: PlacementError, pid: u32) -> Error {
    let advice = probe_advice(&error).replace("-p PID", &format!("-p {pid}"));
    anyhow!("cannot record process {pid} exactly: {error}; {advice}")
}

pub(super) fn no_exact(error: &PlacementError) -> String {
    match error.is_denied() {
        true => "no exact stacks, which take root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE"
            .to_owned(),
        false => mode::no_exact(&error.to_string()),
    }
}

pub(super) fn probe_advice(error: &PlacementError) -> &'static str {
    match error {
        PlacementError::Refused { .. } if error.is_denied() => {
            "exact mode needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE (in a container: --cap-add; --probes perf-bpf and perf-only: CAP_SYS_ADMIN); or record without --exact"
        }
        PlacementError::Refused { .. }
        | PlacementError::Rejected { .. }
        | PlacementError::Unprepared { .. } => {
            "it needs Linux 6.6 or newer with BTF (/sys/kernel/btf/vmlinux), 'memspy doctor -p PID' says more; or record without --exact"
        }
        _ => "record without --exact",
    }
}

pub(super) fn pause(error: &StopError, pid: u32) -> String {
    match error {
        StopError::Denied { .. } => denied(pid),
        StopError::Traced { .. } => "end that, or add --no-stop".to_owned(),
        _ => "try again, or add --no-stop".to_owned(),
    }
}

pub(super) fn limit(limit: ReachedLimit) -> String {
    match limit {
        ReachedLimit::Pause(most) => format!(
            "allow a longer stop (--max-stop {}ms), or add --no-stop",
            (5 * most).as_millis().max(100)
        ),
        ReachedLimit::Time(most)
        | ReachedLimit::Repeating(most)
        | ReachedLimit::Finding { of: most, .. } => {
            format!("allow the snapshot more time (--max-time {}s)", (4 * most).as_secs().max(1))
        }
        ReachedLimit::Copies(_) | ReachedLimit::Counts => "try again, or add --no-stop".to_owned(),
        ReachedLimit::Memory(_) => {
            "its heap is damaged, or unlike any that memspy knows: a recording does not read it"
                .to_owned()
        }
    }
}

/// Launchers (shells, torchrun, version managers) have the intended Python as a child.
fn python_nearby(pid: u32) -> String {
    let children = TargetIdentity::open(pid).map(|p| p.children()).unwrap_or_default();
    let python = children.iter().find(|(_, command)| {
        let program = command.first().and_then(|c| c.rsplit('/').next());
        program.is_some_and(|name| name.starts_with("python"))
    });
    match python {
        Some((child, command)) => format!("its child {child} may be meant: {}", command.join(" ")),
        None => {
            "give the pid of the Python process itself ('pgrep -af python' lists them)".to_owned()
        }
    }
}

pub(super) fn denied(pid: u32) -> String {
    match TargetIdentity::open(pid) {
        Ok(process) => advice(&process.access()),
        Err(error) if error.is_denied() => {
            "run memspy as the user that owns the process, or as root".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

pub(super) fn advice(access: &AccessFacts) -> String {
    if access.user == 0 && !access.sys_ptrace {
        return if access.in_container {
            "memspy runs in a container without the right to trace: start it with --cap-add SYS_PTRACE \
             (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]), or run memspy on the host"
                .to_owned()
        } else {
            "memspy runs as root without CAP_SYS_PTRACE: give it that capability (systemd: CapabilityBoundingSet)"
                .to_owned()
        };
    }
    if access.sys_ptrace {
        return if access.in_container {
            "memspy has CAP_SYS_PTRACE but is refused, by the container's seccomp profile or because the process is outside \
             this container: run memspy on the host"
                .to_owned()
        } else {
            "a security module (SELinux, AppArmor, lockdown) refuses it: see the kernel's log"
                .to_owned()
        };
    }
    if let Some(target) = access.target_user
        && target != access.user
    {
        return format!(
            "the process belongs to user {target} and memspy runs as user {}: run it as that user or with sudo",
            access.user
        );
    }
    match access.ptrace_scope {
        Some(1) => "kernel.yama.ptrace_scope is 1, which allows reading only one's own children: run \
                    memspy with sudo, start the job with 'memspy record -- PROGRAM', or as root \
                    'sysctl kernel.yama.ptrace_scope=0'"
            .to_owned(),
        Some(2) => "kernel.yama.ptrace_scope is 2, which allows only administrators: run memspy with sudo, or give \
                    it the capability 'setcap cap_sys_ptrace+ep memspy'"
            .to_owned(),
        Some(3) => "kernel.yama.ptrace_scope is 3, which forbids it to everybody until the next boot"
            .to_owned(),
        _ if access.target_in_container => {
            "the process lives in a container (a user namespace of its own): run memspy with sudo on the host"
                .to_owned()
        }
        _ => "the process has changed its rights (set-user-id, prctl PR_SET_DUMPABLE): run memspy with sudo"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> AccessFacts {
        AccessFacts {
            ptrace_scope: Some(0),
            user: 1000,
            target_user: Some(1000),
            sys_ptrace: false,
            sys_admin: false,
            perfmon: false,
            bpf: false,
            in_container: false,
            target_in_container: false,
        }
    }

    #[test]
    fn each_obstacle_has_its_own_remedy() {
        let cases = [
            (AccessFacts { ptrace_scope: Some(1), ..access() }, "ptrace_scope=0"),
            (AccessFacts { ptrace_scope: Some(2), ..access() }, "setcap"),
            (AccessFacts { ptrace_scope: Some(3), ..access() }, "boot"),
            (AccessFacts { target_user: Some(7), ..access() }, "user 7"),
            (AccessFacts { user: 0, in_container: true, ..access() }, "--cap-add SYS_PTRACE"),
            (AccessFacts { user: 0, ..access() }, "without CAP_SYS_PTRACE"),
            (AccessFacts { user: 0, sys_ptrace: true, ..access() }, "security module"),
            (AccessFacts { sys_ptrace: true, in_container: true, ..access() }, "on the host"),
            (AccessFacts { target_in_container: true, ..access() }, "host"),
        ];
        for (facts, remedy) in cases {
            assert!(advice(&facts).contains(remedy), "{facts:?}: {}", advice(&facts));
        }
    }
}
