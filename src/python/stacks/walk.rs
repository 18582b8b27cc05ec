//! One thread's stack out of copies of its memory, and the tests that tell whether it is one instant's truth.
//!
//! Nothing stops the target, so the copies are a few hundred nanoseconds apart, in which it may have
//! returned and called many times. One system call copies, in this order:
//!
//! 1. the thread state (with the head: where the innermost frame is),
//! 2. all stretches in which the frames lay last time,
//! 3. the innermost frames a second time,
//! 4. the head a second time.
//!
//! From the first head, or else from the second, callers are followed through the first copy. Frames
//! that turn out to have returned are dropped with all above them: they have no code any more (3.14+),
//! or their caller runs, not having saved its stack pointer as it does before it calls (3.11 to 3.13).
//! What remains is accepted when all of this holds; else everything is read again:
//!
//! * the two copies of the innermost frames agree on code, caller and, but for the running frame, instruction;
//! * the innermost frame runs, or it stood still between the copies and so did the head (3.11 to 3.13,
//!   where a frame that returned looks like one that calls);
//! * every frame carries the mark of an executing frame, where the version has one (up to 3.10);
//! * the outermost frame was called from C, where the version marks that (since 3.11).
//!
//! So a stack shown was the thread's, or the outer part of it while its innermost frame was about to
//! call or had just returned. What remains possible is a target that comes through the same state twice
//! within the time of one read, with another state in between at just the instants of copying; tests
//! count such stacks and find none in ten thousands.

use crate::python::layouts::layout::{EntryFrame, FrameLayout, InstructionLayout, SavedStack};
use crate::python::stacks::read_windows::ReadWindows;
use crate::python::stacks::scatter_read::ScatterRead;
use crate::target::Addr;

/// Deeper stacks are cut at their outer end, and marked.
pub(crate) const MAX_FRAMES: usize = 4096;
/// How many of the innermost frames are compared between the two copies.
pub(in crate::python) const COMPARED: usize = 4;
/// Frames no further apart than this are copied in one go.
const NEAR: u64 = 4096;
/// The tag bits of a `_PyStackRef` (Include/internal/pycore_stackref.h, 3.14); objects are aligned.
const TAG: u64 = 7;

/// A frame as the target stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct RawFrame {
    /// Where it is.
    pub(in crate::python) at: Addr,
    /// Its code object.
    pub(in crate::python) code: Addr,
    /// Its caller's frame, or the shim between them.
    pub(in crate::python) previous: Addr,
    /// Its [`InstructionLayout`]: a pointer, or an offset in bytes.
    pub(in crate::python) instruction: u64,
}

/// What a walk found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum WalkOutcome {
    /// A whole stack; `cut` when it was deeper than [`MAX_FRAMES`].
    Whole { cut: bool },
    /// A stack without a frame.
    Empty,
    /// No instant's truth: read again.
    Torn,
    /// A frame lies where nothing was read.
    Missing(Addr),
    /// The innermost frames were not read twice.
    Once,
}

/// Walks from `head` through what `batch` holds of `windows`, innermost frame first. `settled` tells
/// that both copies of the head are equal.
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
        // The shim that a thread begins with (3.15), and nothing called yet.
        return if settled { WalkOutcome::Empty } else { WalkOutcome::Torn };
    }
    if !cut && !called_from_c && layout.entry != EntryFrame::Unmarked {
        return WalkOutcome::Torn;
    }
    // A generator's frame lies elsewhere than its caller's: copied so far apart, they need the head too.
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

/// What the frames of one copy say besides their callers.
pub(in crate::python) struct FrameCallers {
    /// Whether there are more than [`MAX_FRAMES`].
    pub(in crate::python) cut: bool,
    /// Whether the outermost frame was called from C.
    pub(in crate::python) called_from_c: bool,
    /// Whether the innermost frame's own bytecode runs; `None` where the version does not tell.
    pub(in crate::python) leaf_runs: Option<bool>,
}

/// Follows callers from `head` on through copies of frames, which `fetch` gives by their address. An error is
/// [`WalkOutcome::Torn`] or [`WalkOutcome::Missing`].
pub(in crate::python) fn follow_callers<'b>(
    layout: &FrameLayout,
    head: Addr,
    mut fetch: impl FnMut(Addr) -> Option<&'b [u8]>,
    out: &mut Vec<RawFrame>,
) -> Result<FrameCallers, WalkOutcome> {
    out.clear();
    let mut at = head;
    let mut called_from_c = false;
    let mut leaf_runs = None;
    let mut cut = false;
    let mut passed = Addr(0);
    // Shims are no frames, but count as steps: no chain is followed for ever.
    for step in 0.. {
        if at == Addr(0) {
            break;
        }
        if step == 2 * MAX_FRAMES || out.len() == MAX_FRAMES {
            cut = true;
            break;
        }
        // What was written meanwhile may lead in circles.
        if at == passed || !at.is_plausible() || !at.0.is_multiple_of(8) {
            return Err(WalkOutcome::Torn);
        }
        if usize::is_power_of_two(step) {
            passed = at;
        }
        let Some(frame) = fetch(at) else { return Err(WalkOutcome::Missing(at)) };
        let Some(read) = FrameFields::parse(layout, frame) else { return Err(WalkOutcome::Torn) };
        if read.shim {
            called_from_c = true;
            at = read.previous;
            continue;
        }
        if read.code == Addr(0) {
            if !layout.clears_code() {
                return Err(WalkOutcome::Torn);
            }
            // It returned, and so did all that it had called.
            out.clear();
            (called_from_c, leaf_runs) = (false, None);
            at = read.previous;
            continue;
        }
        if !read.executing || !read.code.is_plausible() {
            return Err(WalkOutcome::Torn);
        }
        if !out.is_empty() && !called_from_c && read.runs == Some(true) {
            out.clear();
        }
        if out.is_empty() {
            leaf_runs = read.runs;
        }
        called_from_c = read.entry;
        out.push(RawFrame {
            at,
            code: read.code,
            previous: read.previous,
            instruction: read.instruction,
        });
        at = read.previous;
    }
    // A generator that is about to go on has no caller yet (3.11).
    if leaf_runs == Some(false) && matches!(out[..], [RawFrame { previous: Addr(0), .. }]) {
        return Err(WalkOutcome::Torn);
    }
    Ok(FrameCallers { cut, called_from_c, leaf_runs })
}

/// Whether both copies of the innermost frames agree; `None` when there is only one.
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

/// One frame's fields.
pub(in crate::python) struct FrameFields {
    pub(in crate::python) code: Addr,
    pub(in crate::python) previous: Addr,
    pub(in crate::python) instruction: u64,
    executing: bool,
    /// Whether its own bytecode runs; `None` where the version does not tell.
    runs: Option<bool>,
    /// Whether it was called from C, where the version marks that in the frame (3.11).
    pub(in crate::python) entry: bool,
    /// Whether it is none of Python's.
    pub(in crate::python) shim: bool,
}

impl FrameFields {
    /// Those in a copy of the frame; `None` when it is too short.
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

    /// Two polls can agree on a place of the C stack that was given to something else: it has no code, and is no frame that has returned.
    #[test]
    fn only_where_a_frame_loses_its_code_has_one_without_code_returned() {
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

    /// A place of the C stack can lead to itself, as it was left by calls that have returned: 8,000 steps for each such poll.
    #[test]
    fn circles_end_at_once() {
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
