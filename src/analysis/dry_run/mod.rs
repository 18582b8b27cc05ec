//! A watched run's own allocation history, with its marks: the peak, its phase and what held it.

mod holders;
mod phases;
mod replay;

pub use holders::{RunHolder, RunOwner};

use crate::analysis::phases::RunPhase;
use crate::model::{
    AllocationHistory, CudaIndex, DeviceHistory, HistoryFrame, OwnershipSnapshot, RunMark,
};

use holders::HolderSums;
use phases::PhaseClock;
use replay::HistoryReplay;

/// A moment of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunInstant {
    /// The highest level; of equal ones the last, whose blocks are best known.
    Peak,
    /// The last out-of-memory error.
    OutOfMemory,
}

/// A device at one moment of the run.
#[derive(Debug, Clone)]
pub struct RunMoment {
    /// What the program did.
    pub phase: RunPhase,
    /// The step in progress, from 1.
    pub step: u64,
    /// Bytes of the live blocks.
    pub allocated: u64,
    /// The program's line that allocated last, or asked for more.
    pub place: Option<HistoryFrame>,
    /// What was asked for, at an out-of-memory error.
    pub asked: Option<u64>,
    /// Largest first; they add up to `allocated`.
    pub holders: Vec<RunHolder>,
}

/// What a run shows about one device.
#[derive(Debug, Clone, Copy)]
pub struct RunFacts<'a> {
    /// Its history.
    pub history: &'a AllocationHistory,
    /// Its marks, in order.
    pub marks: &'a [RunMark],
    /// Owners when the history ended.
    pub owners: Option<&'a OwnershipSnapshot>,
    /// Allocations that PyTorch counted.
    pub allocations: u64,
}

/// The device at that moment; `None` if the history lacks it.
pub fn run_moment(
    facts: RunFacts<'_>,
    device: CudaIndex,
    instant: RunInstant,
) -> Option<RunMoment> {
    let of_device = facts.history.devices.iter().find(|it| it.device == device)?;
    let replay = HistoryReplay::of(of_device, facts.allocations);
    let at = match instant {
        RunInstant::Peak => replay.peak()?,
        RunInstant::OutOfMemory => replay.out_of_memory()?,
    };
    let clock = PhaseClock::new(facts, of_device, &replay);
    let (live, last) = (replay.live_at(at), replay.live_at(of_device.events.len()));
    let mut sums = HolderSums::new(facts, &clock);
    for (address, block) in &live {
        let is_kept = last.get(address).is_some_and(|kept| kept.event == block.event);
        sums.add(*address, block, is_kept);
    }
    let event = of_device.events.get(at.checked_sub(1)?)?;
    let ordinal = replay.ordinal(at - 1);
    let place = clock.line(event, ordinal);
    Some(RunMoment {
        phase: clock.phase(event, ordinal),
        step: clock.step(ordinal),
        allocated: live.values().map(|block| block.size).sum(),
        place,
        asked: (instant == RunInstant::OutOfMemory).then_some(event.size),
        holders: sums.sorted(),
    })
}

/// Innermost frame first.
pub(super) fn stack_of(history: &AllocationHistory, stack: Option<u32>) -> Vec<&HistoryFrame> {
    let stack = stack.and_then(|stack| history.stacks.get(stack as usize));
    let frames = stack.into_iter().flat_map(|stack| &stack.frames);
    frames.filter_map(|frame| history.frames.get(*frame as usize)).collect()
}

/// How many of the first events are not in the history.
pub(super) fn lost_before(device: &DeviceHistory, counted: u64) -> u64 {
    let seen = device.events.iter().filter(|it| it.action == crate::model::HistoryAction::Alloc);
    counted.saturating_sub(seen.count() as u64)
}

#[cfg(test)]
mod tests;
