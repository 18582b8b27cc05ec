//! Limits sizes, counts and times, so that no sum over a trace overflows 64 bits.
//!
//! A checksum does not prove who wrote a file. So values beyond any machine are refused here, and
//! later code need not expect them.

use crate::model::{
    AllocatorCounters, AllocatorSnapshot, CounterDelta, CounterSnapshot, Definition, DeviceUsage,
    Event, EventKind, FollowTotals, FollowedChange, Keyframe, KeyframeMemory, Metric, Nanos,
    OwnershipBreakdown, Pool, ProcessUsage, Record, RecordingEnd, SnapshotConsistency, Stat,
};

/// Of one device at one moment: a pebibyte. At most 1,024 devices sum to an exbibyte.
const MAX_LEVEL: u64 = 1 << 50;
/// Since a process or recording began: two exbibytes, weeks of a tebibyte per second.
const MAX_TOTAL: u64 = 1 << 61;
/// Nanoseconds since the recording began: 36 years.
const MAX_TIME: u64 = 1 << 60;
/// Nanoseconds since 1970: the year 2262.
const MAX_UNIX: u64 = i64::MAX as u64;
const MAX_LINE: u32 = i32::MAX as u32;

const TIME: &str = "a record states a time that no recording has";
const SIZE: &str = "a record states a size or a count that no device has";
const TOTAL: &str = "its records state more memory than any job allocates";
const ADDRESS: &str = "a record states memory beyond the last address";
const LINE: &str = "a record states a line that no file has";

type RefusalReason = &'static str;

/// Over the records read so far.
#[derive(Debug, Default)]
pub(super) struct RecordLimits {
    allocated: u64,
    missed: u64,
}

impl RecordLimits {
    pub(super) fn check(&mut self, record: &Record) -> Result<(), RefusalReason> {
        match record {
            Record::Start(start) => below(start.unix_nanos, MAX_UNIX, TIME),
            Record::Runtime(runtime) => time(runtime.time),
            Record::Definition(definition) => lines(definition),
            Record::Source(source) => match source.first_line <= MAX_LINE {
                true => Ok(()),
                false => Err(LINE),
            },
            Record::Device(device) => level(device.total.unwrap_or(0)),
            Record::Sample(sample) => time(sample.time),
            Record::Counters { time: at, counters, .. } => {
                time(*at)?;
                all_counters(counters)
            }
            Record::Snapshot(snapshot) => self::snapshot(snapshot),
            Record::Usage(usage) => self::usage(usage),
            Record::Missed(missed) => {
                time(missed.time)?;
                self.missed = self.missed.saturating_add(missed.count);
                level(self.missed)
            }
            // The recorder chose its sizes: any number is valid.
            Record::ExactSettings(settings) => time(settings.time),
            Record::Events(batch) => batch.events.iter().try_for_each(|event| self.event(event)),
            Record::Followed(batch) => {
                batch.changes.iter().try_for_each(|change| self.change(change))
            }
            Record::CounterCheck(check) => {
                time(check.time)?;
                [check.allocations, check.frees.unwrap_or(0), check.requested]
                    .into_iter()
                    .try_for_each(signed_total)
            }
            Record::Ownership(owners) => ownership(owners),
            // The job chose its variables: any number is valid.
            Record::Step(step) => {
                time(step.time)?;
                time(step.uncertainty.unwrap_or_default())
            }
            Record::Keyframe(keyframe) => self.keyframe(keyframe),
            Record::TriggerFired(fired) => time(fired.time),
            Record::OomException(exception) => time(exception.time),
            Record::Gap(gap) => {
                time(gap.from)?;
                time(gap.to)
            }
            Record::End(end) => self::end(end),
        }
    }

    fn allocated(&mut self, bytes: u64) -> Result<(), RefusalReason> {
        self.allocated = self.allocated.saturating_add(bytes);
        below(self.allocated, MAX_TOTAL, TOTAL)
    }

    fn event(&mut self, event: &Event) -> Result<(), RefusalReason> {
        time(event.time)?;
        match event.change {
            EventKind::Allocated { address, size, levels, block, .. } => {
                region(address, size.max(block.unwrap_or(0)))?;
                self.allocated(size.max(block.unwrap_or(0)))?;
                levels.as_ref().map_or(Ok(()), snapshot_of_counters)
            }
            // A failed allocation may have requested any size.
            EventKind::Freed { .. } | EventKind::Failed { .. } | EventKind::Marked(_) => Ok(()),
        }
    }

