//! Counts Python frames per call of `_PyEval_EvalFrameDefault`. Up to 3.10 each frame has its own
//! call. Since then consecutive Python calls share one; its outermost frame is marked (3.11,
//! `is_entry`) or called by a shim (3.12+).

use crate::python::layouts::{EntryFrame, PythonLayout};
use crate::python::stacks::walk::{FrameFields, MAX_FRAMES};
use crate::target::{Addr, Memory};

/// Innermost first; `None` if unreadable or too many.
pub(in crate::python) fn frames_by_call(
    memory: &dyn Memory,
    layout: &PythonLayout,
    thread: Addr,
) -> Option<Vec<u32>> {
    let mut head = memory.pointer(layout.thread.head.in_target(thread)).ok()?;
    if let Some(field) = layout.thread.head_through.filter(|_| head != Addr(0)) {
        head = memory.pointer(field.in_target(head)).ok()?;
    }
    let mut calls = Vec::new();
    let (mut frames, mut at) = (0, head);
    for _ in 0..2 * MAX_FRAMES {
        if at == Addr(0) {
            if frames > 0 {
                calls.push(frames);
            }
            return Some(calls);
        }
        let bytes = memory.vec(at, layout.frame.len).ok()?;
        let frame = FrameFields::parse(&layout.frame, &bytes)?;
        at = frame.previous;
        // A returned frame has no code (3.14+).
        if !frame.shim && frame.code != Addr(0) {
            frames += 1;
        }
        let ends = match layout.frame.entry {
            EntryFrame::Unmarked => true,
            EntryFrame::Flag(_) => frame.entry,
            EntryFrame::Shim { .. } => frame.shim,
        };
        if ends && frames > 0 {
            calls.push(std::mem::take(&mut frames));
        }
    }
    None
}
