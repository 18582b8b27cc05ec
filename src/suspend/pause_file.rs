//! A note on a paused job: its bytes on each GPU, which the driver does not say.
//!
//! Lines: pid and start; seconds since 1970; `UUID BYTES` for each GPU. Only a file of this
//! user or root counts, for this very job: others may write to the folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::files::{FileCreation, is_own_folder, read_own};
use crate::model::{DeviceUsage, GpuDevice, ProcessUsage};
use crate::target::{Process, ProcessError};

const PREFIX: &str = "memspy-paused-";
const MAX_NAMES: usize = 10_000;
const MAX_FILE_BYTES: u64 = 64 << 10;

/// A note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseFile {
    /// Seconds since 1970.
    since: u64,
    devices: Vec<(String, u64)>,
}

impl PauseFile {
    /// A note on a job that is paused at `now`.
    pub fn new(devices: &[(GpuDevice, DeviceUsage)], now: SystemTime) -> PauseFile {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let devices = devices.iter().filter_map(|(device, usage)| match usage.process {
            ProcessUsage::Bytes(bytes) => Some((device.uuid.clone()?, bytes)),
            ProcessUsage::Unknown(_) => None,
        });
        PauseFile { since, devices: devices.collect() }
    }

    /// Time since the pause; `None`: the clock was set back.
    pub fn age(&self) -> Option<Duration> {
        SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(self.since)).ok()
    }

    /// The job's bytes on a GPU.
    pub fn bytes_on(&self, uuid: &str) -> Option<u64> {
        self.devices.iter().find(|(known, _)| known == uuid).map(|(_, bytes)| *bytes)
    }

    /// Writes the note; failing costs only its facts.
    pub fn write(&self, process: &Process) {
        remove_ended(&folder());
        let path = path(process);
        let _ = fs::remove_file(&path);
        let lines = self.devices.iter().map(|(uuid, bytes)| format!("{uuid} {bytes}\n"));
        let (job, lines) = (job(process), lines.collect::<String>());
        let text = format!("{job}\n{}\n{lines}", self.since);
        // A new file for this user only: the folder may be shared.
        if let Ok(mut file) = FileCreation::default().create(&path) {
            let _ = file.write_all(text.as_bytes());
        }
    }

    /// The note, if this user may trust it.
    pub fn read(process: &Process) -> Option<PauseFile> {
        remove_ended(&folder());
        PauseFile::read_text(process, &read_own(&path(process), MAX_FILE_BYTES)?)
    }

    /// The file's name proves nothing: it may be renamed.
    fn read_text(process: &Process, text: &str) -> Option<PauseFile> {
        let (about, rest) = text.split_once('\n')?;
        (about == job(process)).then(|| PauseFile::parse(rest)).flatten()
    }

    /// Removes the note on `process`.
    pub fn remove(process: &Process) {
        let _ = fs::remove_file(path(process));
    }

    fn parse(text: &str) -> Option<PauseFile> {
        let mut lines = text.lines();
        let since = lines.next()?.parse().ok()?;
        let device = |line: &str| {
            let (uuid, bytes) = line.split_once(' ')?;
            Some((uuid.to_owned(), bytes.parse().ok()?))
        };
        Some(PauseFile { since, devices: lines.map(device).collect::<Option<_>>()? })
    }
}

fn job(process: &Process) -> String {
    format!("{}-{}", process.pid(), process.start_time())
}

fn path(process: &Process) -> PathBuf {
    folder().join(format!("{PREFIX}{}", job(process)))
}

/// Nothing else removes notes on ended jobs.
fn remove_ended(folder: &Path) {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_NAMES);
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let Some(about) = name.strip_prefix(PREFIX) else { continue };
        let note = folder.join(&name);
        // Others may write such a name to the folder.
        let is_own =
            read_own(&note, MAX_FILE_BYTES).is_some_and(|text| text.lines().next() == Some(about));
        let pid = about.split_once('-').and_then(|(pid, _)| pid.parse().ok());
        let runs = |pid| match Process::open(pid) {
            Ok(process) => job(&process) == about,
            Err(ProcessError::NotFound { .. } | ProcessError::Exited { .. }) => false,
            Err(_) => true,
        };
        if is_own && !pid.is_some_and(runs) {
            let _ = fs::remove_file(note);
        }
    }
}

fn folder() -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // The variable may be another user's (sudo can keep it).
    let folder = folder.filter(|folder| is_own_folder(folder));
    folder.unwrap_or_else(std::env::temp_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_on_other_processes_or_by_other_users_are_ignored() {
        let own = Process::open(std::process::id()).unwrap();
        let other = Process::open(std::os::unix::process::parent_id()).unwrap();
        let note = PauseFile { since: 1, devices: vec![("GPU-1".to_owned(), 17)] };
        note.write(&other);
        let theirs = path(&other);
        assert_eq!(PauseFile::read(&other), Some(note));
        let text = fs::read_to_string(&theirs).unwrap();
        assert_eq!(PauseFile::read_text(&own, &text), None);
        let given = std::os::unix::fs::chown(&theirs, Some(65534), None);
        given.expect("this test has to run as root");
        assert_eq!(PauseFile::read(&other), None);
        PauseFile::remove(&other);
    }

    #[test]
    fn only_notes_on_ended_jobs_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let own = Process::open(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let ended = job(&Process::open(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let (of_own, of_ended) = (format!("{PREFIX}{}", job(&own)), format!("{PREFIX}{ended}"));
        write(&of_own, &format!("{}\n1\n", job(&own)));
        write(&of_ended, &format!("{ended}\n1\n"));
        // The pid now belongs to another process.
        let reused = format!("{}-1", own.pid());
        write(&format!("{PREFIX}{reused}"), &format!("{reused}\n1\n"));
        write(&format!("{PREFIX}7-7"), "a file of somebody else\n");
        write("other", "");
        for name in [&of_own, &of_ended] {
            let path = folder.path().join(name);
            let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(path, closed).unwrap();
        }
        remove_ended(folder.path());
        let left = fs::read_dir(folder.path()).unwrap();
        let mut left: Vec<_> =
            left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        let mut kept = vec![of_own, format!("{PREFIX}7-7"), "other".to_owned()];
        kept.sort();
        assert_eq!(left, kept);
    }

    #[test]
    fn a_note_reads_back() {
        let own = Process::open(std::process::id()).unwrap();
        let devices = vec![("GPU-1".to_owned(), 17), ("GPU-2".to_owned(), 1 << 40)];
        let note = PauseFile { since: 1, devices };
        assert_eq!(PauseFile::read(&own), None);
        note.write(&own);
        assert_eq!(PauseFile::read(&own), Some(note.clone()));
        assert_eq!((note.bytes_on("GPU-2"), note.bytes_on("GPU-3")), (Some(1 << 40), None));
        assert!(note.age().unwrap() > Duration::from_secs(1_000_000_000));
        PauseFile::remove(&own);
        assert_eq!(PauseFile::read(&own), None);
        for wrong in ["", "x\n", "5\nGPU-1\n", "5\nGPU-1 x\n"] {
            assert_eq!(PauseFile::parse(wrong), None, "{wrong}");
        }
    }
}
