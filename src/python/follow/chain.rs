//! One thread's chain of frames, as a poll copied it.

use super::pieces::StackPieces;
use crate::python::layouts::layout::{EntryFrame, FrameLayout};
use crate::python::stacks::walk::{FrameFields, RawFrame, WalkOutcome, follow_callers};
use crate::target::Addr;

/// So many of the innermost frames are copied once more: a thread that has returned from them all and called as many again within
/// the two microseconds of a poll would pass for one that stayed.
pub(super) const CONFIRMED: usize = 3;

/// A frame as far as its name and line depend on it: addresses in the target, innermost frame first in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainFrame {
    pub(in crate::python) code: Addr,
    pub(in crate::python) instruction: u64,
}

/// What one copy of a thread's frames shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ChainKind {
    /// A chain of frames from the innermost to one that C code called.
    Frames,
    /// No frames.
    Empty,
    /// No chain that a thread can have.
    #[default]
    Torn,
}

/// A thread's frames in one poll.
#[derive(Debug, Clone, Default)]
pub(super) struct FrameChain {
    pub(super) kind: ChainKind,
    /// Where it begins, which may be in a frame that is none of Python's.
    pub(super) head: Addr,
    pub(super) frames: Vec<RawFrame>,
    /// Whether the innermost frame looks as it does when it has returned (3.11 to 3.13): it is one of the thread's only while the head leads to
    /// it, and between the copies of the head and of the frame another may have been called. A loop that polls keep step with shows such
    /// a chain twice; only a later copy of the head tells.
    pub(super) may_have_returned: bool,
}

impl FrameChain {
    /// Reads the chain that begins at `head` out of `bytes`. An error is the place of a frame that was not copied.
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

    /// Whether `bytes`, copies of its innermost frames made later, have the same frames, each at the same instruction but for the innermost one.
    pub(super) fn is_still(&self, layout: &FrameLayout, bytes: &[u8]) -> bool {
        let mut copies = bytes.chunks_exact(layout.len);
        let runs = |depth| depth == 0 && !self.may_have_returned;
        self.frames.iter().take(CONFIRMED).enumerate().all(|(depth, frame)| {
            let again = copies.next().and_then(|copy| FrameFields::parse(layout, copy));
            again.is_some_and(|again| {
                (again.code, again.previous) == (frame.code, frame.previous)
                    && (runs(depth) || again.instruction == frame.instruction)
            })
        })
    }

    /// Whether `other` has the same frames, each at the same instruction but for the innermost one, which may have gone on.
    ///
    /// Two polls that agree so far have seen one stack: a copy that mixes two instants of a thread that calls and returns
    /// would have to be mixed in the same way twice.
    pub(super) fn agrees_with(&self, other: &FrameChain) -> bool {
        let in_doubt =
            |chain: &FrameChain| chain.kind == ChainKind::Torn || chain.may_have_returned;
        if self.kind != other.kind || in_doubt(self) || in_doubt(other) {
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
