//! Extracts a thread's stack from copies of its memory while it runs. One call copies the thread
//! state with the head (the pointer to the innermost frame), the ranges of its last frames, the
//! innermost frames again, and the head again.
//!
//! Returned frames and those above them are dropped: they have no code (3.14+), or their caller
//! runs, without a saved stack pointer (3.11 to 3.13). Everything is read again unless all hold:
//!
//! * both copies of the innermost frames agree on code, caller and (unless running) instruction;
//! * the innermost frame runs, or neither it nor the head changed (3.11 to 3.13);
//! * every frame is marked as executing (up to 3.10);
//! * the outermost frame is marked as called from C (since 3.11).
//!
//! So an accepted stack was the thread's, or its outer part around a call or return. One error
//! remains (ABA): another state between the copies. Tests find none in ten thousands.

use crate::python::code::RawFrame;
use crate::python::layouts::{EntryFrame, FrameLayout, InstructionLayout, SavedStack};
use crate::python::scatter_read::ScatterRead;
use crate::python::stacks::read_windows::ReadWindows;
use crate::target::Addr;

/// Deeper stacks lose outer frames and are marked.
pub(crate) const MAX_FRAMES: usize = 4096;
pub(in crate::python) const COMPARED: usize = 4;
const NEAR: u64 = 4096;
/// `_PyStackRef` tag (Include/internal/pycore_stackref.h, 3.14).
const TAG: u64 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum WalkOutcome {
    /// Consistent; `cut` if deeper than [`MAX_FRAMES`].
    Whole {
        cut: bool,
    },
    Empty,
    Torn,
    Missing(Addr),
    Once,
}

/// `settled`: both copies of the head are equal.
pub(in crate::python) fn walk(
    layout: &FrameLayout,
    head: Addr,
    settled: bool,
    windows: &mut ReadWindows,
    batch: &ScatterRead,
    out: &mut Vec<RawFrame>,
) -> WalkOutcome {
    let callers = follow_callers(layout, head, |at| windows.first(batch, at, layout.len), out);
    let FrameCallers { cut, called_from_c, leaf_runs } = match callers {
        Ok(callers) => callers,
        Err(walked) => return walked,
    };
    if out.is_empty() {
        // A thread begins with a shim (3.15).
        return if settled { WalkOutcome::Empty } else { WalkOutcome::Torn };
    }
    if !cut && !called_from_c && layout.entry != EntryFrame::Unmarked {
        return WalkOutcome::Torn;
    }
    // A generator's frame is far from its caller's. Copied so far apart, they also need an
    // unchanged head.
    let apart = layout.entry != EntryFrame::Unmarked
        && leaf_runs.is_none()
        && out.iter().take(2).any(|frame| frame.at.0.abs_diff(out[0].at.0) > NEAR);
    if !settled && (apart || leaf_runs == Some(false)) {
        return WalkOutcome::Torn;
    }
    match unchanged(layout, leaf_runs, windows, batch, out) {
        Some(true) => WalkOutcome::Whole { cut },
        Some(false) => WalkOutcome::Torn,
        None => WalkOutcome::Once,
    }
}

pub(in crate::python) struct FrameCallers {
    pub(in crate::python) cut: bool,
    pub(in crate::python) called_from_c: bool,
    /// `None` if the version does not show it.
    pub(in crate::python) leaf_runs: Option<bool>,
}

/// Fails with [`WalkOutcome::Torn`] or [`WalkOutcome::Missing`].
pub(in crate::python) fn follow_callers<'b>(
    layout: &FrameLayout,
    head: Addr,
    mut fetch: impl FnMut(Addr) -> Option<&'b [u8]>,
    out: &mut Vec<RawFrame>,
) -> Result<FrameCallers, WalkOutcome> {
    out.clear();
    let mut callers = FrameCallers { cut: false, called_from_c: false, leaf_runs: None };
    let mut at = head;
    let mut passed = Addr(0);
    // Shims count, so every walk is bounded.
    for step in 0.. {
        if at == Addr(0) {
            break;
        }
        if step == 2 * MAX_FRAMES || out.len() == MAX_FRAMES {
            callers.cut = true;
            break;
        }
        // Concurrent writes may form a cycle.
        if at == passed || !at.is_plausible() || !at.0.is_multiple_of(8) {
            return Err(WalkOutcome::Torn);
        }
        if usize::is_power_of_two(step) {
            passed = at;
        }
        let frame = fetch(at).ok_or(WalkOutcome::Missing(at))?;
        let read = FrameFields::parse(layout, frame).ok_or(WalkOutcome::Torn)?;
        callers.add(layout, at, &read, out)?;
        at = read.previous;
    }
    // A generator about to resume has no caller yet (3.11).
    if callers.leaf_runs == Some(false) && matches!(out[..], [RawFrame { previous: Addr(0), .. }]) {
        return Err(WalkOutcome::Torn);
    }
    Ok(callers)
}

