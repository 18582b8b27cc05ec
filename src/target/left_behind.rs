//! Orphaned processes, and users of a GPU's device file.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::proc_files::{self, MAX_COMMAND_LINE, MAX_ENVIRONMENT, MAX_FIELDS, MAX_MAPPINGS};

/// From `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessRelations {
    state: char,
    parent: u32,
    group: u32,
    session: u32,
    pid: u32,
    /// Clock ticks since boot.
    started: u64,
}

fn relations(proc: &Path, pid: u32) -> Option<ProcessRelations> {
    let path = proc.join(pid.to_string()).join("stat");
    let stat = proc_files::first_bytes(&path, MAX_FIELDS).ok()?.bytes;
    // The name before it may contain parentheses.
    let stat = String::from_utf8_lossy(&stat);
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    Some(ProcessRelations {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        session: fields.next()?.parse().ok()?,
        pid,
        // Field 22; the session is field 6.
        started: fields.nth(15).and_then(|ticks| ticks.parse().ok()).unwrap_or(0),
    })
}

fn text(proc: &Path, pid: u32, name: &str, limit: usize) -> String {
    let first = proc_files::first_bytes(&proc.join(pid.to_string()).join(name), limit);
    String::from_utf8_lossy(&first.unwrap_or_default().bytes).into_owned()
}

/// A process whose launcher has ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Orphan {
    /// The launcher's pid, if known.
    pub launcher: Option<u32>,
    /// How the launcher is known: an environment variable, or the process group.
    pub evidence: Option<String>,
    /// When the orphan started.
    pub started: Option<SystemTime>,
    /// Its parent adopts orphans; a variable may also be inherited from a terminal that has ended.
    pub is_adopted: bool,
}

