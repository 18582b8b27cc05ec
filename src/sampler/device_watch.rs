//! Reads the GPUs and their processes.

use std::time::Duration;

use crate::gpu::{DriverError, MachineReader};
use crate::model::{
    AllocatorBackend, AllocatorCounters, CudaIndex, DeviceStatus, LeftBehind, MissReason,
    MissedObservation, Nanos, ReaderKind, Record, RecordSink, SleepTags, SnapshotConsistency,
};
use crate::target::left_behind::{Orphan, device_file_holders, orphan};

use super::owners::read_sleep_tags;
use super::readers::{TargetReaders, TorchState};
use super::session::RecordingSession;
use crate::suspend::PauseFile;

const READ_TIMEOUT: Duration = Duration::from_secs(1);
const READS: u32 = 10;

/// One reading of the machine.
pub struct MachineReading {
    /// All devices, in NVML's order.
    pub devices: Vec<DeviceStatus>,
    /// The targets that still run.
    pub targets: Vec<TargetReading>,
    /// Targets that ended since the last reading.
    pub ended: Vec<u32>,
    /// Orphans that use a GPU, and unlisted processes.
    pub left_behind: Vec<LeftBehind>,
}

/// One target's part of a reading.
pub struct TargetReading {
    /// Its pid.
    pub pid: u32,
    /// Whether and how long memspy has paused it (`None` inside: the clock was set back).
    pub paused: Option<Option<Duration>>,
    /// Its records.
    pub records: Vec<Record>,
}

/// Reads the machine and the targets.
pub struct DevicePoll {
    machine: MachineReader,
    targets: Vec<RecordingSession>,
}

impl DevicePoll {
    /// Loads NVML, or fails.
    pub fn open(targets: Vec<TargetReaders>) -> Result<DevicePoll, DriverError> {
        let machine = MachineReader::open()?;
        let targets =
            targets.into_iter().map(|readers| RecordingSession::new(readers, None)).collect();
        Ok(DevicePoll { machine, targets })
    }

    /// Whether there were targets and all have ended.
    pub fn has_lost_all(&self, given: usize) -> bool {
        given > 0 && self.targets.is_empty()
    }

    /// The tags of vLLM's allocator, also without Python.
    pub fn sleep_tags(&self, pid: u32) -> SleepTags {
        let target = self.targets.iter().find(|target| target.readers.process.pid() == pid);
        match target.map(|target| target.readers.identity().attach()) {
            Some(Ok(readers)) => read_sleep_tags(&readers),
            Some(Err(error)) => SleepTags::Unknown(error.to_string()),
            None => SleepTags::NotLoaded,
        }
    }

    /// Reads the devices and all targets once.
    pub fn poll(&mut self, host: &str) -> Result<MachineReading, DriverError> {
        let mut ended = Vec::new();
        self.targets.retain(|target| {
            let over = target.is_over().is_some();
            if over {
                ended.push(target.readers.process.pid());
            }
            !over
        });
        for target in &mut self.targets {
            target.readers.refresh();
        }
        // The driver's figures and the allocators' must be of one instant: their difference is
        // memory outside PyTorch.
        let mut attempts = 0;
        loop {
            attempts += 1;
            let before = self.counters();
            let devices = self.machine.read()?;
            let machine = &self.machine;
            let sessions = self.targets.iter_mut().zip(&before);
            let targets: Vec<_> = sessions
                .map(|(target, before)| read_target(target, before, machine, &devices, host))
                .collect();
            let after = self.counters();
            if attempts == READS || reserved(&before) == reserved(&after) {
                let left_behind = left_behind(&devices);
                return Ok(MachineReading { devices, targets, ended, left_behind });
            }
        }
    }

    fn counters(&mut self) -> Vec<DeviceCounters> {
        let targets = self.targets.iter_mut();
        targets.map(|target| target.readers.counters_between_calls()).collect()
    }
}

type DeviceCounters = Vec<(CudaIndex, AllocatorCounters)>;

