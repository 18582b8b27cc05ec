//! Stacks with native frames, as text and JSON.

use std::io::Write;

use serde::{Deserialize, Serialize};

use crate::analysis::ProcessSnapshot;
use crate::model::{MixedFrame, MixedStack, MixedStacks, NativeFrame};
use crate::render::shared::{FrameLabels, one_line, short_native};

/// What `--native` adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NativeJson {
    /// For how long the process was stopped while its stacks were copied, in seconds; `null` for a
    /// core file.
    pub stopped_seconds: Option<f64>,
    /// Why frames of compiled code are unknown; `null` where they are known.
    pub unknown_because: Option<String>,
    /// The threads that run no Python.
    pub other_threads: Vec<NativeThreadJson>,
}

/// A thread without Python.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NativeThreadJson {
    /// Its thread id in the operating system.
    pub os_id: u64,
    /// The kernel's name of it; `null` where it is not known.
    pub name: Option<String>,
    /// Its stack.
    pub stack: MixedStackJson,
}

/// A stack with frames of compiled code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MixedStackJson {
    /// Its frames, from the innermost to the outermost.
    pub frames: Vec<MixedFrameJson>,
    /// Why Python's frames are all after the native ones instead of in their places; `null` where
    /// they are in place.
    pub apart_because: Option<String>,
    /// Why native frames are missing at the outer end; `null` where none are.
    pub incomplete_because: Option<String>,
}

/// A frame of Python or of compiled code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MixedFrameJson {
    /// `python` or `native`.
    pub kind: String,
    /// The function; `null` where it is not known.
    pub function: Option<String>,
    /// Of Python: the path of its file.
    pub file: Option<String>,
    /// Of Python: the line.
    pub line: Option<u32>,
    /// Of compiled code: the name of the library's or program's file.
    pub module: Option<String>,
    /// Of compiled code: the address, by the addresses of that file.
    pub address: Option<u64>,
}

/// Threads without Python that get a line.
const MAX_OTHERS: usize = 8;

/// `at::native::add (libtorch_cpu.so)`, or `?? (libc.so.6+0x1234)` without a name.
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
                    writeln!(out, "    .. Python frames, between these at unknown places: {why}")?;
                }
                writeln!(out, "    {}", labels.frame(*frame, true))?;
            }
        }
        if native_left == 0
            && let Some(why) =
                stack.incomplete.as_deref().filter(|_| matches!(frame, MixedFrame::Native(_)))
        {
            writeln!(out, "    .. its caller is unknown: {}", one_line(why))?;
        }
    }
    Ok(())
}

/// Writes the threads without Python, with their stacks if `whole`, and the length of the stop.
pub(super) fn write_rest(
    out: &mut dyn Write,
    process: &ProcessSnapshot,
    labels: &FrameLabels<'_>,
    whole: bool,
) -> std::io::Result<()> {
    let stacks: &MixedStacks = match process.mixed_stacks() {
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

/// `None` if not requested.
pub(super) fn native_json(
    process: &ProcessSnapshot,
    labels: &FrameLabels<'_>,
) -> Option<NativeJson> {
    let (stacks, unknown) = match process.mixed_stacks()? {
        Ok(stacks) => (Some(stacks), None),
        Err(why) => (None, Some(why.to_owned())),
    };
    let others = stacks.iter().flat_map(|it| &it.threads).filter(|it| !it.has_python);
    Some(NativeJson {
        stopped_seconds: stacks.and_then(|it| it.stopped_for).map(|time| time.as_secs_f64()),
        unknown_because: unknown,
        other_threads: others
            .map(|thread| NativeThreadJson {
                os_id: thread.os_id,
                name: thread.name.clone(),
                stack: stack_json(thread, labels),
            })
            .collect(),
    })
}

/// `labels` belong to the table of the stack.
pub(super) fn stack_json(stack: &MixedStack, labels: &FrameLabels<'_>) -> MixedStackJson {
    MixedStackJson {
        frames: stack.frames.iter().map(|frame| frame_json(frame, labels)).collect(),
        apart_because: stack.apart_because.clone(),
        incomplete_because: stack.incomplete.clone(),
    }
}

fn frame_json(frame: &MixedFrame, labels: &FrameLabels<'_>) -> MixedFrameJson {
    match frame {
        MixedFrame::Native(frame) => MixedFrameJson {
            kind: "native".to_owned(),
            function: frame.function.clone(),
            file: None,
            line: None,
            module: frame.module.clone(),
            address: Some(frame.address),
        },
        MixedFrame::Python(frame) => {
            let function = labels.stacks.get_function(frame.function);
            MixedFrameJson {
                kind: "python".to_owned(),
                function: function.map(|it| it.name.to_string()),
                file: function.map(|it| labels.file(it).to_owned()),
                line: (frame.line > 0).then_some(frame.line),
                module: None,
                address: None,
            }
        }
    }
}
