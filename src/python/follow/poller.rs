//! Polls threads' frames.

use super::chain::{ChainFrame, ChainKind, FrameChain};
use super::pieces::{StackPieces, is_far};
use crate::python::layouts::PythonLayout;
use crate::python::layouts::interpreter::Interpreter;
use crate::python::stacks::{PollTarget, ThreadKey};
use crate::target::{Addr, AddressRange, Memory, Scalar};

const MAX_MISSES: u32 = 32;

/// A `_PyCFrame` this near behind the thread state is copied with it.
const NEAR_STATE: usize = 1024;

const WORD: usize = 8;

/// A thread's polled stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolledStack<'a> {
    /// Confirmed by two consecutive polls or two copies.
    Frames(&'a [ChainFrame]),
    /// The next poll may confirm them.
    Unconfirmed(&'a [ChainFrame]),
    /// The thread executes no Python.
    NoFrames,
    /// It changed during the copy.
    Torn,
}

#[derive(Debug)]
struct PolledThread {
    target: PollTarget,
    pieces: StackPieces,
    /// Address of the head in the last `_PyCFrame` (3.11, 3.12).
    cframe: Option<Addr>,
    cframe_in_state: Option<(Addr, usize)>,
    again: StackPieces,
    first_span: usize,
    from: usize,
    to: usize,
    next: FrameChain,
    rested: bool,
    now: FrameChain,
    before: FrameChain,
    root: Option<Addr>,
    /// A second copy or an adjacent poll agrees.
    now_confirmed: bool,
    before_confirmed: bool,
    gone: bool,
    misses: u32,
    still: u32,
}

/// Polls threads; one system call must read all spans in order.
pub struct StackPoller {
    layout: PythonLayout,
    threads: Vec<PolledThread>,
    frames: Vec<ChainFrame>,
}

impl StackPoller {
    pub(in crate::python) fn new(interpreter: &Interpreter) -> StackPoller {
        StackPoller { layout: interpreter.layout, threads: Vec::new(), frames: Vec::new() }
    }

    /// Keeps the state of known threads.
    pub fn set_targets(&mut self, targets: &[PollTarget]) {
        let mut old = std::mem::take(&mut self.threads);
        self.threads = targets
            .iter()
            .map(|target| match old.iter().position(|polled| polled.target.key() == target.key()) {
                Some(at) => PolledThread { target: *target, ..old.swap_remove(at) },
                None => PolledThread::new(*target),
            })
            .collect();
    }

    /// In index order.
    pub fn targets(&self) -> impl Iterator<Item = &PollTarget> {
        self.threads.iter().map(|polled| &polled.target)
    }

    /// Appends all spans. `bytes`: length of earlier copies; returns the new length.
    pub fn push(&mut self, spans: &mut Vec<AddressRange>, mut bytes: usize) -> usize {
        let (state_from, state_len) = state_part(&self.layout);
        for polled in &mut self.threads {
            polled.first_span = spans.len();
            polled.from = bytes;
            let state = polled.target.place.at + state_from as u64;
            polled.cframe_in_state =
                polled.cframe.and_then(|cframe| Some((cframe, place_in_state(cframe, state)?)));
            let offset = state_len.max(polled.cframe_in_state.map_or(0, |(_, from)| from + WORD));
            spans.push(AddressRange { addr: state, len: offset });
            let leaf = polled.now.frames.first().map_or(Addr(0), |frame| frame.at);
            bytes += polled.pieces.push(leaf, offset, spans);
            polled.to = bytes;
        }
        bytes
    }

    /// Takes copies of this and the previous poll, of the same spans. `true`: addresses are
    /// missing, so push the spans again and read at once.
    pub fn examine(&mut self, now: &[u8], before: Option<&[u8]>) -> bool {
        let mut again = false;
        for polled in &mut self.threads {
            let part = now.get(polled.from..polled.to);
            let same = part.is_some() && before.and_then(|b| b.get(polled.from..polled.to)) == part;
            polled.rested = same && polled.now.kind != ChainKind::Torn;
            if polled.rested {
                continue;
            }
            let missing = polled.read(&self.layout, part.unwrap_or_default());
            polled.misses += u32::from(missing);
            again |= missing && polled.misses < MAX_MISSES;
        }
        if !again {
            for polled in &mut self.threads {
                polled.misses = 0;
                if polled.rested { polled.on_same_bytes() } else { polled.on_new_bytes() }
            }
        }
        again
    }

    /// Appends second spans of unconfirmed threads; returns their bytes.
    pub fn push_again(&mut self, spans: &mut Vec<AddressRange>) -> usize {
        let mut bytes = 0;
        for polled in self.threads.iter_mut().filter(|polled| polled.is_unconfirmed()) {
            let head = self.layout.thread.head.in_target(polled.target.place.at);
            spans.push(AddressRange { addr: head, len: WORD });
            polled.again.clear();
            if let Some(cframe) = polled.cframe {
                polled.again.want_only(cframe, WORD);
            }
            for at in polled.now.copied_again() {
                polled.again.want_only(at, self.layout.frame.len);
            }
            bytes += polled.again.push(Addr(0), WORD, spans);
        }
        bytes
    }

    /// Takes those copies; confirms unchanged stacks.
    pub fn confirm(&mut self, mut copies: &[u8]) {
        let layout = &self.layout;
        for polled in self.threads.iter_mut().filter(|polled| polled.is_unconfirmed()) {
            let Some((own, rest)) = copies.split_at_checked(WORD + polled.again.bytes()) else {
                return;
            };
            copies = rest;
            let PolledThread { again, now, cframe, .. } = polled;
            let mut word = |at| u64::decode(again.find(own, at, WORD)?).map(Addr);
            let head = own.get(..WORD).and_then(u64::decode).map(Addr);
            let is_head = match (layout.thread.head_through, *cframe) {
                (Some(field), Some(cframe)) => {
                    head.map(|head| field.in_target(head)) == Some(cframe)
                        && word(cframe) == Some(now.head)
                }
                _ => head == Some(now.head),
            };
            polled.now_confirmed =
                is_head && now.is_still(&layout.frame, |at| again.find(own, at, layout.frame.len));
            if polled.now_confirmed && now.kind == ChainKind::Frames {
                polled.root = now.root();
            }
        }
    }

    /// Whether no stack waits for confirmation.
    pub fn is_confirmed(&self) -> bool {
        !self.threads.iter().any(PolledThread::is_unconfirmed)
    }

    /// Call after each poll; `true`: push the spans again.
    pub fn trim(&mut self) -> bool {
        let len = self.layout.frame.len;
        self.threads.iter_mut().fold(false, |any, polled| {
            let frames = polled.now.frames.iter().map(|frame| (frame.at, len));
            let cframe = polled.cframe.map(|cframe| (cframe, WORD));
            polled.pieces.trim(frames.chain(cframe)) | any
        })
    }

    /// Drops an unreadable span; `false` if it is another's.
    pub fn fault(&mut self, span: usize) -> bool {
        for polled in &mut self.threads {
            let spans = 1 + polled.pieces.len();
            let Some(number) = span.checked_sub(polled.first_span).filter(|n| *n < spans) else {
                continue;
            };
            match number.checked_sub(1) {
                Some(piece) => polled.pieces.forget(piece),
                None => polled.gone = true,
            }
            if polled.gone {
                self.threads.retain(|polled| !polled.gone);
            }
            return true;
        }
        false
    }

    /// Number of polled threads.
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// Whether no thread is polled.
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Whether the thread's chain changed since the previous poll.
    pub fn moved(&self, number: usize) -> bool {
        self.threads.get(number).is_some_and(|polled| polled.still == 0)
    }

    /// [`Self::moved`] by key.
    pub fn moved_by_key(&self, key: ThreadKey) -> bool {
        self.threads.iter().any(|polled| polled.still == 0 && polled.target.key() == key)
    }

    /// Stack of thread `number` at the last poll.
    pub fn now(&mut self, number: usize) -> PolledStack<'_> {
        let Some(polled) = self.threads.get(number) else { return PolledStack::Torn };
        stack(&polled.now, polled.now_confirmed, &mut self.frames)
    }

    /// Its stack one poll earlier.
    pub fn before(&mut self, number: usize) -> PolledStack<'_> {
        let Some(polled) = self.threads.get(number) else { return PolledStack::Torn };
        stack(&polled.before, polled.before_confirmed, &mut self.frames)
    }

    /// A code object's first bytes, for comparison.
    pub fn code_copy(&self, memory: &dyn Memory, frame: &ChainFrame) -> Option<Vec<u8>> {
        memory.vec(frame.code, self.layout.code.len).ok()
    }
}