fn reserved(targets: &[DeviceCounters]) -> Vec<Vec<i64>> {
    let of_target = |all: &DeviceCounters| all.iter().map(|(_, c)| c.reserved()).collect();
    targets.iter().map(of_target).collect()
}

fn left_behind(devices: &[DeviceStatus]) -> Vec<LeftBehind> {
    let mut found: Vec<LeftBehind> = Vec::new();
    let listed = || devices.iter().flat_map(|status| status.processes.iter().flatten());
    for process in listed() {
        let Some(pid) = process.pid else { continue };
        if !found.iter().any(|known| known.pid == pid)
            && let Some(Orphan { launcher, evidence, started, .. }) = orphan(pid)
        {
            let (command, files) = (process.command.clone(), Vec::new());
            found.push(LeftBehind { pid, command, files, launcher, evidence, started });
        }
    }
    // An incomplete list cannot show that a process is missing.
    let is_whole = devices.iter().all(|status| {
        status.processes.as_ref().is_ok_and(|all| all.iter().all(|p| p.pid.is_some()))
    });
    if is_whole {
        let own = std::process::id();
        let unlisted = device_file_holders()
            .into_iter()
            .filter(|holder| holder.pid != own && listed().all(|p| p.pid != Some(holder.pid)));
        found.extend(unlisted.map(|holder| LeftBehind {
            pid: holder.pid,
            command: Some(holder.name),
            files: holder.files,
            launcher: None,
            evidence: None,
            started: None,
        }));
    }
    found
}

fn read_target(
    session: &mut RecordingSession,
    before: &DeviceCounters,
    machine: &MachineReader,
    devices: &[DeviceStatus],
    host: &str,
) -> TargetReading {
    let pid = session.readers.process.pid();
    let mut records: Vec<Record> = Vec::new();
    // Pushing to a `Vec` cannot fail.
    let _ = session.record_start(host.to_owned(), 0, &mut records);
    let time = session.now();
    let usage = devices.iter().filter_map(|status| machine.usage(status, pid, time));
    records.extend(counter_records(before, time));
    records.extend(usage.map(Record::Usage));
    read_allocator(session, before.is_empty(), &mut records);
    let paused = PauseFile::read(&session.readers.process).map(|note| note.age());
    TargetReading { pid, paused, records }
}

fn counter_records(all: &DeviceCounters, time: Nanos) -> impl Iterator<Item = Record> {
    let record = move |(device, counters): &(CudaIndex, AllocatorCounters)| Record::Counters {
        time,
        device: *device,
        counters: Box::new(*counters),
    };
    all.iter().map(record)
}

/// Reads again to confirm the counters from before the driver's answer.
fn read_allocator(session: &mut RecordingSession, is_first: bool, records: &mut Vec<Record>) {
    let time = session.now();
    let mut counters = session.readers.counters_between_calls();
    let TorchState::Attached(torch) = &mut session.readers.torch else { return };
    if *torch.backend() != AllocatorBackend::Native {
        return;
    }
    let missed = |reader, why: String| {
        Record::Missed(MissedObservation { time, reader, why: MissReason::Failed(why), count: 1 })
    };
    torch.set_timeout(READ_TIMEOUT);
    if is_first
        && counters.is_empty()
        && let Err(error) = torch.counters(&mut counters)
    {
        records.push(missed(ReaderKind::Counters, error.to_string()));
    }
    records.extend(counter_records(&counters, time));
    let devices: Vec<CudaIndex> = torch.devices().collect();
    for device in devices {
        match torch.blocks(device, &|| time) {
            Ok(snapshot) => {
                if let SnapshotConsistency::Degraded { .. } = snapshot.consistency {
                    let why = format!("GPU {} was changed during every attempt", device.0);
                    records.push(missed(ReaderKind::Snapshots, why));
                }
                let _ = records.record(&Record::Snapshot(snapshot));
            }
            Err(error) => records.push(missed(ReaderKind::Snapshots, error.to_string())),
        }
    }
}