    fn change(&mut self, change: &FollowedChange) -> Result<(), RefusalReason> {
        time(change.before)?;
        time(change.after)?;
        change.live.into_iter().try_for_each(signed_level)?;
        for delta in [&change.small, &change.large] {
            // All fields, so that new ones get checked.
            let &CounterDelta {
                allocations: a,
                frees: b,
                allocated_bytes: c,
                freed_bytes: d,
                requested_bytes: e,
                freed_requested_bytes: f,
            } = delta;
            for number in [a, b, c, d, e, f] {
                self.allocated(number.unsigned_abs())?;
            }
        }
        Ok(())
    }

    fn keyframe(&mut self, keyframe: &Keyframe) -> Result<(), RefusalReason> {
        time(keyframe.time)?;
        for source in &keyframe.allocation_sources {
            weights(source)?;
        }
        keyframe.memory.iter().try_for_each(|memory| self.keyframe_memory(memory))
    }

    fn keyframe_memory(&mut self, memory: &KeyframeMemory) -> Result<(), RefusalReason> {
        time(memory.mapped.unwrap_or_default())?;
        memory.levels.as_ref().map_or(Ok(()), snapshot_of_counters)?;
        self.allocated(memory.freed_since)?;
        let mut sums = [0; 3];
        for block in &memory.blocks {
            time(block.allocated_at)?;
            region(block.address, block.size)?;
            let sizes = [block.size, block.requested, block.stands_for];
            for (sum, size) in sums.iter_mut().zip(sizes) {
                add(sum, size)?;
            }
            self.allocated(block.size.max(block.stands_for))?;
        }
        Ok(())
    }
}

fn below(number: u64, limit: u64, why: RefusalReason) -> Result<(), RefusalReason> {
    if number <= limit { Ok(()) } else { Err(why) }
}

fn time(time: Nanos) -> Result<(), RefusalReason> {
    below(time.0, MAX_TIME, TIME)
}

fn level(number: u64) -> Result<(), RefusalReason> {
    below(number, MAX_LEVEL, SIZE)
}

fn signed_level(number: i64) -> Result<(), RefusalReason> {
    level(number.unsigned_abs())
}

fn signed_total(number: i64) -> Result<(), RefusalReason> {
    below(number.unsigned_abs(), MAX_TOTAL, TOTAL)
}

/// In fractions of a byte.
fn add_weight(sum: &mut u64, weight: u64) -> Result<(), RefusalReason> {
    *sum = sum.saturating_add(weight);
    below(*sum, MAX_TOTAL, SIZE)
}

fn add(sum: &mut u64, size: u64) -> Result<(), RefusalReason> {
    *sum = sum.saturating_add(size);
    level(*sum)
}

fn region(address: u64, size: u64) -> Result<(), RefusalReason> {
    level(size)?;
    if address.checked_add(size).is_some() { Ok(()) } else { Err(ADDRESS) }
}

fn lines(definition: &Definition) -> Result<(), RefusalReason> {
    let line = match definition {
        Definition::Function(_, function) => function.first_line.max(function.last_line),
        Definition::Frame(_, frame) => frame.line,
        Definition::Stack(..)
        | Definition::Thread(..)
        | Definition::Site(..)
        | Definition::Reset => 0,
    };
    if line <= MAX_LINE { Ok(()) } else { Err(LINE) }
}

fn stat(stat: &Stat) -> Result<(), RefusalReason> {
    let Stat { current, peak, allocated, freed } = *stat;
    [current, peak].into_iter().try_for_each(signed_level)?;
    [allocated, freed].into_iter().try_for_each(signed_total)
}

fn all_counters(counters: &AllocatorCounters) -> Result<(), RefusalReason> {
    for metric in Metric::ALL {
        for pool in [Pool::All, Pool::Small, Pool::Large] {
            stat(&counters.stats[metric as usize][pool as usize])?;
        }
    }
    [counters.oversize_allocations, counters.oversize_segments].iter().try_for_each(stat)?;
    // The split size is a setting, by default the largest number.
    let optional =
        [counters.num_sync_all_streams, counters.num_device_alloc, counters.num_device_free];
    [counters.num_alloc_retries, counters.num_ooms]
        .into_iter()
        .chain(optional.into_iter().flatten())
        .try_for_each(signed_total)
}

