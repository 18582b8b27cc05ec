//! Joins the Python and native stacks of one moment.
//!
//! Threads are stopped for some milliseconds to copy registers, stacks and Python frames.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    Frame, MixedFrame, MixedStack, MixedStacks, NativeFrame, StackTable, ThreadSample,
};
use crate::native::{StackCopy, Unwinder, UnwoundThread, copy_stacks};
use crate::python::{InterpreterError, InterpreterReader};
use crate::target::{Mappings, OsThread, Process, ProcessError, StopError, StoppedProcess};

use super::readers::TargetReaders;

/// The process then resumes, whatever has been copied.
const MAX_STOP: Duration = Duration::from_millis(500);
const IDS_TIMEOUT: Duration = Duration::from_millis(30);
/// C functions that run Python; the second in tail-call interpreters (3.14+).
const INTERPRETER: [&str; 2] = ["_PyEval_EvalFrameDefault", "_TAIL_CALL_"];

/// Why no native frames are known.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum NativeError {
    #[error("its Python cannot be read: {0}")]
    Python(#[from] InterpreterError),
    #[error("it runs no Python")]
    NoPython,
    #[error(transparent)]
    Stop(#[from] StopError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("its stacks were not copied in the {} ms that it was stopped", MAX_STOP.as_millis())]
    TooLong,
    #[error("it is not known which of its threads run which frames of Python: try again")]
    UnknownThreads,
    #[error("stacks of compiled code are read on x86-64 only")]
    Unsupported,
}

struct CopiedMoment {
    stacks: Vec<StackCopy>,
    python: Vec<ThreadSample>,
    calls: Vec<(u64, Option<Vec<u32>>)>,
    stopped_for: Option<Duration>,
}

/// All threads' stacks with native frames. Stops the process for milliseconds.
pub fn read_mixed_stacks(readers: &mut TargetReaders) -> Result<MixedStacks, NativeError> {
    let TargetReaders { process, python, .. } = readers;
    let python = python.as_mut().ok_or(NativeError::NoPython)?;
    let mut table = StackTable::new();
    python.forget_numbers();
    let copied = copy_moment(process, python, &mut table);
    // The next sample uses another table.
    python.forget_numbers();
    let (copied, mappings) = copied?;
    let os_threads = process.threads()?;
    let memory = process.memory();
    let unwound = Unwinder::new(process, &memory, &mappings).unwind(&copied.stacks);
    let mut threads: Vec<MixedStack> =
        unwound.into_iter().map(|it| mix(it, &os_threads, &copied, &table)).collect();
    threads.sort_by_key(|thread| thread.os_id);
    Ok(MixedStacks { table, threads, stopped_for: copied.stopped_for })
}

fn copy_moment(
    process: &Process,
    python: &mut InterpreterReader,
    table: &mut StackTable,
) -> Result<(CopiedMoment, Arc<Mappings>), NativeError> {
    let mut samples = Vec::new();
    python.sample(table, &mut samples)?;
    if !are_identified(&samples, table) {
        // An old Python's thread ids are found some time after the first sample.
        std::thread::sleep(IDS_TIMEOUT);
        python.sample(table, &mut samples)?;
    }
    let (mappings, memory) = (process.mappings()?, process.memory());
    let (stop, registers) = match process.is_core() {
        true => (None, process.core_registers()),
        false => {
            let (stop, registers) = StoppedProcess::with_registers(process, MAX_STOP)?;
            (Some(stop), registers)
        }
    };
    if registers.is_empty() {
        return Err(NativeError::Unsupported);
    }
    let stacks = copy_stacks(&memory, &mappings, registers);
    let sampled = python.sample(table, &mut samples);
    let calls = python.frames_by_call();
    let is_late = stop.as_ref().is_some_and(|stop| stop.resumed().is_set());
    let stopped_for = stop.map(StoppedProcess::end);
    if is_late {
        return Err(NativeError::TooLong);
    }
    sampled?;
    if !are_identified(&samples, table) {
        return Err(NativeError::UnknownThreads);
    }
    let of = |(thread, calls)| Some((table.get_thread(thread)?.os_id?, calls));
    let calls = calls.into_iter().filter_map(of).collect();
    Ok((CopiedMoment { stacks, python: samples, calls, stopped_for }, mappings))
}

fn are_identified(samples: &[ThreadSample], table: &StackTable) -> bool {
    let has_id =
        |it: &ThreadSample| table.get_thread(it.thread).is_some_and(|it| it.os_id.is_some());
    samples.iter().all(has_id)
}

fn mix(
    unwound: UnwoundThread,
    os_threads: &[OsThread],
    copied: &CopiedMoment,
    table: &StackTable,
) -> MixedStack {
    let UnwoundThread { thread, frames, incomplete } = unwound;
    let known = os_threads.iter().find(|it| it.id == thread);
    let os_id = known.map_or(u64::from(thread), |it| u64::from(it.id_in_target));
    let name = known.map(|it| it.name.clone()).filter(|name| !name.is_empty());
    let sample = copied
        .python
        .iter()
        .find(|it| table.get_thread(it.thread).and_then(|it| it.os_id) == Some(os_id));
    let python: Vec<Frame> = sample.map(|it| table.frames(it.stack).collect()).unwrap_or_default();
    let calls = copied.calls.iter().find(|(id, _)| *id == os_id);
    let calls = calls.and_then(|(_, calls)| calls.as_deref());
    let apart_because = why_apart(&frames, &python, calls, incomplete.is_some());
    let frames = match (&apart_because, calls) {
        (None, Some(calls)) => between(frames, &python, calls),
        _ => {
            let native = frames.into_iter().map(MixedFrame::Native);
            native.chain(python.iter().copied().map(MixedFrame::Python)).collect()
        }
    };
    let has_python = !python.is_empty();
    MixedStack { os_id, name, has_python, frames, apart_because, incomplete }
}

pub(super) fn is_interpreter(frame: &NativeFrame) -> bool {
    let name = frame.function.as_deref();
    name.is_some_and(|name| INTERPRETER.iter().any(|it| name.starts_with(it)))
}

/// Why Python's frames cannot be placed among the native ones; `None` if both stacks show the same
/// calls of the interpreter.
pub(super) fn why_apart(
    native: &[NativeFrame],
    python: &[Frame],
    calls: Option<&[u32]>,
    is_incomplete: bool,
) -> Option<String> {
    if python.is_empty() {
        return None;
    }
    let Some(calls) = calls else {
        return Some("Python's frames could not be read once more".to_owned());
    };
    let found = native.iter().filter(|frame| is_interpreter(frame)).count();
    let frames: u64 = calls.iter().map(|frames| u64::from(*frames)).sum();
    // Assembly code without unwind tables ends a stack.
    if is_incomplete && found < calls.len() {
        return Some("the native frames that are known end before those of Python".to_owned());
    }
    if found == 0 {
        return Some(
            "the function of the interpreter has no name: its symbols are stripped".to_owned(),
        );
    }
    if frames != python.len() as u64 {
        return Some(format!("{} frames of Python were read, and then {frames}", python.len()));
    }
    (found != calls.len()).then(|| {
        format!(
            "the interpreter is called {found} times in them, {} times by Python's frames",
            calls.len()
        )
    })
}

pub(super) fn between(
    native: Vec<NativeFrame>,
    python: &[Frame],
    calls: &[u32],
) -> Vec<MixedFrame> {
    let mut mixed = Vec::with_capacity(native.len() + python.len());
    let mut python = python.iter().copied().map(MixedFrame::Python);
    let mut calls = calls.iter();
    for frame in native {
        match is_interpreter(&frame) {
            true => mixed.extend(python.by_ref().take(calls.next().map_or(0, |it| *it as usize))),
            false => mixed.push(MixedFrame::Native(frame)),
        }
    }
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FunctionId;

    fn native(names: &[&str]) -> Vec<NativeFrame> {
        let frame = |name: &&str| NativeFrame {
            function: (!name.is_empty()).then(|| (*name).to_owned()),
            module: None,
            address: 0,
        };
        names.iter().map(frame).collect()
    }

    fn python(count: u32) -> Vec<Frame> {
        (0..count).map(|line| Frame { function: FunctionId(0), line }).collect()
    }

    fn text(frames: &[MixedFrame]) -> String {
        let one = |frame: &MixedFrame| match frame {
            MixedFrame::Python(frame) => frame.line.to_string(),
            MixedFrame::Native(_) => "c".to_owned(),
        };
        frames.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn python_frames_replace_interpreter_calls() {
        let eval = "_PyEval_EvalFrameDefault";
        let stack = native(&["sleep", eval, "list_sort", "_PyEval_EvalFrameDefault.cold", "main"]);
        let python = python(4);
        assert_eq!(why_apart(&stack, &python, Some(&[1, 3]), false), None);
        assert_eq!(text(&between(stack.clone(), &python, &[1, 3])), "c 0 c 1 2 3 c");
        for (calls, part) in [
            (Some(&[4][..]), "called 2 times in them, 1 times"),
            (Some(&[1, 2]), "4 frames of Python were read, and then 3"),
            (None, "could not be read"),
        ] {
            let why = why_apart(&stack, &python, calls, false).unwrap();
            assert!(why.contains(part), "{why}");
        }
        let stripped = native(&["sleep", "", "", "main"]);
        let why = |is_incomplete| why_apart(&stripped, &python, Some(&[1, 3]), is_incomplete);
        assert!(why(false).unwrap().contains("stripped"));
        assert!(why(true).unwrap().contains("end before"), "of its symbols nothing is known");
        assert_eq!(why_apart(&stripped, &[], None, false), None);
    }
}
