//! Processes that were left behind: whose starter is gone, or that hold a GPU's device file open.

use std::fs;
use std::path::Path;

use super::proc_files::{self, MAX_FIELDS, MAX_MAPPINGS};

/// What `/proc/PID/stat` says of where a process belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessRelations {
    state: char,
    parent: u32,
    group: u32,
}

fn relations(proc: &Path, pid: u32) -> Option<ProcessRelations> {
    let path = proc.join(pid.to_string()).join("stat");
    let stat = proc_files::first_bytes(&path, MAX_FIELDS).ok()?.bytes;
    // The name before it may hold anything, parentheses too.
    let stat = String::from_utf8_lossy(&stat);
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    Some(ProcessRelations {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
    })
}

/// Whether the process that started `pid` has ended and left it behind: it was taken over by another parent, and what leads
/// its process group is gone. Of a process that leads its own group (a service, a job of a shell) nothing can be told.
pub fn is_orphan(pid: u32) -> bool {
    is_orphan_in(&proc_files::root(), pid)
}

fn is_orphan_in(proc: &Path, pid: u32) -> bool {
    let Some(own) = relations(proc, pid) else { return false };
    // A leader that has ended and was not waited for is gone as well.
    let is_gone = |pid| relations(proc, pid).is_none_or(|found| matches!(found.state, 'Z' | 'X'));
    let is_adopted = own.parent <= 1
        || relations(proc, own.parent).is_none_or(|parent| parent.group != own.group);
    own.group != pid && own.group != 0 && is_gone(own.group) && is_adopted
}

/// A process that has device files of GPUs open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFileHolder {
    /// Its pid.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`).
    pub name: String,
    /// The files, such as `/dev/nvidia0`.
    pub files: Vec<String>,
}

/// What every process that uses CUDA has mapped. Those that only ask NVML for a GPU's figures (nvidia-smi, DCGM, a launcher that counts the
/// GPUs, memspy) have the same files open, this one too, but map none of it (driver 580).
const UNIFIED_MEMORY: &str = "/dev/nvidia-uvm";

/// The processes that use CUDA and have `/dev/nvidia0` or its like open, as far as memspy may see it.
pub fn device_file_holders() -> Vec<DeviceFileHolder> {
    device_file_holders_in(&proc_files::root())
}

fn device_file_holders_in(proc: &Path) -> Vec<DeviceFileHolder> {
    let mut holders = Vec::new();
    for pid in proc_files::pids_in(proc) {
        let process = proc.join(pid.to_string());
        let Ok(open) = fs::read_dir(process.join("fd")) else { continue };
        let mut files: Vec<String> = open
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok()?.into_os_string().into_string().ok())
            .filter(|file| {
                let number = file.strip_prefix("/dev/nvidia");
                number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
            })
            .collect();
        files.sort();
        files.dedup();
        if files.is_empty() || !uses_cuda(&process) {
            continue;
        }
        let name = proc_files::first_bytes(&process.join("comm"), MAX_FIELDS).unwrap_or_default();
        let name = String::from_utf8_lossy(&name.bytes);
        holders.push(DeviceFileHolder { pid, name: name.trim_end().to_owned(), files });
    }
    holders.sort_by_key(|holder| holder.pid);
    holders
}

fn uses_cuda(process: &Path) -> bool {
    let mut found = false;
    let mut look = |line: &[u8]| {
        found = line.ends_with(UNIFIED_MEMORY.as_bytes());
        !found
    };
    let read = proc_files::each_line_of(&process.join("maps"), MAX_MAPPINGS, &mut look);
    // One with so many mappings that they are not read to their end may be one.
    found || read.is_err_and(|error| error.kind() == std::io::ErrorKind::FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of a made-up `/proc`.
    fn process(proc: &Path, pid: u32, stat: &str, files: &[&str]) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join("fd")).unwrap();
        fs::write(folder.join("stat"), format!("{pid} (a) b) {stat} 1 0 -1")).unwrap();
        fs::write(folder.join("comm"), "python\n").unwrap();
        for (number, file) in files.iter().enumerate() {
            std::os::unix::fs::symlink(file, folder.join("fd").join(number.to_string())).unwrap();
        }
    }

    #[test]
    fn a_rank_whose_launcher_is_gone_is_an_orphan() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path();
        process(proc, 1, "S 0 1", &[]);
        process(proc, 10, "S 1 10", &[]); // a service, or the job of a shell
        process(proc, 11, "S 10 10", &[]); // its rank
        process(proc, 21, "S 1 20", &[]); // a rank whose launcher 20 is gone
        process(proc, 30, "Z 1 30", &[]);
        process(proc, 31, "S 1 30", &[]); // its launcher was not waited for
        process(proc, 32, "S 31 30", &[]); // a worker of that
        let orphans: Vec<u32> = [1, 10, 11, 21, 30, 31, 32, 99]
            .into_iter()
            .filter(|pid| is_orphan_in(proc, *pid))
            .collect();
        assert_eq!(orphans, [21, 31]);
    }

    #[test]
    fn who_uses_a_gpu_unlisted_is_found_and_control_files_and_monitors_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path();
        process(proc, 5, "S 1 5", &["/dev/nvidiactl", "/dev/nvidia-uvm", "socket:[3]"]);
        fs::write(proc.join("5/maps"), "200000000-200200000 rw-s 0 00:06 7 /dev/nvidia-uvm\n")
            .unwrap();
        process(
            proc,
            6,
            "S 1 6",
            &["/dev/nvidia1", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"],
        );
        fs::write(proc.join("6/maps"), "200000000-200200000 rw-s 0 00:06 7 /dev/nvidia-uvm\n")
            .unwrap();
        // A monitor, or a launcher that counted the GPUs: two H200s had "memspy" and "pt_elastic" here.
        process(proc, 7, "S 1 7", &["/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidiactl"]);
        fs::write(proc.join("7/maps"), "200000000-200200000 rw-s 0 00:06 7 /dev/nvidiactl\n")
            .unwrap();
        let found = device_file_holders_in(proc);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pid, &*found[0].name), (6, "python"));
        assert_eq!(found[0].files, ["/dev/nvidia0", "/dev/nvidia1"]);
    }
}