impl FrameCallers {
    /// Adds a frame to `out`, the caller of the one before.
    fn add(
        &mut self,
        layout: &FrameLayout,
        at: Addr,
        read: &FrameFields,
        out: &mut Vec<RawFrame>,
    ) -> Result<(), WalkOutcome> {
        if read.shim {
            self.called_from_c = true;
            return Ok(());
        }
        if read.code == Addr(0) {
            if !layout.clears_code() {
                return Err(WalkOutcome::Torn);
            }
            // All that it called has returned, too.
            out.clear();
            (self.called_from_c, self.leaf_runs) = (false, None);
            return Ok(());
        }
        if !read.executing || !read.code.is_plausible() {
            return Err(WalkOutcome::Torn);
        }
        if !out.is_empty() && !self.called_from_c && read.runs == Some(true) {
            out.clear();
        }
        if out.is_empty() {
            self.leaf_runs = read.runs;
        }
        self.called_from_c = read.entry;
        let FrameFields { code, previous, instruction, .. } = *read;
        out.push(RawFrame { at, code, previous, instruction });
        Ok(())
    }
}

/// `None` without a second copy.
fn unchanged(
    layout: &FrameLayout,
    leaf_runs: Option<bool>,
    windows: &ReadWindows,
    batch: &ScatterRead,
    frames: &[RawFrame],
) -> Option<bool> {
    for (depth, frame) in frames.iter().take(COMPARED).enumerate() {
        let again = FrameFields::parse(layout, windows.second(batch, frame.at, layout.len)?)?;
        let may_run = depth == 0 && leaf_runs != Some(false);
        let same = again.code == frame.code
            && again.previous == frame.previous
            && (may_run || again.instruction == frame.instruction);
        if !same {
            return Some(false);
        }
    }
    Some(true)
}

pub(in crate::python) struct FrameFields {
    pub(in crate::python) code: Addr,
    pub(in crate::python) previous: Addr,
    pub(in crate::python) instruction: u64,
    executing: bool,
    runs: Option<bool>,
    pub(in crate::python) entry: bool,
    pub(in crate::python) shim: bool,
}

impl FrameFields {
    pub(in crate::python) fn parse(layout: &FrameLayout, bytes: &[u8]) -> Option<FrameFields> {
        let (entry, shim) = match layout.entry {
            EntryFrame::Unmarked => (false, false),
            EntryFrame::Flag(flag) => (flag.get(bytes)? != 0, false),
            EntryFrame::Shim { owner, from } => (false, owner.get(bytes)? >= from),
        };
        Some(FrameFields {
            code: Addr(layout.code.get(bytes)?.0 & !TAG),
            previous: layout.previous.get(bytes)?,
            instruction: match layout.instruction {
                InstructionLayout::Bytes(field) => i64::from(field.get(bytes)?) as u64,
                InstructionLayout::Units(field) => (i64::from(field.get(bytes)?) * 2) as u64,
                InstructionLayout::Pointer(field) => field.get(bytes)?,
            },
            executing: match layout.executing {
                Some((field, mark)) => field.get(bytes)? == mark,
                None => true,
            },
            runs: match layout.saved_stack {
                SavedStack::Unknown => None,
                SavedStack::Index(field) => Some(field.get(bytes)? == -1),
            },
            entry,
            shim,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::layouts::layout_tables;

    /// Two polls can agree on reused C stack memory without code.
    #[test]
    fn frames_without_code_are_returned_only_where_code_is_cleared() {
        let stack = |minor: u8| {
            let layout = &layout_tables::row(minor, false).unwrap().frame;
            let empty = vec![0; layout.len];
            let mut frames = Vec::new();
            let callers = follow_callers(layout, Addr(0x7000), |_| Some(&empty[..]), &mut frames);
            callers.map(|_| frames.len())
        };
        assert_eq!([11, 12, 13].map(stack), [Err(WalkOutcome::Torn); 3]);
        assert_eq!([14, 15].map(stack), [Ok(0); 2]);
    }

    /// Old C stack memory may reference itself: 8,000 steps per poll.
    #[test]
    fn cyclic_frame_chains_end_at_once() {
        let layout = &layout_tables::row(13, false).unwrap().frame;
        let EntryFrame::Shim { owner, from } = layout.entry else { panic!("3.13 has shims") };
        for length in 1..6 {
            let frame = |at: Addr| {
                let mut bytes = vec![0; layout.len];
                let next = 0x7000 + ((at.0 - 0x7000) / 0x100 + 1) % length * 0x100;
                bytes[layout.previous.offset..][..8].copy_from_slice(&next.to_le_bytes());
                bytes[owner.offset] = from;
                bytes
            };
            let frames: Vec<_> = (0..length).map(|n| frame(Addr(0x7000 + n * 0x100))).collect();
            let mut steps = 0;
            let fetch = |at: Addr| {
                steps += 1;
                Some(&frames[((at.0 - 0x7000) / 0x100) as usize][..])
            };
            let walked = follow_callers(layout, Addr(0x7000), fetch, &mut Vec::new());
            assert!(walked.is_err_and(|outcome| outcome == WalkOutcome::Torn));
            assert!(steps < 4 * length + 4, "{steps} steps for a circle of {length}");
        }
    }
}
