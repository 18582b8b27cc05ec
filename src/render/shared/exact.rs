//! The head of an exact recording.

use super::header::time_range;
use super::label::one_line;
use crate::analysis::{ExactProfile, MemoryGroup, Profile};
use crate::model::{CudaIndex, EventTotals, FreeTracking, ProbeBackend, ReaderKind};
use crate::model::{bytes, count, number};

/// How events are obtained.
pub fn way(way: ProbeBackend) -> &'static str {
    match way {
        ProbeBackend::UprobeMulti => "uprobe_multi",
        ProbeBackend::PerfUprobes => "perf uprobes",
        ProbeBackend::PerfSamples => "perf samples, stacks from sampling",
    }
}

/// The kind of memory, for titles.
pub fn memory_name(kind: MemoryGroup) -> &'static str {
    match kind {
        MemoryGroup::Torch => "GPU memory",
        MemoryGroup::Driver => "GPU memory from the driver",
        MemoryGroup::Physical => "physical GPU memory from the driver (cuMemCreate)",
        MemoryGroup::Managed => "managed memory",
        MemoryGroup::Pinned => "page-locked host memory",
    }
}

/// A segment of PyTorch's is an allocation of the driver's.
fn counts(profile: &Profile, exact: &ExactProfile) -> String {
    let Some(totals) = profile.end().and_then(|end| end.totals.exact) else {
        return format!("{} events", count(exact.events()));
    };
    let native = match totals.native + totals.native_lost {
        0 => String::new(),
        _ => format!(" ({} with native frames)", count(totals.native)),
    };
    let counts = exact.counts();
    let of_driver = [counts.driver_allocations, counts.driver_frees].map(count);
    match (counts.allocations + counts.frees, counts.driver_allocations + counts.driver_frees) {
        (1.., 1..) => {
            let allocations = number(counts.allocations, "allocation");
            let frees = number(counts.frees, "free");
            let [more, freed] = of_driver;
            format!(
                "{allocations}{native} and {frees} by PyTorch, {more} and {freed} by the driver"
            )
        }
        _ => {
            let [allocations, frees] = [totals.allocations, totals.frees].map(count);
            format!("{allocations} allocations{native}, {frees} frees")
        }
    }
}

pub(crate) fn events_line(
    profile: &Profile,
    exact: &ExactProfile,
    device: Option<CudaIndex>,
) -> String {
    let mut text = format!(
        "{}, exact ({}): {}, {}",
        time_range(profile),
        way(exact.exact().backend),
        counts(profile, exact),
        losses(profile)
    );
    text += &match device.and_then(|device| exact.agreement(device)) {
        Some(agreement) if agreement.equal == agreement.checks => {
            format!("; all {} comparisons with the allocator's counters equal", agreement.checks)
        }
        Some(agreement) => format!(
            "; {} of {} comparisons with the allocator's counters equal",
            agreement.equal, agreement.checks
        ),
        None if exact.has_torch() => "; not compared with the allocator's counters".to_owned(),
        None => String::new(),
    };
    if let Some(balance) = device.and_then(|device| exact.balance(device)).filter(|b| b.is_even()) {
        text += &format!("; bytes allocated and freed equal too ({} comparisons)", balance.checks);
    }
    text
}

fn losses(profile: &Profile) -> String {
    let mut text = format!("{} lost", count(profile.losses().late(ReaderKind::Events)));
    let Some(EventTotals { truncated, borrowed, faulted, unknown, no_python, native_lost, .. }) =
        profile.end().and_then(|end| end.totals.exact)
    else {
        return text;
    };
    for (number, what) in [
        (truncated, "stacks truncated"),
        (borrowed, "stacks borrowed from the main thread"),
        (faulted, "stacks not wholly in memory"),
        (unknown, "stacks unknown"),
        (no_python, "without Python"),
        (native_lost, "without the native frames that were asked for"),
    ] {
        if number > 0 {
            text += &format!(", {} {what}", count(number));
        }
    }
    text
}

/// Options that lower the detail, what is not covered, other memory.
pub(crate) fn exact_notes(exact: &ExactProfile) -> Vec<String> {
    let mut notes = Vec::new();
    let options = exact.exact();
    if options.frees == FreeTracking::Snapshots {
        notes.push(
            "frees are known only from snapshots: the moment shown is the largest snapshot"
                .to_owned(),
        );
    }
    if options.stacks_from > 0 {
        notes.push(format!("allocations under {} have no stack", bytes(options.stacks_from)));
    }
    if options.stacks_every > 0 {
        notes.push(format!(
            "bytes of stacks are estimated from {} sampled ones, one for {} allocated on average; totals are exact",
            count(exact.with_stack()),
            bytes(options.stacks_every)
        ));
    }
    notes.extend(options.uncovered.iter().map(|text| one_line(text)));
    for memory in
        [MemoryGroup::Driver, MemoryGroup::Physical, MemoryGroup::Managed, MemoryGroup::Pinned]
    {
        if let Some((height, now)) = exact.other(memory) {
            notes.push(format!(
                "{} allocated during the recording: {} at most, {} at the end",
                memory_name(memory),
                bytes(height),
                bytes(now)
            ));
        }
    }
    let refused = exact.refused();
    if refused.count > 0 {
        notes.push(format!(
            "the driver refused {} allocations, the largest of {}",
            count(refused.count),
            bytes(refused.largest)
        ));
    }
    let [contexts, modules, libraries] = exact.marks();
    if contexts + modules + libraries > 0 {
        notes.push(format!(
            "{} contexts created or retained, {} modules and {} libraries loaded: device memory of unknown size",
            count(contexts),
            count(modules),
            count(libraries)
        ));
    }
    notes
}
