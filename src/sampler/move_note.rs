//! A note that memspy leaves while a job is paused: since when, and how much it had where.
//!
//! The driver does not tell either; without the note memspy says that it does not know. Text: a line with the
//! seconds since 1970, then `UUID BYTES` for each GPU.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::model::{Device, DeviceUsage, ProcessUsage};
use crate::target::Process;

/// What the note says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MoveNote {
    /// Seconds since 1970.
    since: u64,
    /// GPUs by UUID with the bytes that the job had there.
    devices: Vec<(String, u64)>,
}

impl MoveNote {
    /// A note of a job with `devices`, which is paused at `now`.
    pub(super) fn of(devices: &[(Device, DeviceUsage)], now: SystemTime) -> MoveNote {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let devices = devices.iter().filter_map(|(device, usage)| match usage.process {
            ProcessUsage::Bytes(bytes) => Some((device.uuid.clone()?, bytes)),
            ProcessUsage::Unknown(_) => None,
        });
        MoveNote { since, devices: devices.collect() }
    }

    /// How long ago that was; `None` when the clock has been set back since.
    pub(super) fn age(&self) -> Option<Duration> {
        SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(self.since)).ok()
    }

    /// Bytes that the job had on a GPU.
    pub(super) fn bytes_on(&self, uuid: &str) -> Option<u64> {
        self.devices.iter().find(|(known, _)| known == uuid).map(|(_, bytes)| *bytes)
    }

    /// Leaves it for `process`. A note that cannot be written costs only what it would have told.
    pub(super) fn write(&self, process: &Process) {
        let path = path(process);
        let _ = fs::remove_file(&path);
        let lines = self.devices.iter().map(|(uuid, bytes)| format!("{uuid} {bytes}\n"));
        let text = format!("{}\n{}", self.since, lines.collect::<String>());
        // Anew and for this user only: the folder may be everybody's.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
    }

    /// The note about `process`, if memspy left one and this user may believe it.
    pub(super) fn read(process: &Process) -> Option<MoveNote> {
        let path = path(process);
        let owner = fs::symlink_metadata(&path).ok().filter(|m| m.is_file())?.uid();
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return None;
        }
        MoveNote::parse(&fs::read_to_string(path).ok()?)
    }

    /// Takes the note about `process` away.
    pub(super) fn remove(process: &Process) {
        let _ = fs::remove_file(path(process));
    }

    fn parse(text: &str) -> Option<MoveNote> {
        let mut lines = text.lines();
        let since = lines.next()?.parse().ok()?;
        let device = |line: &str| {
            let (uuid, bytes) = line.split_once(' ')?;
            Some((uuid.to_owned(), bytes.parse().ok()?))
        };
        Some(MoveNote { since, devices: lines.map(device).collect::<Option<_>>()? })
    }
}

/// Where the note about a process lies: named by its pid and start, so that a reused pid has none.
fn path(process: &Process) -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|f| f.is_dir());
    let name = format!("memspy-paused-{}-{}", process.pid(), process.start_time());
    folder.unwrap_or_else(std::env::temp_dir).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let own = Process::open(std::process::id()).unwrap();
        let devices = vec![("GPU-1".to_owned(), 17), ("GPU-2".to_owned(), 1 << 40)];
        let note = MoveNote { since: 1, devices };
        assert_eq!(MoveNote::read(&own), None);
        note.write(&own);
        assert_eq!(MoveNote::read(&own), Some(note.clone()));
        assert_eq!((note.bytes_on("GPU-2"), note.bytes_on("GPU-3")), (Some(1 << 40), None));
        assert!(note.age().unwrap() > Duration::from_secs(1_000_000_000));
        MoveNote::remove(&own);
        assert_eq!(MoveNote::read(&own), None);
        for wrong in ["", "x\n", "5\nGPU-1\n", "5\nGPU-1 x\n"] {
            assert_eq!(MoveNote::parse(wrong), None, "{wrong}");
        }
    }
}