fn stack<'f>(
    chain: &FrameChain,
    confirmed: bool,
    frames: &'f mut Vec<ChainFrame>,
) -> PolledStack<'f> {
    match chain.kind {
        ChainKind::Torn => PolledStack::Torn,
        ChainKind::Empty if confirmed => PolledStack::NoFrames,
        ChainKind::Empty => PolledStack::Torn,
        ChainKind::Frames => {
            frames.clear();
            let raw = chain.frames.iter();
            frames.extend(raw.map(|f| ChainFrame { code: f.code, instruction: f.instruction }));
            match confirmed {
                true => PolledStack::Frames(frames),
                false => PolledStack::Unconfirmed(frames),
            }
        }
    }
}

impl PolledThread {
    fn new(target: PollTarget) -> PolledThread {
        PolledThread {
            target,
            pieces: StackPieces::default(),
            cframe: None,
            cframe_in_state: None,
            again: StackPieces::default(),
            first_span: 0,
            from: 0,
            to: 0,
            next: FrameChain::default(),
            rested: false,
            now: FrameChain::default(),
            before: FrameChain::default(),
            root: None,
            now_confirmed: false,
            before_confirmed: false,
            gone: false,
            misses: 0,
            still: 0,
        }
    }

    fn is_unconfirmed(&self) -> bool {
        !self.now_confirmed && self.now.kind != ChainKind::Torn
    }

