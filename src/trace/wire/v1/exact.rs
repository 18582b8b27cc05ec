//! The rare records of exact recordings, as bincode structs.
//!
//! As in `rare.rs`, one definition serves both directions, and fields may only be appended.

use bincode::{BorrowDecode, Decode, Encode};

use super::Malformed;
use crate::model;

/// A place that allocates. Written with its number, the next one.
#[derive(Encode, BorrowDecode)]
pub(crate) struct Site<'a> {
    pub(crate) number: u32,
    pub(crate) thread: u32,
    pub(crate) stack: Option<u32>,
    source: u8,
    truncated: bool,
    node: Option<&'a str>,
    pub(crate) forward: Option<u32>,
}

/// Ways to come by a stack, by their number in a trace.
const SOURCES: [model::StackSource; 7] = [
    model::StackSource::Own,
    model::StackSource::Backward,
    model::StackSource::Borrowed,
    model::StackSource::NoPython,
    model::StackSource::NotTaken,
    model::StackSource::Unknown,
    model::StackSource::Sampled,
];

impl<'a> Site<'a> {
    /// `site` with its number.
    pub(crate) fn new(number: u32, site: &'a model::Site) -> Self {
        let source = SOURCES.iter().position(|&s| s == site.source);
        Site {
            number,
            thread: site.thread.0,
            stack: site.stack.map(|s| s.0),
            source: source.unwrap_or_default() as u8,
            truncated: site.truncated,
            node: site.node.as_deref(),
            forward: site.forward.map(|s| s.0),
        }
    }

    /// The site this stands for, with the reader's numbers.
    pub(crate) fn with(
        self,
        thread: model::ThreadId,
        stack: Option<model::StackId>,
        forward: Option<model::StackId>,
    ) -> Result<model::Site, Malformed> {
        let source = SOURCES.get(usize::from(self.source));
        Ok(model::Site {
            thread,
            stack,
            source: *source.ok_or(Malformed("a stack come by in an unknown way"))?,
            truncated: self.truncated,
            node: self.node.map(Into::into),
            forward,
        })
    }
}

#[derive(Encode, BorrowDecode)]
enum Way {
    UprobeMulti,
    PerfUprobes,
    PerfSamples,
}

#[derive(Encode, BorrowDecode)]
enum Frees {
    Events,
    Stacks,
    Maps,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct Exact<'a> {
    way: Way,
    frees: Frees,
    stacks_from: u64,
    stacks_every: u64,
    backward_lines: bool,
    probes: Vec<&'a str>,
    uncovered: Vec<&'a str>,
}

impl<'a> From<&'a model::Exact> for Exact<'a> {
    fn from(exact: &'a model::Exact) -> Self {
        Exact {
            way: match exact.way {
                model::ExactWay::UprobeMulti => Way::UprobeMulti,
                model::ExactWay::PerfUprobes => Way::PerfUprobes,
                model::ExactWay::PerfSamples => Way::PerfSamples,
            },
            frees: match exact.frees {
                model::Frees::Events => Frees::Events,
                model::Frees::Stacks => Frees::Stacks,
                model::Frees::Maps => Frees::Maps,
            },
            stacks_from: exact.stacks_from,
            stacks_every: exact.stacks_every,
            backward_lines: exact.backward_lines,
            probes: exact.probes.iter().map(AsRef::as_ref).collect(),
            uncovered: exact.uncovered.iter().map(AsRef::as_ref).collect(),
        }
    }
}

impl Exact<'_> {
    /// The record this stands for; the last two fields follow it, in files that have them.
    pub(crate) fn at(
        self,
        time: model::Nanos,
        knows_backward: bool,
        starts_empty: bool,
    ) -> model::Exact {
        model::Exact {
            time,
            way: match self.way {
                Way::UprobeMulti => model::ExactWay::UprobeMulti,
                Way::PerfUprobes => model::ExactWay::PerfUprobes,
                Way::PerfSamples => model::ExactWay::PerfSamples,
            },
            frees: match self.frees {
                Frees::Events => model::Frees::Events,
                Frees::Stacks => model::Frees::Stacks,
                Frees::Maps => model::Frees::Maps,
            },
            stacks_from: self.stacks_from,
            stacks_every: self.stacks_every,
            backward_lines: self.backward_lines,
            knows_backward,
            starts_empty,
            probes: self.probes.into_iter().map(Into::into).collect(),
            uncovered: self.uncovered.into_iter().map(Into::into).collect(),
        }
    }
}

#[derive(Encode, Decode)]
pub(crate) struct Reconciled {
    device: u32,
    allocations: i64,
    frees: Option<i64>,
    requested: i64,
}

impl From<&model::Reconciled> for Reconciled {
    fn from(reconciled: &model::Reconciled) -> Self {
        Reconciled {
            device: reconciled.device.0,
            allocations: reconciled.allocations,
            frees: reconciled.frees,
            requested: reconciled.requested,
        }
    }
}

impl Reconciled {
    /// The record this stands for.
    pub(crate) fn at(self, time: model::Nanos) -> model::Reconciled {
        model::Reconciled {
            time,
            device: model::CudaIndex(self.device),
            allocations: self.allocations,
            frees: self.frees,
            requested: self.requested,
        }
    }
}

/// Follows the fields of the end, as an option.
#[derive(Encode, Decode)]
pub(crate) struct EventTotals {
    allocations: u64,
    frees: u64,
    lost: u64,
    truncated: u64,
    borrowed: u64,
    faulted: u64,
    unknown: u64,
    no_python: u64,
}

impl From<&model::EventTotals> for EventTotals {
    fn from(totals: &model::EventTotals) -> Self {
        EventTotals {
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

impl From<EventTotals> for model::EventTotals {
    fn from(totals: EventTotals) -> Self {
        model::EventTotals {
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
