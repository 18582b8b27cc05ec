//! One thread's frames in one poll.

use super::pieces::StackPieces;
use crate::python::code::RawFrame;
use crate::python::layouts::{EntryFrame, FrameLayout};
use crate::python::stacks::{FrameFields, WalkOutcome, follow_callers};
use crate::target::Addr;

/// A thread may return from fewer frames and call as many again within a poll (2 µs).
pub(super) const CONFIRMED: usize = 3;

/// Identifies a frame's name and line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainFrame {
    pub(in crate::python) code: Addr,
    pub(in crate::python) instruction: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ChainKind {
    /// Up to a frame that C code called.
    Frames,
    Empty,
    #[default]
    Torn,
}

/// On the C stack, between a frame called by C code and that code's caller (3.12+).
#[derive(Debug, Clone, Copy)]
struct Shim {
    at: Addr,
    previous: Addr,
}

#[derive(Debug, Clone, Default)]
pub(super) struct FrameChain {
    pub(super) kind: ChainKind,
    pub(super) head: Addr,
    pub(super) frames: Vec<RawFrame>,
    /// The innermost frame may have returned (3.11 to 3.13). A loop in step with the polls
    /// can show such a chain twice, so only a later copy of the head decides.
    pub(super) may_have_returned: bool,
    /// It ends in a function newly called by C code, or above an overwritten shim: copy it all
    /// again, with shims.
    pub(super) has_new_root: bool,
    shims: Vec<Shim>,
}

impl FrameChain {
    /// The error is a missing frame's address.
    pub(super) fn read(
        &mut self,
        layout: &FrameLayout,
        head: Addr,
        pieces: &mut StackPieces,
        bytes: &[u8],
    ) -> Result<(), Addr> {
        let len = layout.len;
        self.head = head;
        let followed =
            follow_callers(layout, head, |at| pieces.find(bytes, at, len), &mut self.frames);
        self.may_have_returned = followed.as_ref().is_ok_and(|c| c.leaf_runs == Some(false));
        self.kind = match followed {
            Err(WalkOutcome::Missing(at)) => {
                self.kind = ChainKind::Torn;
                return Err(at);
            }
            Err(_) => ChainKind::Torn,
            Ok(_) if self.frames.is_empty() => ChainKind::Empty,
            Ok(callers) if callers.cut => ChainKind::Torn,
            Ok(callers) if !callers.called_from_c && layout.entry != EntryFrame::Unmarked => {
                ChainKind::Torn
            }
            Ok(_) => ChainKind::Frames,
        };
        Ok(())
    }

    pub(super) fn root(&self) -> Option<Addr> {
        self.frames.last().map(|frame| frame.at)
    }

    /// After [`Self::read`]. Earlier chains ended at `root`.
    pub(super) fn compare_root(
        &mut self,
        root: Option<Addr>,
        layout: &FrameLayout,
        pieces: &mut StackPieces,
        bytes: &[u8],
    ) {
        self.shims.clear();
        self.has_new_root = self.kind == ChainKind::Frames && self.root() != root;
        if self.has_new_root {
            let callers = self.frames.iter().skip(1).map(|frame| frame.at).chain([Addr(0)]);
            let led_to = self.frames.iter().map(|frame| frame.previous).zip(callers);
            self.shims.extend(led_to.filter(|(at, caller)| at != caller).filter_map(|(at, _)| {
                let copy = pieces.find(bytes, at, layout.len)?;
                Some(Shim { at, previous: FrameFields::parse(layout, copy)?.previous })
            }));
        }
    }

    fn innermost(&self) -> &[RawFrame] {
        let len = if self.has_new_root { usize::MAX } else { CONFIRMED };
        &self.frames[..self.frames.len().min(len)]
    }

    pub(super) fn copied_again(&self) -> impl Iterator<Item = Addr> {
        let frames = self.innermost().iter().map(|frame| frame.at);
        frames.chain(self.shims.iter().map(|shim| shim.at))
    }

