//! One thread of the target between samples: where its frames lay, what it did last, and its part of a batch.

use super::batch::{Batch, Slot};
use super::code::{Codes, Known};
use super::heads::{Place, thread_len};
use super::layout::Layout;
use super::walk::{COMPARED, RawFrame, Walked, walk};
use super::windows::Windows;
use crate::model::{FrameId, StackId, StackTable, ThreadId};
use crate::target::{Addr, Scalar};

/// How many `_PyCFrame`s are kept in view: one per C call that calls back, of which the newest matter.
const MOST_CFRAMES: usize = 4;

/// What one batch said about a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its stack; whether it ends in a waiting place; whether it was cut.
    Stack { stack: StackId, waits: bool, cut: bool },
    /// It has no Python frames.
    NoFrames,
    /// It changed while it was copied.
    Torn,
    /// It has to be read again with what is asked for now.
    Again,
    /// Its stack is whole, but some of its code objects have not been checked yet.
    Unchecked,
    /// It is not the thread it was, or its neighbours in the list changed.
    Relist,
}

/// A thread that is being sampled.
#[derive(Debug)]
pub(super) struct Sampled {
    pub(super) place: Place,
    pub(super) id: ThreadId,
    /// Whether the innermost frame or its instruction changed between the last two samples.
    pub(super) moved: bool,
    /// The kernel's state of the thread when it was last looked up.
    pub(super) os_state: Option<char>,
    /// What this sample found; `None` until then.
    pub(super) found: Option<Outcome>,
    /// How often this sample found it torn.
    pub(super) tears: u32,
    /// Whether this sample needs no further read of it.
    pub(super) done: bool,
    windows: Windows,
    cframes: Vec<(Addr, Slot, Slot)>,
    state_slot: Slot,
    head_again: Slot,
    end_slot: Slot,
    last: Option<RawFrame>,
    /// The stack of the last sample, outermost first: most of it is the next one's too.
    stacks: Vec<(FrameId, StackId)>,
}

/// Buffers shared by all threads.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    raw: Vec<RawFrame>,
    frames: Vec<FrameId>,
    /// Code objects to be read.
    pub(super) unknown: Vec<Addr>,
}

/// What all threads of a reader share while they are examined.
pub(super) struct Shared<'a> {
    pub(super) layout: &'a Layout,
    pub(super) codes: &'a mut Codes,
    pub(super) table: &'a mut StackTable,
    pub(super) scratch: &'a mut Scratch,
}

impl Sampled {
    /// A thread not read yet.
    pub(super) fn new(place: Place, id: ThreadId) -> Sampled {
        Sampled {
            place,
            id,
            moved: false,
            os_state: None,
            found: None,
            tears: 0,
            done: false,
            windows: Windows::default(),
            cframes: Vec::new(),
            state_slot: Slot::default(),
            head_again: Slot::default(),
            end_slot: Slot::default(),
            last: None,
            stacks: Vec::new(),
        }
    }

    /// To be called at the begin of each sample.
    pub(super) fn begin_sample(&mut self) {
        self.found = None;
        self.tears = 0;
        self.done = false;
    }