/// Of torchrun, Open MPI, MPICH, Slurm.
const RANK_VARIABLES: [&str; 5] =
    ["TORCHELASTIC_RUN_ID", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
/// Of Jupyter's server, in its kernels and terminals.
const INHERITED: [&str; 1] = ["JPY_PARENT_PID"];
/// Of `multiprocessing`; these have a parent.
const STARTED_BY_PYTHON: [&str; 2] = ["multiprocessing.spawn", "multiprocessing.forkserver"];
/// They adopt orphans, besides process 1.
const REAPERS: [&str; 8] = [
    "systemd",
    "init",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
    "conmon",
    "containerd-shim",
];
/// Clock ticks within which process 1 of a container starts its main program.
const MAIN_PROGRAM_TICKS: u64 = 500;

/// Describes `pid` if its launcher has ended. `None`: no orphan, or perhaps a service or a shell's
/// background job.
pub fn orphan(pid: u32) -> Option<Orphan> {
    let started = || {
        let ticks = relations(&proc_files::root(), pid)?.started as f64;
        let since_boot = Duration::from_secs_f64(ticks / procfs::ticks_per_second() as f64);
        let uptime = proc_files::of_kernel("uptime").ok()?;
        let up: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        let up = Duration::try_from_secs_f64(up).ok()?;
        SystemTime::now().checked_sub(up.checked_sub(since_boot)?)
    };
    let found = orphan_in(&proc_files::root(), pid)?;
    Some(Orphan { started: started(), ..found })
}

fn orphan_in(proc: &Path, pid: u32) -> Option<Orphan> {
    let own = relations(proc, pid)?;
    // A zombie leader is gone, too.
    let is_gone = |pid| relations(proc, pid).is_none_or(|found| matches!(found.state, 'Z' | 'X'));
    if own.group != pid {
        let is_adopted = own.parent <= 1
            || relations(proc, own.parent).is_none_or(|parent| parent.group != own.group);
        let is_orphan = own.group != 0 && is_gone(own.group) && is_adopted;
        return is_orphan.then(|| Orphan {
            launcher: Some(own.group),
            evidence: Some("leader of its process group".to_owned()),
            started: None,
            is_adopted: true,
        });
    }
    // torchrun, and launchers with start_new_session, give each rank its session.
    let environment = environment(proc, pid);
    let named = environment.iter().find_map(|variable| named_launcher(proc, variable, own));
    if let Some((launcher, variable)) = named {
        let evidence = Some(format!("{variable} in its environment"));
        let is_adopted = is_adopted(proc, own);
        return Some(Orphan { launcher: Some(launcher), evidence, started: None, is_adopted });
    }
    if !is_adopted(proc, own) {
        return None;
    }
    let has = |name: &&str| environment.iter().any(|it| it.split('=').next() == Some(*name));
    let is_rank = RANK_VARIABLES.iter().any(has) || is_started_by_python(proc, pid);
    let leads_session = own.session == pid && !is_service(proc, pid) && !is_main_program(proc, own);
    (is_rank || leads_session).then(|| Orphan { is_adopted: true, ..Orphan::default() })
}

fn environment(proc: &Path, pid: u32) -> Vec<String> {
    let all = text(proc, pid, "environ", MAX_ENVIRONMENT);
    all.split('\0').map(str::to_owned).collect()
}

/// If the launcher has ended: its pid is free or has a younger process.
fn named_launcher(proc: &Path, variable: &str, own: ProcessRelations) -> Option<(u32, String)> {
    let (name, value) = variable.split_once('=')?;
    let upper = name.to_ascii_uppercase();
    let is_pid = ["LAUNCHER_PID", "PARENT_PID", "PPID", "RAYLET_PID"];
    let is_pid = is_pid.iter().any(|end| upper.ends_with(end));
    // Without suffix PID any number is possible, unless the parent did end.
    let is_bare = || upper.ends_with("LAUNCHER") || upper.ends_with("PARENT");
    // A terminal of Jupyter outlives its server, and its programs inherit the variable.
    let is_inherited = INHERITED.contains(&name);
    let is_named = match is_pid && !is_inherited {
        true => true,
        false => (is_inherited || is_bare()) && is_adopted(proc, own),
    };
    let pid: u32 = value.parse().ok().filter(|pid| *pid > 1 && is_named)?;
    let is_gone = relations(proc, pid)
        .is_none_or(|found| matches!(found.state, 'Z' | 'X') || found.started > own.started);
    (is_gone && pid != own.parent).then(|| (pid, name.to_owned()))
}

/// Whether the parent adopts orphans (a launcher runs the same program).
fn is_adopted(proc: &Path, own: ProcessRelations) -> bool {
    let name = text(proc, own.parent, "comm", MAX_FIELDS);
    let program = |pid: u32| fs::read_link(proc.join(pid.to_string()).join("exe")).ok();
    let is_launcher = program(own.parent).is_some_and(|parent| Some(parent) == program(own.pid));
    (own.parent <= 1 || REAPERS.contains(&name.trim_end())) && !is_launcher
}

fn is_started_by_python(proc: &Path, pid: u32) -> bool {
    let line = text(proc, pid, "cmdline", MAX_COMMAND_LINE);
    STARTED_BY_PYTHON.iter().any(|word| line.contains(word))
}

fn is_service(proc: &Path, pid: u32) -> bool {
    let groups = text(proc, pid, "cgroup", MAX_FIELDS);
    groups.lines().any(|line| line.ends_with(".service"))
}

fn is_main_program(proc: &Path, own: ProcessRelations) -> bool {
    let first = relations(proc, 1);
    first.is_some_and(|first| own.started.saturating_sub(first.started) < MAIN_PROGRAM_TICKS)
}

/// Has device files of GPUs open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHolder {
    /// Its pid.
    pub pid: u32,
    /// From `/proc/PID/comm`.
    pub name: String,
    /// Such as `/dev/nvidia0`.
    pub files: Vec<String>,
}

/// Mapped by all processes that use CUDA, but not by those that only query NVML (nvidia-smi, DCGM,
/// memspy; driver 580).
const UNIFIED_MEMORY: &str = "/dev/nvidia-uvm";

/// Processes that use CUDA, as far as memspy may see.
pub fn device_file_holders() -> Vec<FileHolder> {
    device_file_holders_in(&proc_files::root())
}

fn device_file_holders_in(proc: &Path) -> Vec<FileHolder> {
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
        holders.push(FileHolder { pid, name: name.trim_end().to_owned(), files });
    }
    holders.sort_by_key(|holder| holder.pid);
    holders
}

