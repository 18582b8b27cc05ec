//! A thread between samples.

use crate::model::{FrameId, StackId, StackTable, ThreadId};
use crate::python::code::{CodeCache, CodeLookup, RawFrame};
use crate::python::layouts::PythonLayout;
use crate::python::scatter_read::{ReadSlot, ScatterRead};
use crate::python::stacks::read_windows::ReadWindows;
use crate::python::stacks::thread_list::{ThreadEntry, thread_len};
use crate::python::stacks::walk::{COMPARED, WalkOutcome, walk};
use crate::target::{Addr, KernelWait, Scalar};

/// One `_PyCFrame` per C call that calls back; the newest matter.
const MAX_CFRAMES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum ReadOutcome {
    Stack {
        stack: StackId,
        waits: bool,
        cut: bool,
    },
    NoFrames,
    Torn,
    /// Read again with the newly requested pieces.
    Again,
    /// Consistent, with code objects left to check.
    Unchecked,
    /// The thread or its neighbours in the list changed.
    Relist,
}

#[derive(Debug)]
pub(in crate::python) struct SampledThread {
    pub(in crate::python) place: ThreadEntry,
    pub(in crate::python) id: ThreadId,
    /// The innermost frame or its instruction changed since the last sample.
    pub(in crate::python) moved: bool,
    pub(in crate::python) os_state: Option<char>,
    pub(in crate::python) waited_before: Option<KernelWait>,
    pub(in crate::python) found: Option<ReadOutcome>,
    pub(in crate::python) tears: u32,
    pub(in crate::python) done: bool,
    windows: ReadWindows,
    cframes: Vec<(Addr, ReadSlot, ReadSlot)>,
    state_slot: ReadSlot,
    head_again: ReadSlot,
    end_slot: ReadSlot,
    last: Option<RawFrame>,
    /// Outermost first; the next stack shares most of it.
    stacks: Vec<(FrameId, StackId)>,
}

#[derive(Debug, Default)]
pub(in crate::python) struct ReadBuffers {
    raw: Vec<RawFrame>,
    frames: Vec<FrameId>,
    pub(in crate::python) unknown: Vec<Addr>,
}

pub(in crate::python) struct SampleContext<'a> {
    pub(in crate::python) layout: &'a PythonLayout,
    pub(in crate::python) codes: &'a mut CodeCache,
    pub(in crate::python) table: &'a mut StackTable,
    pub(in crate::python) scratch: &'a mut ReadBuffers,
}

impl SampledThread {
    pub(in crate::python) fn new(place: ThreadEntry, id: ThreadId) -> SampledThread {
        SampledThread {
            place,
            id,
            moved: false,
            os_state: None,
            waited_before: None,
            found: None,
            tears: 0,
            done: false,
            windows: ReadWindows::default(),
            cframes: Vec::new(),
            state_slot: ReadSlot::default(),
            head_again: ReadSlot::default(),
            end_slot: ReadSlot::default(),
            last: None,
            stacks: Vec::new(),
        }
    }

    pub(in crate::python) fn begin_sample(&mut self) {
        self.found = None;
        self.tears = 0;
        self.done = false;
    }

    pub(in crate::python) fn push(&mut self, batch: &mut ScatterRead, layout: &PythonLayout) {
        self.state_slot = batch.push(self.place.at, thread_len(layout));
        let through = layout.thread.head_through;
        if let Some(field) = through {
            for (at, slot, _) in &mut self.cframes {
                *slot = batch.push(field.in_target(*at), 8);
            }
        }
        self.windows.push(batch);
        if let Some(field) = through {
            for (at, _, again) in &mut self.cframes {
                *again = batch.push(field.in_target(*at), 8);
            }
        }
        self.head_again = batch.push(layout.thread.head.in_target(self.place.at), 8);
        self.end_slot = self.head_again;
    }

    pub(in crate::python) fn asked_for(&self, slot: ReadSlot) -> bool {
        (self.state_slot..=self.end_slot).contains(&slot)
    }

    pub(in crate::python) fn is_state(&self, slot: ReadSlot) -> bool {
        slot == self.state_slot
    }

    pub(in crate::python) fn forget(&mut self, slot: ReadSlot) {
        self.windows.forget(slot);
        self.cframes.retain(|&(_, first, again)| first != slot && again != slot);
    }

    pub(in crate::python) fn settle(&mut self) {
        self.windows.settle();
    }