    /// Asks for the thread state, the frames, the innermost frames again and the head again.
    pub(super) fn push(&mut self, batch: &mut Batch, layout: &Layout) {
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

    /// Whether this piece was asked for by this thread.
    pub(super) fn asked_for(&self, slot: Slot) -> bool {
        (self.state_slot..=self.end_slot).contains(&slot)
    }

    /// Whether this piece is the thread state itself.
    pub(super) fn is_state(&self, slot: Slot) -> bool {
        slot == self.state_slot
    }

    /// Forgets the place that could not be read.
    pub(super) fn forget(&mut self, slot: Slot) {
        self.windows.forget(slot);
        self.cframes.retain(|&(_, first, again)| first != slot && again != slot);
    }

    /// To be called at the end of each sample.
    pub(super) fn settle(&mut self) {
        self.windows.settle();
    }

    /// Makes of the batch what it says about this thread.
    pub(super) fn examine(&mut self, batch: &Batch, shared: &mut Shared<'_>) -> Outcome {
        let Some(state) = batch.get(self.state_slot) else { return Outcome::Again };
        let thread = &shared.layout.thread;
        if thread.next.of(state) != Some(self.place.next)
            || thread.identity.of(state) != Some(self.place.identity)
        {
            return Outcome::Relist;
        }
        let (Some(head), Some(again)) = (thread.head.of(state), pointer(batch, self.head_again))
        else {
            return Outcome::Again;
        };
        let heads = match thread.head_through {
            None => [head, again],
            // 3.11 and 3.12 are without a `_PyCFrame` only while the thread is made or unmade.
            Some(_) if !head.is_plausible() => return Outcome::NoFrames,
            Some(_) if head != again => return Outcome::Torn,
            Some(_) => match self.through(head, batch) {
                Some(heads) => heads,
                None => return Outcome::Again,
            },
        };
        if heads == [Addr(0); 2] {
            return Outcome::NoFrames;
        }
        let settled = heads[0] == heads[1];
        let mut outcome = Outcome::Torn;
        for &head in heads.iter().take(if settled { 1 } else { 2 }) {
            outcome = self.follow(head, settled, batch, shared);
            if outcome != Outcome::Torn {
                break;
            }
        }
        outcome
    }

    fn follow(
        &mut self,
        head: Addr,
        settled: bool,
        batch: &Batch,
        shared: &mut Shared<'_>,
    ) -> Outcome {
        let (layout, raw) = (&shared.layout.frame, &mut shared.scratch.raw);
        let len = layout.len;
        match walk(layout, head, settled, &mut self.windows, batch, raw) {
            Walked::Torn => Outcome::Torn,
            Walked::Empty => Outcome::NoFrames,
            Walked::Missing(at) => {
                self.windows.want(at, len);
                Outcome::Again
            }
            Walked::Once => {
                let innermost = raw.iter().take(COMPARED).map(|frame| frame.at);
                self.windows.read_again(innermost, len);
                Outcome::Again
            }
            Walked::Whole { cut } => self.stack(cut, shared),
        }
    }

    /// Both copies of the head in the `_PyCFrame` at `at`; `None` when it was not asked for.
    fn through(&mut self, at: Addr, batch: &Batch) -> Option<[Addr; 2]> {
        match self.cframes.iter().find(|cframe| cframe.0 == at) {
            Some(&(_, first, again)) => Some([pointer(batch, first)?, pointer(batch, again)?]),
            None => {
                self.cframes.insert(0, (at, Slot::default(), Slot::default()));
                self.cframes.truncate(MOST_CFRAMES);
                None
            }
        }
    }

    fn stack(&mut self, cut: bool, shared: &mut Shared<'_>) -> Outcome {
        let Shared { codes, table, scratch, .. } = shared;
        let (mut unknown, mut unchecked, mut waits) = (false, false, false);
        scratch.frames.clear();
        for (depth, raw) in scratch.raw.iter().enumerate() {
            match codes.frame(raw, table) {
                Known::Frame(frame, waits_there) => {
                    scratch.frames.push(frame);
                    waits |= depth == 0 && waits_there;
                }
                Known::Unchecked => unchecked = true,
                Known::Unknown => {
                    unknown = true;
                    if !scratch.unknown.contains(&raw.code) {
                        scratch.unknown.push(raw.code);
                    }
                }
            }
        }
        if unknown {
            return Outcome::Again;
        }
        if unchecked {
            return Outcome::Unchecked;
        }
        let mark = if cut { Some(codes.mark_of_a_cut(table)) } else { None };
        let Some(stack) = self.intern(mark, table, &scratch.frames) else {
            return Outcome::NoFrames;
        };
        let leaf = scratch.raw.first().copied();
        self.moved = self.last.is_some() && self.last != leaf;
        self.last = leaf;
        Outcome::Stack { stack, waits, cut }
    }

    /// The number of the stack, taking over what it shares with the last one.
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

fn pointer(batch: &Batch, slot: Slot) -> Option<Addr> {
    Addr::decode(batch.get(slot)?)
}
