//! Takes owner snapshots, with retries.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::readers::{TargetReaders, TorchState};
use super::sleep::sleep_unless;
use rustc_hash::FxHashSet;

use super::forked_copy::ForkedCopy;
use crate::model::{
    CopiedTensors, HostReading, OwnershipSnapshot, SleepTags, StackTable, StopTotals, TensorRow,
    ThreadSample,
};
use crate::owners::{
    OwnerError, OwnerReader, SnapshotOptions, SnapshotRequest, StopPolicy, is_profiled,
    read_jax_arrays, vllm_tags,
};
use crate::python::HeapError;
use crate::target::Process;
use crate::torch::{AllocatorError, page_locked};

/// Garbage collections and allocations take up to some milliseconds.
const MAX_ATTEMPTS: u32 = 50;
/// Between attempts: stops then slow the process by less than a tenth.
const REST: Duration = Duration::from_millis(2);
/// A running process is read whole only by luck.
const MAX_RUNNING_ATTEMPTS: u32 = 200;

/// A process has one tracer: wait for another memspy or py-spy to detach.
const MAX_WAIT_FOR_TRACER: Duration = Duration::from_secs(3);
const ASK_TRACER_EVERY: Duration = Duration::from_millis(2);

/// A snapshot and its attempts.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct OwnerReading {
    pub snapshot: OwnershipSnapshot,
    pub attempts: u32,
}

/// Takes an owner snapshot.
pub fn read_owners(
    readers: &mut TargetReaders,
    options: impl Into<SnapshotOptions>,
) -> Result<OwnerReading, OwnerError> {
    read_with_retries(readers, options.into(), None, &mut StopTotals::default())
}

/// Also finds what refers to the tensors `asked` (names or addresses, `0x…`).
pub fn read_referrers(
    readers: &mut TargetReaders,
    options: impl Into<SnapshotOptions>,
    asked: &str,
) -> Result<OwnerReading, OwnerError> {
    read_with_retries(readers, options.into(), Some(asked), &mut StopTotals::default())
}

/// Counts stops and their time, also of failed attempts.
pub(super) fn read_with_retries(
    readers: &mut TargetReaders,
    options: SnapshotOptions,
    asked: Option<&str>,
    stops: &mut StopTotals,
) -> Result<OwnerReading, OwnerError> {
    let request = SnapshotRequest::new(options, asked);
    match prepare(readers) {
        Err(OwnerError::Jax) => read_jax(readers, request),
        prepared => prepared.and_then(|()| read_prepared(readers, request, stops)),
    }
}

/// The process runs on: its list of objects is read whole only by luck.
fn read_jax(
    readers: &TargetReaders,
    request: SnapshotRequest<'_>,
) -> Result<OwnerReading, OwnerError> {
    let python = readers.python.as_ref().ok_or(OwnerError::Jax)?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        match read_jax_arrays(&readers.process, python, &request) {
            Ok(snapshot) => return Ok(OwnerReading { snapshot, attempts }),
            Err(error)
                if may_pass(&error)
                    && attempts < MAX_RUNNING_ATTEMPTS
                    && !request.time_left().is_zero() => {}
            Err(error) => return Err(error),
        }
    }
}

fn take_out_copies(snapshot: &mut OwnershipSnapshot, copy: ForkedCopy) {
    let (mut seen, mut bytes) = (FxHashSet::default(), 0);
    let is_on_gpu = |row: &TensorRow| row.tensor.device.is_some_and(|device| device.is_cuda());
    for row in snapshot.tensors.iter().filter(|row| is_on_gpu(row)) {
        if let Some(storage) = row.tensor.storage.filter(|storage| storage.memory() > 0)
            && seen.insert((row.tensor.device, storage.data))
        {
            bytes += storage.memory();
        }
    }
    snapshot.tensors.retain(|row| !is_on_gpu(row));
    snapshot.copied = Some(CopiedTensors { of: copy.of, storages: seen.len() as u64, bytes });
}

/// The slow preparation, while the process runs.
pub(super) fn learn(
    readers: &mut TargetReaders,
    options: SnapshotOptions,
) -> Result<(), OwnerError> {
    prepare(readers)?;
    let TargetReaders { process, python: Some(python), torch, owners: Some(reader), .. } = readers
    else {
        return Ok(());
    };
    reader.learn(process, python, torch.reader_mut(), &SnapshotRequest::new(options, None));
    Ok(())
}

pub(super) fn prepare(readers: &mut TargetReaders) -> Result<(), OwnerError> {
    readers.refresh();
    if readers.owners.is_none() {
        readers.owners = OwnerReader::attach(&readers.process)?;
    }
    readers.owners.as_ref().map(|_| ()).ok_or_else(|| without_torch(&readers.process))
}

fn without_torch(process: &Process) -> OwnerError {
    let is_of_jax = |path: &Path| path.components().any(|part| part.as_os_str() == "jaxlib");
    let mappings = process.mappings();
    let has_jax =
        mappings.is_ok_and(|all| all.iter().filter_map(|it| it.path.as_deref()).any(is_of_jax));
    if has_jax { OwnerError::Jax } else { OwnerError::NoTorch }
}