    pub(in crate::python) fn decode(
        &mut self,
        batch: &ScatterRead,
        shared: &mut SampleContext<'_>,
    ) -> ReadOutcome {
        let Some(state) = batch.get(self.state_slot) else { return ReadOutcome::Again };
        let thread = &shared.layout.thread;
        if thread.next.get(state) != Some(self.place.next)
            || thread.identity.get(state) != Some(self.place.identity)
        {
            return ReadOutcome::Relist;
        }
        let (Some(head), Some(again)) = (thread.head.get(state), pointer(batch, self.head_again))
        else {
            return ReadOutcome::Again;
        };
        let heads = match thread.head_through {
            None => [head, again],
            // During a thread's creation or deletion.
            Some(_) if !head.is_plausible() => return ReadOutcome::NoFrames,
            Some(_) if head != again => return ReadOutcome::Torn,
            Some(_) => match self.through(head, batch) {
                Some(heads) => heads,
                None => return ReadOutcome::Again,
            },
        };
        if heads == [Addr(0); 2] {
            return ReadOutcome::NoFrames;
        }
        let settled = heads[0] == heads[1];
        let mut outcome = ReadOutcome::Torn;
        for &head in heads.iter().take(if settled { 1 } else { 2 }) {
            outcome = self.follow(head, settled, batch, shared);
            if outcome != ReadOutcome::Torn {
                break;
            }
        }
        outcome
    }

    fn follow(
        &mut self,
        head: Addr,
        settled: bool,
        batch: &ScatterRead,
        shared: &mut SampleContext<'_>,
    ) -> ReadOutcome {
        let (layout, raw) = (&shared.layout.frame, &mut shared.scratch.raw);
        let len = layout.len;
        match walk(layout, head, settled, &mut self.windows, batch, raw) {
            WalkOutcome::Torn => ReadOutcome::Torn,
            WalkOutcome::Empty => ReadOutcome::NoFrames,
            WalkOutcome::Missing(at) => {
                self.windows.want(at, len);
                ReadOutcome::Again
            }
            WalkOutcome::Once => {
                let innermost = raw.iter().take(COMPARED).map(|frame| frame.at);
                self.windows.read_again(innermost, len);
                ReadOutcome::Again
            }
            WalkOutcome::Whole { cut } => self.stack(cut, shared),
        }
    }

    /// `None` if not requested.
    fn through(&mut self, at: Addr, batch: &ScatterRead) -> Option<[Addr; 2]> {
        match self.cframes.iter().find(|cframe| cframe.0 == at) {
            Some(&(_, first, again)) => Some([pointer(batch, first)?, pointer(batch, again)?]),
            None => {
                self.cframes.insert(0, (at, ReadSlot::default(), ReadSlot::default()));
                self.cframes.truncate(MAX_CFRAMES);
                None
            }
        }
    }

    fn stack(&mut self, cut: bool, shared: &mut SampleContext<'_>) -> ReadOutcome {
        let SampleContext { codes, table, scratch, .. } = shared;
        let (mut unknown, mut unchecked, mut waits) = (false, false, false);
        scratch.frames.clear();
        for (depth, raw) in scratch.raw.iter().enumerate() {
            match codes.frame(raw, table) {
                CodeLookup::Frame(frame, waits_there) => {
                    scratch.frames.push(frame);
                    waits |= depth == 0 && waits_there;
                }
                CodeLookup::Unchecked => unchecked = true,
                CodeLookup::Unknown => {
                    unknown = true;
                    if !scratch.unknown.contains(&raw.code) {
                        scratch.unknown.push(raw.code);
                    }
                }
            }
        }
        if unknown {
            return ReadOutcome::Again;
        }
        if unchecked {
            return ReadOutcome::Unchecked;
        }
        let mark = if cut { Some(codes.cut_frame(table)) } else { None };
        let Some(stack) = self.intern(mark, table, &scratch.frames) else {
            return ReadOutcome::NoFrames;
        };
        let leaf = scratch.raw.first().copied();
        self.moved = self.last.is_some() && self.last != leaf;
        self.last = leaf;
        ReadOutcome::Stack { stack, waits, cut }
    }

    fn intern(
        &mut self,
        mark: Option<FrameId>,
        table: &mut StackTable,
        innermost_first: &[FrameId],
    ) -> Option<StackId> {
        let outermost_first = || mark.into_iter().chain(innermost_first.iter().rev().copied());
        let shared = self
            .stacks
            .iter()
            .zip(outermost_first())
            .take_while(|(old, new)| old.0 == *new)
            .count();
        self.stacks.truncate(shared);
        for frame in outermost_first().skip(shared) {
            let parent = self.stacks.last().map(|&(_, stack)| stack);
            self.stacks.push((frame, table.stack(parent, frame)));
        }
        self.stacks.last().map(|&(_, stack)| stack)
    }
}

fn pointer(batch: &ScatterRead, slot: ReadSlot) -> Option<Addr> {
    Addr::decode(batch.get(slot)?)
}