fn snapshot_of_counters(levels: &CounterSnapshot) -> Result<(), RefusalReason> {
    let CounterSnapshot { allocated, peak, reserved, active } = *levels;
    [allocated, peak, reserved, active].into_iter().try_for_each(signed_level)
}

fn snapshot(snapshot: &AllocatorSnapshot) -> Result<(), RefusalReason> {
    time(snapshot.time)?;
    if let SnapshotConsistency::Degraded { allocated_in_blocks, allocated_counter } =
        snapshot.consistency
    {
        level(allocated_in_blocks)?;
        level(allocated_counter)?;
    }
    let (mut segments, mut blocks, mut requested) = (0, 0, 0);
    for segment in &snapshot.segments {
        region(segment.address, segment.size)?;
        level(segment.granule)?;
        add(&mut segments, segment.size)?;
        for block in &segment.blocks {
            region(block.address, block.size)?;
            add(&mut blocks, block.size)?;
            add(&mut requested, block.requested)?;
        }
    }
    Ok(())
}

fn usage(usage: &DeviceUsage) -> Result<(), RefusalReason> {
    time(usage.time)?;
    let process = match usage.process {
        ProcessUsage::Bytes(bytes) => bytes,
        ProcessUsage::Unknown(_) => 0,
    };
    [usage.total, usage.used, usage.free, usage.reserved.unwrap_or(0), process]
        .into_iter()
        .try_for_each(level)
}

fn ownership(owners: &OwnershipBreakdown) -> Result<(), RefusalReason> {
    time(owners.time)?;
    time(owners.age)?;
    time(owners.pause.unwrap_or_default())?;
    for device in &owners.devices {
        let mut sum = 0;
        for size in [device.allocated, device.rounding, device.without_tensor] {
            level(size)?;
        }
        level(device.results.unwrap_or(0))?;
        let mut count = 0;
        for held in &device.held {
            add(&mut sum, held.bytes)?;
            add(&mut count, held.count)?;
        }
    }
    let (mut unnamed, mut blocks, mut shares) = (0, 0, 0);
    for block in &owners.unnamed_blocks {
        region(block.address, block.bytes)?;
        add(&mut unnamed, block.bytes)?;
    }
    for block in &owners.blocks {
        region(block.address, block.size)?;
        add(&mut blocks, block.size)?;
        block.shares.iter().try_for_each(|(_, bytes)| add(&mut shares, *bytes))?;
    }
    for reference in &owners.retained {
        let mut freed = 0;
        for one in &reference.frees {
            add(&mut freed, one.at_once)?;
            add(&mut freed, one.after_collect)?;
        }
    }
    Ok(())
}

fn weights(source: &crate::model::AllocationSource) -> Result<(), RefusalReason> {
    use crate::model::AllocationSource as Source;
    let mut sum = 0;
    match source {
        Source::BeforeOwned(owners) => {
            owners.iter().try_for_each(|(_, weight)| add_weight(&mut sum, *weight))
        }
        Source::Observed { shares, span, .. } => {
            time(span.unwrap_or_default())?;
            shares.iter().try_for_each(|share| add_weight(&mut sum, share.weight))
        }
        Source::Before | Source::NoEvent | Source::Lost | Source::NotTaken | Source::Site(_) => {
            Ok(())
        }
    }
}

fn end(end: &RecordingEnd) -> Result<(), RefusalReason> {
    time(end.time)?;
    let totals = &end.totals;
    let counts = [
        totals.ticks,
        totals.late,
        totals.stacks,
        totals.torn,
        totals.snapshots_consistent,
        totals.snapshots_degraded,
    ];
    counts.into_iter().try_for_each(level)?;
    if let Some(exact) = totals.exact {
        [exact.allocations, exact.frees, exact.lost, exact.truncated]
            .into_iter()
            .chain([exact.borrowed, exact.faulted, exact.unknown, exact.no_python])
            .chain([exact.native, exact.native_lost])
            .try_for_each(level)?;
    }
    totals.follow.as_ref().map_or(Ok(()), followed)
}

fn followed(totals: &FollowTotals) -> Result<(), RefusalReason> {
    [totals.polling_nanos, totals.cpu_nanos, totals.slow_poll_nanos]
        .into_iter()
        .try_for_each(|nanos| time(Nanos(nanos)))?;
    [totals.polls, totals.changes, totals.single_changes, totals.steady_changes, totals.held_back]
        .into_iter()
        .try_for_each(level)
}
