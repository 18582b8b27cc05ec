//! Host memory available to a process.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::target::{Process, ProcessError, proc_files};

const CGROUPS: &str = "/sys/fs/cgroup";
/// Version 1 writes "no limit" as the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 60;

/// What limits a process's host memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The machine's `MemAvailable`.
    Machine,
    /// A control group: a container, a service, a batch job.
    Group(PathBuf),
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::Machine => f.write_str("MemAvailable of the machine"),
            MemoryLimit::Group(path) => write!(f, "the limit of control group {}", path.display()),
        }
    }
}

/// Bytes of host memory available to a process, by the narrowest limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct HostMemory {
    pub available: u64,
    pub limit: MemoryLimit,
}

impl HostMemory {
    /// Fails if /proc/meminfo is unreadable.
    pub fn read(process: &Process) -> Result<HostMemory, ProcessError> {
        let pid = process.pid();
        let action = "find the host memory available to";
        let other = |why: String| ProcessError::Other { action, pid, why };
        let machine = proc_files::of_kernel("meminfo").map_err(|e| other(e.to_string()))?;
        let available = kilobytes(&machine, "MemAvailable:")
            .ok_or_else(|| other("/proc/meminfo has no MemAvailable".to_owned()))?;
        let groups = proc_files::fields(pid, "cgroup").unwrap_or_default();
        let least = rooms(Path::new(CGROUPS), &groups)
            .into_iter()
            .map(|(available, group)| HostMemory { available, limit: MemoryLimit::Group(group) })
            .min_by_key(|memory| memory.available);
        let machine = HostMemory { available, limit: MemoryLimit::Machine };
        Ok(least.filter(|least| least.available < machine.available).unwrap_or(machine))
    }
}

impl Process {
    /// Host memory, resident and swapped out.
    pub fn host_bytes(&self) -> Option<u64> {
        let status = proc_files::read(self.pid(), "status", proc_files::MAX_FIELDS).ok()?;
        let status = String::from_utf8_lossy(&status.bytes);
        let swapped = kilobytes(&status, "VmSwap:").unwrap_or(0);
        Some(kilobytes(&status, "VmRSS:")? + swapped)
    }
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes left by each limited group in /proc/PID/cgroup.
fn rooms(root: &Path, groups: &str) -> Vec<(u64, PathBuf)> {
    let mut rooms = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let files = if controllers.is_empty() {
            CgroupFiles { limit: "memory.max", used: "memory.current", inactive: "inactive_file" }
        } else if controllers.split(',').any(|c| c == "memory") {
            CgroupFiles {
                limit: "memory.limit_in_bytes",
                used: "memory.usage_in_bytes",
                inactive: "total_inactive_file",
            }
        } else {
            continue;
        };
        let root = if controllers.is_empty() { root.to_owned() } else { root.join("memory") };
        // A container may hide its own path; visible groups still count.
        let own = root.join(path.trim_start_matches('/'));
        let seen = own.ancestors().take_while(|group| group.starts_with(&root));
        rooms.extend(seen.filter_map(|group| Some((files.room(group)?, group.to_owned()))));
    }
    rooms
}

struct CgroupFiles {
    limit: &'static str,
    used: &'static str,
    inactive: &'static str,
}

impl CgroupFiles {
    /// `None`: no limit.
    fn room(&self, group: &Path) -> Option<u64> {
        let number = |name: &str| -> Option<u64> {
            fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
        };
        let limit = number(self.limit).filter(|limit| *limit < NO_LIMIT)?;
        let used = number(self.used)?;
        // Unused file pages count as used, but are released first.
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let inactive = stat.lines().find_map(|line| {
            let (name, value) = line.split_once(' ')?;
            (name == self.inactive).then(|| value.parse::<u64>().ok())?
        });
        Some(limit.saturating_sub(used.saturating_sub(inactive.unwrap_or(0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_available_to_this_process() {
        let own = Process::open(std::process::id()).unwrap();
        assert!(HostMemory::read(&own).unwrap().available > 1 << 20);
        let bytes = own.host_bytes().unwrap();
        assert!((1 << 20..1 << 36).contains(&bytes), "{bytes}");
    }

    #[test]
    fn each_limited_group_above_a_process_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 300\ninactive_file 400\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "5\n");
        let found = rooms(root.path(), "0::/a/b\n");
        assert_eq!(found, [(700, root.path().join("a"))]);
        assert_eq!(rooms(root.path(), "0::/elsewhere\n"), []);
        assert_eq!(rooms(root.path(), "nonsense\n3:cpu:/a\n"), []);

        write("memory/c/memory.limit_in_bytes", "500\n");
        write("memory/c/memory.usage_in_bytes", "900\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/memory.usage_in_bytes", "9\n");
        let found = rooms(root.path(), "7:cpu,memory:/c\n");
        assert_eq!(found, [(0, root.path().join("memory/c"))]);
    }
}
