//! What of the machine decides whether memspy works on it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::access::{effective_capabilities, in_container};
use super::proc_files;

/// Capabilities that memspy asks for, by their bit in linux/capability.h.
const CAPABILITIES: [(u8, &str); 7] = [
    (14, "CAP_IPC_LOCK"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (24, "CAP_SYS_RESOURCE"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
    (40, "CAP_CHECKPOINT_RESTORE"),
];
/// Settings of the kernel that refuse memspy something.
const SETTINGS: [(&str, &str); 3] = [
    ("ptrace_scope", "sys/kernel/yama/ptrace_scope"),
    ("perf_event_paranoid", "sys/kernel/perf_event_paranoid"),
    ("unprivileged_bpf_disabled", "sys/kernel/unprivileged_bpf_disabled"),
];
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
const SYSTEM: &str = "/etc/os-release";
const MAX_BYTES: u64 = 64 << 10;

/// The kernel, the system and memspy's rights; nothing of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFacts {
    /// `6.8.0-45-generic`, if known.
    pub kernel: Option<String>,
    /// `Debian GNU/Linux 12 (bookworm)`, if known.
    pub system: Option<String>,
    /// Bytes of memory, if known.
    pub memory: Option<u64>,
    /// memspy seems to run in a container.
    pub in_container: bool,
    /// memspy runs as root.
    pub is_root: bool,
    /// memspy's capabilities that matter, by name; `None`: unknown.
    pub capabilities: Option<Vec<&'static str>>,
    /// Settings of the kernel; `None`: it has none of this name, or hides it.
    pub settings: Vec<(&'static str, Option<String>)>,
    /// The kernel describes its types (BTF).
    pub has_kernel_types: bool,
}

impl MachineFacts {
    /// Collects the facts.
    pub fn read() -> MachineFacts {
        let of_kernel = |name: &str| Some(proc_files::of_kernel(name).ok()?.trim().to_owned());
        let mut settings: Vec<_> =
            SETTINGS.iter().map(|(name, file)| (*name, of_kernel(file))).collect();
        settings.push(("lockdown", text(Path::new(LOCKDOWN))));
        let held = effective_capabilities().ok().map(|held| {
            let held = CAPABILITIES.iter().filter(|(bit, _)| held >> bit & 1 == 1);
            held.map(|(_, name)| *name).collect()
        });
        MachineFacts {
            kernel: of_kernel("sys/kernel/osrelease"),
            system: text(Path::new(SYSTEM)).as_deref().and_then(system_name),
            memory: of_kernel("meminfo").as_deref().and_then(memory),
            in_container: in_container(),
            is_root: rustix::process::geteuid().is_root(),
            capabilities: held,
            settings,
            has_kernel_types: Path::new(KERNEL_TYPES).exists(),
        }
    }
}

fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn system_name(release: &str) -> Option<String> {
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

fn memory(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_taken_from_the_kernels_own_texts() {
        assert_eq!(memory("MemFree: 7 kB\nMemTotal:       16 kB\n"), Some(16 << 10));
        assert_eq!(memory("nothing"), None);
        let release = "NAME=x\nPRETTY_NAME=\"Some Linux 7\"\n";
        assert_eq!(system_name(release).as_deref(), Some("Some Linux 7"));
        let facts = MachineFacts::read();
        assert!(facts.kernel.is_some() && facts.memory > Some(1 << 20), "{facts:?}");
        assert_eq!(facts.settings.len(), 4);
    }
}
