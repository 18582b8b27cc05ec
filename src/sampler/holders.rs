//! Looks at holders, tried again until the process stands in a place where they can be read.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::readers::{Readers, Torch};
use crate::holders::{HolderError, HolderReader, LookOptions, LookRequest, Pausing};
use crate::model::{HolderMap, StackTable, Stops, ThreadSample};
use crate::python::HeapError;

/// Attempts; garbage collections and allocations take microseconds to some milliseconds.
const MOST_ATTEMPTS: u32 = 50;
/// Between two attempts the process runs: so much longer than it stood still that it is not slowed by a tenth.
const REST: Duration = Duration::from_millis(2);
/// A process that runs on is seen whole only by luck: more attempts, without a rest.
const MOST_RUNNING_ATTEMPTS: u32 = 200;

/// Only one process can stop another: how long a look waits for one that does (another memspy, py-spy) to let go, and how
/// often it asks.
const MAX_WAIT_FOR_TRACER: Duration = Duration::from_secs(3);
const ASK_TRACER_EVERY: Duration = Duration::from_millis(2);

/// One look, and how often it was tried.
#[derive(Debug)]
pub struct HolderLook {
    /// What was seen.
    pub map: HolderMap,
    /// How often it was tried.
    pub attempts: u32,
}

/// Looks at the holders of the process that `readers` read.
pub fn look_at_holders(
    readers: &mut Readers,
    options: impl Into<LookOptions>,
) -> Result<HolderLook, HolderError> {
    look_for(readers, options.into(), None, &mut Stops::default())
}

/// As [`look_at_holders`], and looks for what refers to the tensors called `asked` (or at that address, `0x…`).
pub fn look_at_referrers(
    readers: &mut Readers,
    options: impl Into<LookOptions>,
    asked: &str,
) -> Result<HolderLook, HolderError> {
    look_for(readers, options.into(), Some(asked), &mut Stops::default())
}

/// The same; `stops` counts how often the process was stopped and for how long, also where it came to nothing.
pub(super) fn look_for(
    readers: &mut Readers,
    options: LookOptions,
    asked: Option<&str>,
    stops: &mut Stops,
) -> Result<HolderLook, HolderError> {
    prepare(readers)?;
    look_prepared(readers, options, asked, stops)
}

/// What takes time before a look, while the process runs.
pub(super) fn prepare(readers: &mut Readers) -> Result<(), HolderError> {
    readers.refresh();
    if readers.holders.is_none() {
        readers.holders = HolderReader::attach(&readers.process)?;
    }
    readers.holders.as_ref().map(|_| ()).ok_or(HolderError::NoTorch)
}

/// A look that has been prepared.
pub(super) fn look_prepared(
    readers: &mut Readers,
    options: LookOptions,
    asked: Option<&str>,
    stops: &mut Stops,
) -> Result<HolderLook, HolderError> {
    let mut request = LookRequest::new(options, asked);
    let (Some(reader), Some(python)) = (&mut readers.holders, &readers.python) else {
        return Err(HolderError::NoTorch);
    };
    let most = match options.pausing {
        Pausing::Stop => MOST_ATTEMPTS,
        Pausing::Never => MOST_RUNNING_ATTEMPTS,
    };
    let mut attempts = 0;
    let patience = Instant::now() + MAX_WAIT_FOR_TRACER;
    loop {
        attempts += 1;
        let torch = match &mut readers.torch {
            Torch::Attached(torch) => Some(&mut **torch),
            _ => None,
        };
        match reader.look(&readers.process, python, torch, &request, stops) {
            Ok(map) => return Ok(HolderLook { map, attempts }),
            Err(error) if error.is_traced() && Instant::now() < patience => {
                attempts -= 1; // It did not even begin.
                std::thread::sleep(ASK_TRACER_EVERY);
                // The time that others take is none of the look's.
                request = LookRequest::new(options, asked);
            }
            Err(error) if may_pass(&error) && attempts < most && !request.time_left().is_zero() => {
                if options.pausing == Pausing::Stop {
                    std::thread::sleep(REST);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Lists that cannot be made out may have been met between two words of a change; if they stay so, that is to be said.
fn may_pass(error: &HolderError) -> bool {
    error.is_transient() || matches!(error, HolderError::Heap(HeapError::NoLists { .. }))
}

/// How long a wait goes on before it looks whether it is to end.
const NOTICE_EVERY: Duration = Duration::from_millis(50);

/// Takes a look, with the stacks of its moment.
pub type TakeLook<'a> = &'a mut dyn FnMut(
    Result<HolderLook, HolderError>,
    &StackTable,
    &[ThreadSample],
) -> io::Result<()>;

/// Looks again and again, `every` so often, until `stop` is set or the process has ended; each look with the stacks of its
/// moment. The error of a look that could not be made at all is for `take` to judge.
pub fn watch_holders(
    readers: &mut Readers,
    options: LookOptions,
    every: Duration,
    stop: &AtomicBool,
    take: TakeLook<'_>,
) -> io::Result<()> {
    let (mut table, mut samples) = (StackTable::new(), Vec::new());
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) && readers.process.is_alive() {
        let now = Instant::now();
        if now < next {
            std::thread::sleep(NOTICE_EVERY.min(next - now));
            continue;
        }
        // Never faster than asked, also when a look takes longer than that.
        next = now + every;
        if let Some(python) = &mut readers.python
            && python.sample(&mut table, &mut samples).is_err()
        {
            samples.clear();
        }
        let look = look_at_holders(readers, options);
        if look.is_err() {
            // A process that is ending cannot be read any more a little before it is gone.
            std::thread::sleep(NOTICE_EVERY);
            if !readers.process.is_alive() {
                break;
            }
        }
        take(look, &table, &samples)?;
    }
    Ok(())
}
