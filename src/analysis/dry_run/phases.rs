//! What the program did at an allocation, by marks and stacks.

use super::replay::HistoryReplay;
use super::{RunFacts, stack_of};
use crate::model::{
    CudaIndex, DeviceHistory, HistoryAction, HistoryEvent, HistoryFrame, RunMarkKind, is_library,
};

/// What a training program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RunPhase {
    /// Before the first call of a module.
    Loading,
    /// From the first call of a module to the backward pass.
    Forward,
    /// Backward pass.
    Backward,
    /// An optimizer's step.
    Optimizer,
    /// With the model in evaluation mode.
    Evaluation,
}

impl RunPhase {
    /// Its name in text.
    pub fn name(self) -> &'static str {
        match self {
            RunPhase::Loading => "loading",
            RunPhase::Forward => "forward",
            RunPhase::Backward => "backward",
            RunPhase::Optimizer => "optimizer step",
            RunPhase::Evaluation => "evaluation",
        }
    }
}

/// The state between two marks.
#[derive(Debug, Clone, Copy, Default)]
struct MarkedState {
    is_backward: bool,
    is_optimizer: bool,
    is_evaluation: bool,
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
                RunMarkKind::Backward => (state.is_backward, state.caller) = (true, Some(at)),
                RunMarkKind::BackwardEnd => state.is_backward = false,
                RunMarkKind::Optimizer => state.is_optimizer = true,
                RunMarkKind::OptimizerEnd => {
                    state.is_optimizer = false;
                    state.steps += 1;
                }
                RunMarkKind::Evaluation => state.is_evaluation = true,
                RunMarkKind::Training => state.is_evaluation = false,
            }
            state
        });
        let states = states.collect();
        let calls = (0u32..facts.history.stacks.len() as u32)
            .map(|stack| stack_of(facts.history, Some(stack)).into_iter().any(is_module_call));
        let calls: Vec<bool> = calls.collect();
        let is_call = |event: &HistoryEvent| {
            event.action == HistoryAction::Alloc
                && event.stack.is_some_and(|it| calls.get(it as usize) == Some(&true))
        };
        let first = device.events.iter().position(is_call);
        let first_call = first.map_or(u64::MAX, |at| replay.ordinal(at));
        PhaseClock { facts, device: device.device, states, first_call }
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
        self.phase_at(ordinal)
    }

    pub(super) fn phase_at(&self, ordinal: u64) -> RunPhase {
        let state = self.state(ordinal);
        match () {
            () if state.is_optimizer => RunPhase::Optimizer,
            () if state.is_backward => RunPhase::Backward,
            () if state.is_evaluation => RunPhase::Evaluation,
            () if ordinal < self.first_call => RunPhase::Loading,
            () => RunPhase::Forward,
        }
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
            let caller = state.caller.filter(|_| state.is_backward)?;
            let frames: Vec<_> = self.facts.marks.get(caller)?.stack.iter().collect();
            return own(&frames);
        }
        own(&frames)
    }
}

fn is_module_call(frame: &HistoryFrame) -> bool {
    frame.file.ends_with("torch/nn/modules/module.py") && frame.name.ends_with("_call_impl")
}
