//! Visits every number of a record that is a size, count or time, to bring it into a range or to
//! forge it.

use memspy::model::*;

/// A number and its meaning.
pub enum Number<'a> {
    Time(&'a mut u64),
    /// At one moment.
    Size(&'a mut u64),
    SignedSize(&'a mut i64),
    /// Since the process or the recording started.
    Total(&'a mut u64),
    SignedTotal(&'a mut i64),
    Address(&'a mut u64),
    Line(&'a mut u32),
    /// Any value is valid.
    Any(&'a mut u64),
    AnySigned(&'a mut i64),
}

type Visit<'v> = dyn FnMut(Number<'_>) + 'v;

fn time(nanos: &mut Nanos, visit: &mut Visit<'_>) {
    visit(Number::Time(&mut nanos.0));
}

fn sizes<'a>(sizes: impl IntoIterator<Item = &'a mut u64>, visit: &mut Visit<'_>) {
    sizes.into_iter().for_each(|size| visit(Number::Size(size)));
}

fn totals<'a>(totals: impl IntoIterator<Item = &'a mut i64>, visit: &mut Visit<'_>) {
    totals.into_iter().for_each(|total| visit(Number::SignedTotal(total)));
}

fn stat(stat: &mut Stat, visit: &mut Visit<'_>) {
    let Stat { current, peak, allocated, freed } = stat;
    visit(Number::SignedSize(current));
    visit(Number::SignedSize(peak));
    totals([allocated, freed], visit);
}

fn levels(levels: &mut CounterSnapshot, visit: &mut Visit<'_>) {
    let CounterSnapshot { allocated, peak, reserved, active } = levels;
    for level in [allocated, peak, reserved, active] {
        visit(Number::SignedSize(level));
    }
}

fn event(event: &mut Event, visit: &mut Visit<'_>) {
    let Event { time: at, change, site: _ } = event;
    time(at, visit);
    match change {
        EventKind::Allocated { memory_kind: _, address, size, levels: after, block } => {
            visit(Number::Address(address));
            visit(Number::Size(size));
            if let Some(block) = block {
                visit(Number::Size(block));
            }
            if let Some(after) = after {
                levels(after, visit);
            }
        }
        EventKind::Freed { memory_kind: _, address, in_backward: _ } => {
            visit(Number::Address(address));
        }
        EventKind::Failed { memory_kind: _, size, code: _ } => visit(Number::Any(size)),
        EventKind::Marked(_) => {}
    }
}

fn change(change: &mut FollowedChange, visit: &mut Visit<'_>) {
    let FollowedChange { before, after, device: _, small, large, live, .. } = change;
    time(before, visit);
    time(after, visit);
    for delta in [small, large] {
        let CounterDelta {
            allocations,
            frees,
            allocated_bytes,
            freed_bytes,
            requested_bytes,
            freed_requested_bytes,
        } = delta;
        totals([allocations, frees, allocated_bytes, freed_bytes], visit);
        totals([requested_bytes, freed_requested_bytes], visit);
    }
    live.iter_mut().for_each(|live| visit(Number::SignedSize(live)));
}

fn snapshot(snapshot: &mut AllocatorSnapshot, visit: &mut Visit<'_>) {
    let AllocatorSnapshot { time: at, device: _, retries: _, consistency, segments } = snapshot;
    time(at, visit);
    if let SnapshotConsistency::Degraded { allocated_in_blocks, allocated_counter } = consistency {
        sizes([allocated_in_blocks, allocated_counter], visit);
    }
    for segment in segments {
        visit(Number::Address(&mut segment.address));
        sizes([&mut segment.size, &mut segment.granule], visit);
        visit(Number::Any(&mut segment.stream));
        for Block { address, size, requested, state: _ } in &mut segment.blocks {
            visit(Number::Address(address));
            sizes([size, requested], visit);
        }
    }
}

fn ownership(owners: &mut OwnershipBreakdown, visit: &mut Visit<'_>) {
    let OwnershipBreakdown { time: at, pause, devices, age, unnamed_blocks, blocks, retained } =
        owners;
    for freed in retained.iter_mut().flat_map(|reference| &mut reference.frees) {
        sizes([&mut freed.at_once, &mut freed.after_collect], visit);
    }
    time(at, visit);
    time(age, visit);
    pause.iter_mut().for_each(|pause| time(pause, visit));
    for device in devices {
        let DeviceOwners { device: _, allocated, rounding, without_tensor, results, held } = device;
        sizes([allocated, rounding, without_tensor], visit);
        sizes(results, visit);
        for held in held {
            sizes([&mut held.bytes, &mut held.count], visit);
        }
    }
    for block in unnamed_blocks {
        visit(Number::Address(&mut block.address));
        visit(Number::Size(&mut block.bytes));
    }
    for block in blocks {
        // Owners hold at most the block's size: all are scaled alike.
        visit(Number::Address(&mut block.address));
        block.shares.iter_mut().for_each(|(_, bytes)| visit(Number::Size(bytes)));
        visit(Number::Size(&mut block.size));
        let shares = block.shares.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        block.size = block.size.max(shares);
    }
}

fn keyframe(keyframe: &mut Keyframe, visit: &mut Visit<'_>) {
    let Keyframe { time: at, allocation_sources, memory } = keyframe;
    time(at, visit);
    for source in allocation_sources {
        match source {
            AllocationSource::BeforeOwned(owners) => {
                owners.iter_mut().for_each(|(_, weight)| visit(Number::Total(weight)));
            }
            AllocationSource::Observed { shares, span, .. } => {
                shares.iter_mut().for_each(|share| visit(Number::Total(&mut share.weight)));
                span.iter_mut().for_each(|span| time(span, visit));
            }
            AllocationSource::Before
            | AllocationSource::NoEvent
            | AllocationSource::Lost
            | AllocationSource::NotTaken
            | AllocationSource::Site(_) => {}
        }
    }
    for memory in memory {
        let KeyframeMemory { memory_kind: _, mapped, levels: at_end, freed_since, blocks } = memory;
        mapped.iter_mut().for_each(|mapped| time(mapped, visit));
        at_end.iter_mut().for_each(|at_end| levels(at_end, visit));
        visit(Number::Total(freed_since));
        for block in blocks {
            visit(Number::Address(&mut block.address));
            sizes([&mut block.size, &mut block.requested, &mut block.stands_for], visit);
            time(&mut block.allocated_at, visit);
        }
    }
}

fn end(end: &mut RecordingEnd, visit: &mut Visit<'_>) {
    time(&mut end.time, visit);
    let RecordingTotals {
        ticks,
        late,
        stacks,
        torn,
        snapshots_consistent,
        snapshots_degraded,
        exact,
        follow,
        cost: _,
    } = &mut end.totals;
    sizes([ticks, late, stacks, torn, snapshots_consistent, snapshots_degraded], visit);
    if let Some(exact) = exact {
        let EventTotals {
            allocations,
            frees,
            lost,
            truncated,
            borrowed,
            faulted,
            unknown,
            no_python,
            native,
            native_lost,
        } = exact;
        sizes([allocations, frees, lost, truncated, borrowed, faulted, unknown, no_python], visit);
        sizes([native, native_lost], visit);
    }
    if let Some(follow) = follow {
        let FollowTotals {
            polls,
            polling_nanos,
            cpu_nanos,
            slow_poll_nanos,
            changes,
            single_changes,
            steady_changes,
            held_back,
        } = follow;
        for nanos in [polling_nanos, cpu_nanos, slow_poll_nanos] {
            visit(Number::Time(nanos));
        }
        sizes([polls, changes, single_changes, steady_changes, held_back], visit);
    }
}

/// Calls `visit` for every number of `record`.
pub fn numbers(record: &mut Record, visit: &mut Visit<'_>) {
    match record {
        Record::Start(start) => visit(Number::Time(&mut start.unix_nanos)),
        Record::Runtime(runtime) => time(&mut runtime.time, visit),
        Record::Definition(Definition::Function(_, function)) => {
            visit(Number::Line(&mut function.first_line));
            visit(Number::Line(&mut function.last_line));
        }
        Record::Definition(Definition::Frame(_, frame)) => visit(Number::Line(&mut frame.line)),
        Record::Definition(Definition::Thread(_, thread)) => {
            visit(Number::Any(&mut thread.python_id));
            thread.os_id.iter_mut().for_each(|id| visit(Number::Any(id)));
        }
        Record::Definition(Definition::Stack(..) | Definition::Site(..) | Definition::Reset) => {}
        Record::Source(source) => visit(Number::Line(&mut source.first_line)),
        Record::Device(device) => sizes(&mut device.total, visit),
        Record::Sample(sample) => time(&mut sample.time, visit),
        Record::Counters { time: at, device: _, counters } => {
            time(at, visit);
            counters.stats.iter_mut().flatten().for_each(|each| stat(each, visit));
            stat(&mut counters.oversize_allocations, visit);
            stat(&mut counters.oversize_segments, visit);
            totals([&mut counters.num_alloc_retries, &mut counters.num_ooms], visit);
            totals(&mut counters.num_sync_all_streams, visit);
            totals(&mut counters.num_device_alloc, visit);
            totals(&mut counters.num_device_free, visit);
            counters.max_split_size.iter_mut().for_each(|n| visit(Number::AnySigned(n)));
        }
        Record::Snapshot(map) => snapshot(map, visit),
        Record::Usage(usage) => {
            time(&mut usage.time, visit);
            sizes([&mut usage.total, &mut usage.used, &mut usage.free], visit);
            sizes(&mut usage.reserved, visit);
            if let ProcessUsage::Bytes(bytes) = &mut usage.process {
                visit(Number::Size(bytes));
            }
        }
        Record::Missed(missed) => {
            time(&mut missed.time, visit);
            visit(Number::Size(&mut missed.count));
        }
        Record::ExactSettings(settings) => {
            time(&mut settings.time, visit);
            visit(Number::Any(&mut settings.stacks_from));
            visit(Number::Any(&mut settings.stacks_every));
        }
        Record::Events(batch) => batch.events.iter_mut().for_each(|each| event(each, visit)),
        Record::Followed(batch) => batch.changes.iter_mut().for_each(|each| change(each, visit)),
        Record::CounterCheck(check) => {
            time(&mut check.time, visit);
            totals([&mut check.allocations, &mut check.requested], visit);
            totals(&mut check.frees, visit);
        }
        Record::Ownership(owners) => ownership(owners, visit),
        Record::Step(step) => {
            time(&mut step.time, visit);
            visit(Number::Any(&mut step.step));
            step.epoch.iter_mut().for_each(|epoch| visit(Number::Any(epoch)));
            step.uncertainty.iter_mut().for_each(|nanos| time(nanos, visit));
        }
        Record::Keyframe(each) => keyframe(each, visit),
        Record::TriggerFired(fired) => time(&mut fired.time, visit),
        Record::OomException(exception) => time(&mut exception.time, visit),
        Record::Gap(gap) => {
            time(&mut gap.from, visit);
            time(&mut gap.to, visit);
        }
        Record::End(each) => end(each, visit),
    }
}

/// Brings every number into the range that a trace reader accepts.
pub fn bring_into_range(record: &mut Record) {
    numbers(record, &mut |number| match number {
        Number::Time(n) => *n %= 1 << 59,
        Number::Size(n) => *n %= 1 << 44,
        Number::SignedSize(n) => *n %= 1 << 44,
        Number::Total(n) => *n %= 1 << 52,
        Number::SignedTotal(n) => *n %= 1 << 52,
        Number::Address(n) => *n %= 1 << 63,
        Number::Line(n) => *n %= 1 << 31,
        Number::Any(_) | Number::AnySigned(_) => {}
    });
}