fn uses_cuda(process: &Path) -> bool {
    let mut found = false;
    let mut check = |line: &[u8]| {
        found = line.ends_with(UNIFIED_MEMORY.as_bytes());
        !found
    };
    let read = proc_files::each_line_of(&process.join("maps"), MAX_MAPPINGS, &mut check);
    // In a list cut at the limit, it may be in the rest: assume so.
    found || read.is_err_and(|error| error.kind() == std::io::ErrorKind::FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(proc: &Path, pid: u32, stat: &str, files: &[&str]) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join("fd")).unwrap();
        let stat = match stat.split(' ').count() {
            3 => format!("{stat} 1"),
            _ => stat.to_owned(),
        };
        let rest = ["0"; 15].join(" ");
        let started = 100 * u64::from(pid);
        fs::write(folder.join("stat"), format!("{pid} (a) b) {stat} {rest} {started} 0")).unwrap();
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
        process(proc, 10, "S 1 10", &[]); // a service, or a shell's job
        process(proc, 11, "S 10 10", &[]); // its rank
        process(proc, 21, "S 1 20", &[]); // a rank whose launcher 20 is gone
        process(proc, 30, "Z 1 30", &[]);
        process(proc, 31, "S 1 30", &[]); // its launcher was not waited for
        process(proc, 32, "S 31 30", &[]); // its worker
        let orphans: Vec<u32> = [1, 10, 11, 21, 30, 31, 32, 99]
            .into_iter()
            .filter(|pid| orphan_in(proc, *pid).is_some())
            .collect();
        assert_eq!(orphans, [21, 31]);
        assert_eq!(orphan_in(proc, 21).unwrap().launcher, Some(20));
    }

    #[test]
    fn a_session_leading_rank_without_its_launcher_is_an_orphan() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path();
        let file = |pid: u32, name: &str, text: &str| {
            fs::write(proc.join(pid.to_string()).join(name), text).unwrap();
        };
        process(proc, 1, "S 0 1 1", &[]);
        process(proc, 40, "S 1 40 40", &[]); // it leads its own session
        process(proc, 41, "S 1 41 7", &[]); // a shell's background job
        process(proc, 42, "S 1 42 7", &[]); // a rank
        file(42, "environ", "HOME=/\0LOCAL_RANK=0\0");
        process(proc, 43, "S 1 43 43", &[]); // a service
        file(43, "cgroup", "0::/system.slice/server.service\n");
        process(proc, 44, "S 50 44 44", &[]); // its launcher lives
        file(44, "environ", "LOCAL_RANK=0\0LAUNCHER=50\0");
        process(proc, 50, "S 1 50 50", &[]);
        file(50, "cgroup", "0::/system.slice/server.service\n");
        process(proc, 45, "S 1 45 7", &[]); // names its launcher
        file(45, "environ", "LAUNCHER_LIVES=9\0LAUNCHER=39\0MASTER_PORT=29500\0");
        process(proc, 46, "S 1 46 46", &[]); // its launcher is process 1 of the container
        for pid in [1, 46] {
            std::os::unix::fs::symlink("/usr/bin/python3", proc.join(format!("{pid}/exe")))
                .unwrap();
        }
        process(proc, 3, "S 1 3 3", &[]); // the main program of process 1
        let found = |pid| orphan_in(proc, pid).map(|orphan| orphan.launcher);
        // Its variable names a launcher that has ended, but a shell started it.
        process(proc, 51, "S 52 51 51", &[]);
        process(proc, 52, "S 1 52 52", &[]);
        file(51, "environ", "RANK_LAUNCHER_PID=39\0");
        assert_eq!(orphan_in(proc, 51).map(|orphan| orphan.is_adopted), Some(false));
        // A program in a terminal of Jupyter is none, though the server has ended; its kernel is.
        file(51, "environ", "JPY_PARENT_PID=39\0");
        assert_eq!(orphan_in(proc, 51), None);
        process(proc, 53, "S 1 53 53", &[]);
        file(53, "environ", "JPY_PARENT_PID=39\0");
        assert_eq!(orphan_in(proc, 53).and_then(|orphan| orphan.launcher), Some(39));
        assert_eq!(orphan_in(proc, 45).map(|orphan| orphan.is_adopted), Some(true));
        let all = [40, 41, 42, 43, 44, 45, 46, 50, 3].map(found);
        let known = |launcher| Some(Some(launcher));
        assert_eq!(all, [Some(None), None, Some(None), None, None, known(39), None, None, None]);
    }

    #[test]
    fn device_file_holders_exclude_monitors_and_control_files() {
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
        process(proc, 7, "S 1 7", &["/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidiactl"]);
        fs::write(proc.join("7/maps"), "200000000-200200000 rw-s 0 00:06 7 /dev/nvidiactl\n")
            .unwrap();
        let found = device_file_holders_in(proc);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pid, &*found[0].name), (6, "python"));
        assert_eq!(found[0].files, ["/dev/nvidia0", "/dev/nvidia1"]);
    }
}
