//! Stacks with frames of compiled code, as text.

use std::io::Write;

use super::label::{FrameLabels, one_line, short_native};
use crate::analysis::ProcessSnapshot;
use crate::model::{MixedFrame, MixedStack, MixedStacks, NativeFrame};

/// Threads without Python that get their own line.
const MAX_OTHERS: usize = 8;

/// `at::native::add (libtorch_cpu.so)`, in full as in `--json`; `?? (libc.so.6+0x1234)` for a
/// function without a name.
fn native_text(frame: &NativeFrame) -> String {
    let NativeFrame { function, module, address } = frame;
    match (function, module) {
        (Some(function), Some(module)) => {
            format!("{} ({})", short_native(function), one_line(module))
        }
        (Some(function), None) => short_native(function),
        (None, Some(module)) => format!("?? ({}+{address:#x})", one_line(module)),
        (None, None) => format!("?? ({address:#x})"),
    }
}

/// Writes the frames of a thread.
pub(super) fn write_frames(
    out: &mut dyn Write,
    stack: &MixedStack,
    labels: &FrameLabels<'_>,
) -> std::io::Result<()> {
    let mut is_apart = stack.apart_because.as_deref();
    let mut native_left =
        stack.frames.iter().filter(|it| matches!(it, MixedFrame::Native(_))).count();
    for frame in &stack.frames {
        match frame {
            MixedFrame::Native(frame) => {
                writeln!(out, "    {}", native_text(frame))?;
                native_left -= 1;
            }
            MixedFrame::Python(frame) => {
                if let Some(why) = is_apart.take() {
                    let why = one_line(why);
                    writeln!(out, "    .. of Python, between these in places not known: {why}")?;
                }
                writeln!(out, "    {}", labels.frame(*frame, true))?;
            }
        }
        if native_left == 0
            && let Some(why) =
                stack.incomplete.as_deref().filter(|_| matches!(frame, MixedFrame::Native(_)))
        {
            writeln!(out, "    .. what called it is not known: {}", one_line(why))?;
        }
    }
    Ok(())
}

/// Writes the threads that run no Python, one line each or (`whole`) with their stacks; and how
/// long all were stopped.
pub(super) fn write_rest(
    out: &mut dyn Write,
    look: &ProcessSnapshot,
    labels: &FrameLabels<'_>,
    whole: bool,
) -> std::io::Result<()> {
    let stacks: &MixedStacks = match look.mixed_stacks() {
        None => return Ok(()),
        Some(Err(why)) => {
            return writeln!(out, "\nFrames of C and C++ are unknown: {}", one_line(why));
        }
        Some(Ok(stacks)) => stacks,
    };
    let others: Vec<&MixedStack> = stacks.threads.iter().filter(|it| !it.has_python).collect();
    let most = if whole { usize::MAX } else { MAX_OTHERS };
    if !others.is_empty() {
        writeln!(out)?;
    }
    for stack in others.iter().take(most) {
        let name = stack.name.as_deref();
        let name = name.map_or_else(String::new, |it| format!(": \"{}\"", one_line(it)));
        let place = match stack.frames.first() {
            Some(MixedFrame::Native(frame)) if !whole => format!(", in {}", native_text(frame)),
            _ => String::new(),
        };
        writeln!(out, "Thread {} (no Python){name}{place}", stack.os_id)?;
        if whole {
            write_frames(out, stack, labels)?;
        }
    }
    if let Some(more) = others.len().checked_sub(most).filter(|more| *more > 0) {
        writeln!(out, "({more} more threads without Python; --idle shows the stacks of all)")?;
    }
    match stacks.stopped_for {
        Some(time) => writeln!(
            out,
            "\nthe process was stopped for {:.1} ms while its stacks were copied",
            time.as_secs_f64() * 1e3
        ),
        None => Ok(()),
    }
}
