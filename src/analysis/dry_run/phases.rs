//! What the program did at an allocation, by marks and stacks.

use super::replay::HistoryReplay;
use super::{RunFacts, stack_of};
use crate::analysis::phases::{PhaseSigns, RunPhase};
use crate::model::{
    CudaIndex, DeviceHistory, HistoryAction, HistoryEvent, HistoryFrame, RunMarkKind, is_library,
};

/// The state between two marks.
#[derive(Debug, Clone, Copy, Default)]
struct MarkedState {
    signs: PhaseSigns,
    /// Optimizer steps that have ended.
    steps: u64,
    /// The mark with the stack that called `backward()`.
    caller: Option<usize>,
}

pub(super) struct PhaseClock<'a> {
    facts: RunFacts<'a>,
    device: CudaIndex,
    /// After each mark.
    states: Vec<MarkedState>,
    /// By number of the stack.
    stacks: Vec<PhaseSigns>,
    /// The number of the first allocation inside a module's call.
    first_call: u64,
}

impl<'a> PhaseClock<'a> {
    pub(super) fn new(
        facts: RunFacts<'a>,
        device: &DeviceHistory,
        replay: &HistoryReplay<'_>,
    ) -> PhaseClock<'a> {
        let mut state = MarkedState::default();
        let states = facts.marks.iter().enumerate().map(|(at, mark)| {
            match mark.kind {
                RunMarkKind::Backward => (state.signs.is_backward, state.caller) = (true, Some(at)),
                RunMarkKind::BackwardEnd => state.signs.is_backward = false,
                RunMarkKind::Optimizer => state.signs.is_optimizer = true,
                RunMarkKind::OptimizerEnd => {
                    state.signs.is_optimizer = false;
                    state.steps += 1;
                }
                RunMarkKind::Evaluation => state.signs.is_evaluation = true,
                RunMarkKind::Training => state.signs.is_evaluation = false,
            }
            state
        });
        let states = states.collect();
        let stacks = (0u32..facts.history.stacks.len() as u32).map(|stack| {
            let frames = stack_of(facts.history, Some(stack)).into_iter();
            PhaseSigns::of_functions(frames.map(|frame| (&*frame.name, &*frame.file)))
        });
        let mut clock = PhaseClock {
            facts,
            device: device.device,
            states,
            stacks: stacks.collect(),
            first_call: u64::MAX,
        };
        let is_call = |event: &HistoryEvent| {
            event.action == HistoryAction::Alloc && clock.signs_of(event.stack).is_call
        };
        if let Some(first) = device.events.iter().position(is_call) {
            clock.first_call = replay.ordinal(first);
        }
        clock
    }

    /// The state at an allocation.
    fn state(&self, ordinal: u64) -> MarkedState {
        let passed = self.facts.marks.partition_point(|mark| mark.before(self.device) < ordinal);
        passed.checked_sub(1).and_then(|at| self.states.get(at)).copied().unwrap_or_default()
    }

    /// The step in progress, from 1.
    pub(super) fn step(&self, ordinal: u64) -> u64 {
        self.state(ordinal).steps + 1
    }

    pub(super) fn phase(&self, event: &HistoryEvent, ordinal: u64) -> RunPhase {
        // A refused allocation has no number of its own: it follows all before it.
        let ordinal = ordinal + u64::from(event.action == HistoryAction::Oom);
        self.phase_at(event.stack, ordinal)
    }

    /// All marks are known: what nothing tells is between the calls of modules.
    pub(super) fn phase_at(&self, stack: Option<u32>, ordinal: u64) -> RunPhase {
        let is_loading = ordinal < self.first_call;
        let before_calls = PhaseSigns { is_loading, ..PhaseSigns::default() };
        let signs = self.state(ordinal).signs.and(self.signs_of(stack)).and(before_calls);
        signs.phase().unwrap_or(RunPhase::Forward)
    }

    fn signs_of(&self, stack: Option<u32>) -> PhaseSigns {
        let known = stack.and_then(|stack| self.stacks.get(stack as usize));
        known.copied().unwrap_or_default()
    }

    /// The innermost line of the program, else of all.
    pub(super) fn line(&self, event: &HistoryEvent, ordinal: u64) -> Option<HistoryFrame> {
        self.line_of(event.stack, ordinal + u64::from(event.action == HistoryAction::Oom))
    }

    pub(super) fn line_of(&self, stack: Option<u32>, ordinal: u64) -> Option<HistoryFrame> {
        let own = |frames: &[&HistoryFrame]| {
            let program = frames.iter().find(|frame| !is_library(&frame.file));
            program.or(frames.first()).map(|frame| HistoryFrame::clone(frame))
        };
        let frames = stack_of(self.facts.history, stack);
        if frames.is_empty() {
            // A thread of autograd: its caller waits.
            let state = self.state(ordinal);
            let caller = state.caller.filter(|_| state.signs.is_backward)?;
            let frames: Vec<_> = self.facts.marks.get(caller)?.stack.iter().collect();
            return own(&frames);
        }
        own(&frames)
    }
}
