//! Rare records of exact recordings, as bincode structs.

use bincode::{BorrowDecode, Decode, Encode};

use super::MalformedPayload;
use crate::model;

/// Its number, the next one, precedes it.
#[derive(Encode, BorrowDecode)]
pub(crate) struct WireAllocationSite<'a> {
    pub(crate) number: u32,
    pub(crate) thread: u32,
    pub(crate) stack: Option<u32>,
    source: u8,
    truncated: bool,
    node: Option<&'a str>,
    pub(crate) forward: Option<u32>,
}

/// By their number in a trace.
const SOURCES: [model::StackSource; 7] = [
    model::StackSource::Own,
    model::StackSource::Backward,
    model::StackSource::Borrowed,
    model::StackSource::NoPython,
    model::StackSource::NotTaken,
    model::StackSource::Unknown,
    model::StackSource::Sampled,
];

impl<'a> WireAllocationSite<'a> {
    pub(crate) fn new(number: u32, site: &'a model::AllocationSite) -> Self {
        let source = SOURCES.iter().position(|&s| s == site.source);
        WireAllocationSite {
            number,
            thread: site.thread.0,
            stack: site.stack.map(|s| s.0),
            source: source.unwrap_or_default() as u8,
            truncated: site.truncated,
            node: site.node.as_deref(),
            forward: site.forward.map(|s| s.0),
        }
    }

    /// With the reader's numbers.
    pub(crate) fn with(
        self,
        thread: model::ThreadId,
        stack: Option<model::StackId>,
        forward: Option<model::StackId>,
        native: model::NativeFrames,
    ) -> Result<model::AllocationSite, MalformedPayload> {
        let source = SOURCES.get(usize::from(self.source));
        Ok(model::AllocationSite {
            thread,
            stack,
            source: *source.ok_or(MalformedPayload("a stack of an unknown source"))?,
            truncated: self.truncated,
            node: self.node.map(Into::into),
            forward,
            native,
        })
    }
}

/// `None`: native frames not requested; `Some(None)`: lost.
pub(crate) fn wire_native(native: model::NativeFrames) -> Option<Option<u32>> {
    match native {
        model::NativeFrames::NotTaken => None,
        model::NativeFrames::Lost => Some(None),
        model::NativeFrames::Stack(stack) => Some(Some(stack.0)),
    }
}

#[derive(Encode, BorrowDecode)]
enum WireProbeBackend {
    UprobeMulti,
    PerfUprobes,
    PerfSamples,
}

#[derive(Encode, BorrowDecode)]
enum WireFreeTracking {
    Events,
    Stacks,
    Snapshots,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireExactSettings<'a> {
    backend: WireProbeBackend,
    frees: WireFreeTracking,
    stacks_from: u64,
    stacks_every: u64,
    backward_lines: bool,
    probes: Vec<&'a str>,
    uncovered: Vec<&'a str>,
}

impl<'a> From<&'a model::ExactSettings> for WireExactSettings<'a> {
    fn from(exact: &'a model::ExactSettings) -> Self {
        WireExactSettings {
            backend: match exact.backend {
                model::ProbeBackend::UprobeMulti => WireProbeBackend::UprobeMulti,
                model::ProbeBackend::PerfUprobes => WireProbeBackend::PerfUprobes,
                model::ProbeBackend::PerfSamples => WireProbeBackend::PerfSamples,
            },
            frees: match exact.frees {
                model::FreeTracking::Events => WireFreeTracking::Events,
                model::FreeTracking::Stacks => WireFreeTracking::Stacks,
                model::FreeTracking::Snapshots => WireFreeTracking::Snapshots,
            },
            stacks_from: exact.stacks_from,
            stacks_every: exact.stacks_every,
            backward_lines: exact.backward_lines,
            probes: exact.probes.iter().map(AsRef::as_ref).collect(),
            uncovered: exact.uncovered.iter().map(AsRef::as_ref).collect(),
        }
    }
}

impl WireExactSettings<'_> {
    /// Three fields follow it.
    pub(crate) fn at(
        self,
        time: model::Nanos,
        knows_backward: bool,
        starts_empty: bool,
        native_from: Option<u64>,
    ) -> model::ExactSettings {
        model::ExactSettings {
            time,
            backend: match self.backend {
                WireProbeBackend::UprobeMulti => model::ProbeBackend::UprobeMulti,
                WireProbeBackend::PerfUprobes => model::ProbeBackend::PerfUprobes,
                WireProbeBackend::PerfSamples => model::ProbeBackend::PerfSamples,
            },
            frees: match self.frees {
                WireFreeTracking::Events => model::FreeTracking::Events,
                WireFreeTracking::Stacks => model::FreeTracking::Stacks,
                WireFreeTracking::Snapshots => model::FreeTracking::Snapshots,
            },
            stacks_from: self.stacks_from,
            stacks_every: self.stacks_every,
            backward_lines: self.backward_lines,
            knows_backward,
            starts_empty,
            native_from,
            probes: self.probes.into_iter().map(Into::into).collect(),
            uncovered: self.uncovered.into_iter().map(Into::into).collect(),
        }
    }
}

#[derive(Encode, Decode)]
pub(crate) struct WireCounterCheck {
    device: u32,
    allocations: i64,
    frees: Option<i64>,
    requested: i64,
}

impl From<&model::CounterCheck> for WireCounterCheck {
    fn from(counter_check: &model::CounterCheck) -> Self {
        WireCounterCheck {
            device: counter_check.device.0,
            allocations: counter_check.allocations,
            frees: counter_check.frees,
            requested: counter_check.requested,
        }
    }
}

impl WireCounterCheck {
    pub(crate) fn at(self, time: model::Nanos) -> model::CounterCheck {
        model::CounterCheck {
            time,
            device: model::CudaIndex(self.device),
            allocations: self.allocations,
            frees: self.frees,
            requested: self.requested,
        }
    }
}

/// Follows the end's fields.
#[derive(Encode, Decode)]
pub(crate) struct WireEventTotals {
    allocations: u64,
    frees: u64,
    lost: u64,
    truncated: u64,
    borrowed: u64,
    faulted: u64,
    unknown: u64,
    no_python: u64,
}

impl From<&model::EventTotals> for WireEventTotals {
    fn from(totals: &model::EventTotals) -> Self {
        WireEventTotals {
            allocations: totals.allocations,
            frees: totals.frees,
            lost: totals.lost,
            truncated: totals.truncated,
            borrowed: totals.borrowed,
            faulted: totals.faulted,
            unknown: totals.unknown,
            no_python: totals.no_python,
        }
    }
}

/// Native frames' totals follow at the record's end.
impl From<WireEventTotals> for model::EventTotals {
    fn from(totals: WireEventTotals) -> Self {
        model::EventTotals {
            allocations: totals.allocations,
            frees: totals.frees,
            lost: totals.lost,
            truncated: totals.truncated,
            borrowed: totals.borrowed,
            faulted: totals.faulted,
            unknown: totals.unknown,
            no_python: totals.no_python,
            native: 0,
            native_lost: 0,
        }
    }
}