    /// `fetch`: later copies by address. The innermost frame may have advanced.
    pub(super) fn is_still<'b>(
        &self,
        layout: &FrameLayout,
        mut fetch: impl FnMut(Addr) -> Option<&'b [u8]>,
    ) -> bool {
        let mut again = |at| fetch(at).and_then(|copy| FrameFields::parse(layout, copy));
        let runs = |depth| depth == 0 && !self.may_have_returned;
        let same_frames = self.innermost().iter().enumerate().all(|(depth, frame)| {
            again(frame.at).is_some_and(|again| {
                (again.code, again.previous) == (frame.code, frame.previous)
                    && (runs(depth) || again.instruction == frame.instruction)
            })
        });
        let mut shims = self.shims.iter().map(|shim| (again(shim.at), shim.previous));
        same_frames
            && shims.all(|(again, previous)| {
                again.is_some_and(|again| again.shim && again.previous == previous)
            })
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.may_have_returned || self.has_new_root
    }

    /// Two polls that agree saw one stack: a mixed copy would need the same mixture twice.
    pub(super) fn agrees_with(&self, other: &FrameChain) -> bool {
        let differs = self.kind != other.kind || self.kind == ChainKind::Torn;
        if differs || self.is_in_doubt() || other.is_in_doubt() {
            return false;
        }
        let (Some((first, callers)), Some((other_first, other_callers))) =
            (self.frames.split_first(), other.frames.split_first())
        else {
            return self.frames.is_empty() && other.frames.is_empty();
        };
        (first.at, first.code, first.previous)
            == (other_first.at, other_first.code, other_first.previous)
            && callers == other_callers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::layouts::{SavedStack, layout_tables};

    const LEAF: u64 = 0x1000;
    const SHIM: u64 = 0x7000;
    const CALLER: u64 = 0x1800;
    const ROOT_SHIM: u64 = 0x7800;

    fn layout() -> FrameLayout {
        layout_tables::row(13, false).unwrap().frame
    }

    fn frame(code: u64, previous: u64, instruction: u64, runs: bool, owner: u8) -> Vec<u8> {
        let layout = layout();
        let mut bytes = vec![0; layout.len];
        let mut put =
            |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(layout.code.offset, code);
        put(layout.previous.offset, previous);
        put(56, instruction);
        let SavedStack::Index(saved) = layout.saved_stack else { panic!("3.13 saves an index") };
        bytes[saved.offset..saved.offset + 4]
            .copy_from_slice(&(if runs { -1 } else { 3i32 }).to_le_bytes());
        let EntryFrame::Shim { owner: field, .. } = layout.entry else { panic!("3.13 has shims") };
        bytes[field.offset] = owner;
        bytes
    }

    fn memory(leaf_runs: bool) -> [(u64, Vec<u8>); 4] {
        [
            (LEAF, frame(0x10_0000, SHIM, 0x10, leaf_runs, 0)),
            (SHIM, frame(0, CALLER, 0, false, 3)),
            (CALLER, frame(0x20_0000, ROOT_SHIM, 0x20, true, 0)),
            (ROOT_SHIM, frame(0, 0, 0, false, 3)),
        ]
    }

    fn copied(memory: &[(u64, Vec<u8>)]) -> (StackPieces, Vec<u8>) {
        let mut pieces = StackPieces::default();
        assert!(memory.iter().all(|(at, copy)| pieces.want_only(Addr(*at), copy.len())));
        let (mut spans, mut bytes) = (Vec::new(), Vec::new());
        bytes.resize(pieces.push(Addr(LEAF), 0, &mut spans), 0);
        let mut from = 0;
        for span in spans {
            let range = span.addr.0..span.addr.0 + span.len as u64;
            for (at, copy) in memory.iter().filter(|(at, _)| range.contains(at)) {
                bytes[from + (at - range.start) as usize..][..copy.len()].copy_from_slice(copy);
            }
            from += span.len;
        }
        (pieces, bytes)
    }

    fn chain(memory: &[(u64, Vec<u8>)]) -> FrameChain {
        let (mut pieces, bytes) = copied(memory);
        let mut chain = FrameChain::default();
        chain.read(&layout(), Addr(LEAF), &mut pieces, &bytes).unwrap();
        assert_eq!((chain.kind, chain.frames.len()), (ChainKind::Frames, 2));
        chain
    }

    fn compare_root(chain: &mut FrameChain, memory: &[(u64, Vec<u8>)], root: Option<Addr>) {
        let (mut pieces, bytes) = copied(memory);
        chain.compare_root(root, &layout(), &mut pieces, &bytes);
    }

    fn is_still(chain: &FrameChain, memory: &[(u64, Vec<u8>)]) -> bool {
        chain.is_still(&layout(), |at| {
            memory.iter().find(|(place, _)| *place == at.0).map(|(_, copy)| &copy[..])
        })
    }

    #[test]
    fn two_agreeing_polls_do_not_confirm_a_possibly_returned_leaf() {
        let (runs, returned) = (chain(&memory(true)), chain(&memory(false)));
        assert!(runs.agrees_with(&chain(&memory(true))));
        assert!(!returned.agrees_with(&chain(&memory(false))));
        assert!(!runs.agrees_with(&returned) && !returned.agrees_with(&runs));
        assert!(is_still(&returned, &memory(false)));
        let mut later = memory(false);
        later[0].1 = frame(0x10_0000, SHIM, 0x18, false, 0);
        assert!(!is_still(&returned, &later) && is_still(&runs, &later));
    }

    #[test]
    fn chains_with_a_new_root_are_copied_again_with_shims() {
        let mut chain = chain(&memory(true));
        let places = |chain: &FrameChain| chain.copied_again().map(|at| at.0).collect::<Vec<_>>();
        assert_eq!(places(&chain), [LEAF, CALLER]);
        compare_root(&mut chain, &memory(true), Some(Addr(CALLER)));
        assert!(!chain.is_in_doubt());
        compare_root(&mut chain, &memory(true), Some(Addr(0x2000)));
        assert!(chain.is_in_doubt() && !chain.agrees_with(&chain.clone()));
        assert_eq!(places(&chain), [LEAF, CALLER, SHIM, ROOT_SHIM]);
        assert!(is_still(&chain, &memory(true)));
        for (previous, owner) in [(0, 3), (CALLER, 0)] {
            let mut later = memory(true);
            later[1].1 = frame(0, previous, 0, false, owner);
            assert!(!is_still(&chain, &later));
        }
        let mut later = memory(true);
        later[2].1 = frame(0x20_0000, ROOT_SHIM, 0x28, true, 0);
        assert!(!is_still(&chain, &later), "the caller is at another line");
    }
}