    fn on_same_bytes(&mut self) {
        let proven = !self.now.is_in_doubt();
        if self.still < 2 {
            self.before.clone_from(&self.now);
        }
        self.before_confirmed = proven || self.now_confirmed;
        self.now_confirmed = proven;
        self.still = self.still.saturating_add(1);
    }

    fn on_new_bytes(&mut self) {
        let agrees = self.next.agrees_with(&self.now);
        let same = agrees && self.next.frames == self.now.frames;
        std::mem::swap(&mut self.before, &mut self.now);
        self.before_confirmed = self.now_confirmed || agrees;
        std::mem::swap(&mut self.now, &mut self.next);
        self.now_confirmed = agrees;
        self.still = if same { self.still.saturating_add(1) } else { 0 };
    }

    fn wants_cframe(&mut self, cframe: Addr, state_from: usize) -> bool {
        let state = self.target.place.at + state_from as u64;
        place_in_state(cframe, state).is_some() || self.pieces.want_only(cframe, WORD)
    }

    fn wants_frame(&mut self, at: Addr, len: usize) -> bool {
        let neighbour = self.next.frames.last().or(self.now.frames.first());
        match neighbour {
            Some(frame) if is_far(frame.at, at) => self.pieces.want_only(at, len),
            _ => self.pieces.want(at, len),
        }
    }

    fn read(&mut self, layout: &PythonLayout, part: &[u8]) -> bool {
        let (state_from, _) = state_part(layout);
        let word = |at: usize| u64::decode(part.get(at..at + WORD)?);
        let in_state = |offset: usize| word(offset - state_from);
        self.next.kind = ChainKind::Torn;
        if in_state(layout.thread.identity.offset) != Some(self.target.place.identity) {
            return false;
        }
        let head = Addr(in_state(layout.thread.head.offset).unwrap_or(0));
        let head = match layout.thread.head_through {
            None => head,
            Some(_) if !head.is_plausible() => Addr(0),
            Some(field) => {
                let cframe = field.in_target(head);
                self.cframe = Some(cframe);
                let copy = match self.cframe_in_state {
                    Some((copied, at)) if copied == cframe => part.get(at..at + WORD),
                    _ => self.pieces.find(part, cframe, WORD),
                };
                match copy.and_then(u64::decode) {
                    Some(head) => Addr(head),
                    None => return self.wants_cframe(cframe, state_from),
                }
            }
        };
        if head == Addr(0) {
            self.next.kind = ChainKind::Empty;
            self.next.head = head;
            self.next.frames.clear();
            return false;
        }
        match self.next.read(&layout.frame, head, &mut self.pieces, part) {
            Ok(()) => {
                self.next.compare_root(self.root, &layout.frame, &mut self.pieces, part);
                false
            }
            Err(missing) => self.wants_frame(missing, layout.frame.len),
        }
    }
}

fn state_part(layout: &PythonLayout) -> (usize, usize) {
    let thread = &layout.thread;
    let from = thread.head.offset.min(thread.identity.offset);
    (from, thread.head.end().max(thread.identity.end()) - from)
}

fn place_in_state(cframe: Addr, state: Addr) -> Option<usize> {
    let from = cframe.0.checked_sub(state.0)? as usize;
    (from < NEAR_STATE).then_some(from)
}