pub(super) fn read_prepared(
    readers: &mut TargetReaders,
    mut request: SnapshotRequest<'_>,
    stops: &mut StopTotals,
) -> Result<OwnerReading, OwnerError> {
    let stop_policy = request.stop_policy();
    let (Some(reader), Some(python)) = (&mut readers.owners, &readers.python) else {
        return Err(OwnerError::NoTorch);
    };
    let most = match stop_policy {
        // A core file never changes.
        _ if readers.process.is_core() => 1,
        StopPolicy::Stop => MAX_ATTEMPTS,
        StopPolicy::Never => MAX_RUNNING_ATTEMPTS,
    };
    let mut attempts = 0;
    let timeout = Instant::now() + MAX_WAIT_FOR_TRACER;
    loop {
        attempts += 1;
        let torch = readers.torch.reader_mut();
        match reader.read(&readers.process, python, torch, &request, stops) {
            Ok(mut snapshot) => {
                if let Some(copy) = readers.copy {
                    take_out_copies(&mut snapshot, copy);
                }
                return Ok(OwnerReading { snapshot, attempts });
            }
            Err(error) if error.is_traced() && Instant::now() < timeout => {
                attempts -= 1; // It did not even begin.
                std::thread::sleep(ASK_TRACER_EVERY);
                // Time used by another tracer is not the snapshot's.
                request = request.with_full_budget();
            }
            Err(error)
                if (may_pass(&error) || may_be_torn(&error, stop_policy))
                    && attempts < most
                    && !request.time_left().is_zero() =>
            {
                if stop_policy == StopPolicy::Stop {
                    std::thread::sleep(REST);
                }
            }
            Err(error) if may_be_torn(&error, stop_policy) && !readers.process.is_core() => {
                return Err(OwnerError::Torch(AllocatorError::Torn {
                    what: "its tensors",
                    attempts,
                }));
            }
            Err(error) => return Err(error),
        }
    }
}

/// A running process may change during the read: nonsense does not disprove the layout.
fn may_be_torn(error: &OwnerError, stop_policy: StopPolicy) -> bool {
    stop_policy == StopPolicy::Never
        && matches!(error, OwnerError::Torch(AllocatorError::UnknownLayout { .. }))
}

/// An unreadable list may be in the middle of a change.
fn may_pass(error: &OwnerError) -> bool {
    error.is_transient() || matches!(error, OwnerError::Heap(HeapError::NoLists { .. }))
}

/// Memory of vLLM's sleeping allocator, by device and tag.
pub fn read_sleep_tags(readers: &TargetReaders) -> SleepTags {
    let python = readers.python.as_ref();
    python.map_or(SleepTags::NotLoaded, |python| vllm_tags(&readers.process, python))
}

/// The job's memory on the host.
pub fn read_host(readers: &TargetReaders) -> HostReading {
    let recorders = || {
        let TorchState::Attached(torch) = &readers.torch else { return None };
        torch.devices().filter_map(|device| torch.recorder(device)).max_by_key(|it| it.entries)
    };
    let history = if readers.process.is_core() { None } else { recorders() };
    HostReading {
        resident: readers.process.resident(),
        page_locked: page_locked(&readers.process),
        history,
        is_profiled: readers.python.as_ref().and_then(|it| is_profiled(&readers.process, it)),
    }
}

/// An ending process may be unreadable this long.
const ENDING_TIME: Duration = Duration::from_millis(50);

/// A snapshot with the stacks of its moment.
pub type ReadOwners<'a> = &'a mut dyn FnMut(
    Result<OwnerReading, OwnerError>,
    &StackTable,
    &[ThreadSample],
) -> io::Result<()>;

/// Takes snapshots each `every` until `stop` is set or the process ends. `take` judges a failed
/// one.
pub fn watch_owners(
    readers: &mut TargetReaders,
    options: SnapshotOptions,
    every: Duration,
    stop: &AtomicBool,
    take: ReadOwners<'_>,
) -> io::Result<()> {
    let (mut table, mut samples) = (StackTable::new(), Vec::new());
    let mut next = Instant::now();
    loop {
        let rest = next.saturating_duration_since(Instant::now());
        let is_over = || stop.load(Ordering::Relaxed) || !readers.process.is_alive();
        if !sleep_unless(rest, is_over) {
            break;
        }
        next = Instant::now() + every;
        if let Some(python) = &mut readers.python
            && python.sample(&mut table, &mut samples).is_err()
        {
            samples.clear();
        }
        let reading = read_owners(readers, options);
        if reading.is_err() {
            // Unreadable now, it may soon be gone.
            std::thread::sleep(ENDING_TIME);
            if !readers.process.is_alive() {
                break;
            }
        }
        take(reading, &table, &samples)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_running_job_is_reported_as_torn() {
        let unknown = || {
            let (version, what) = ("2.11.0".to_owned(), "no known layout".to_owned());
            OwnerError::Torch(AllocatorError::UnknownLayout { version, what })
        };
        assert!(may_be_torn(&unknown(), StopPolicy::Never));
        assert!(!may_be_torn(&unknown(), StopPolicy::Stop));
        assert!(!may_be_torn(&OwnerError::NoTorch, StopPolicy::Never));
        let torn = OwnerError::Torch(AllocatorError::Torn { what: "its tensors", attempts: 9 });
        assert!(torn.is_transient(), "the advice is to try again");
    }
}
