//! Merges an allocation's Python and native frames.

use std::sync::Arc;

use crate::model::{Frame, Function, MixedFrame, NativeFrame, StackId, StackTable};
use crate::native::UnwoundStack;
use crate::sampler::mixed_stacks::{between, is_interpreter, why_apart};

/// The allocating thread's Python stack.
#[derive(Debug, Clone, Copy)]
pub struct PythonPart<'a> {
    /// Its frames, innermost first.
    pub frames: &'a [Frame],
    /// Frames in each call of the interpreter, innermost call first.
    pub calls: &'a [u32],
    /// Outermost frames are missing.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum MergedFrame {
    Frame(MixedFrame),
    Missing(String),
}

/// The merged stack, from Python's outermost frame on.
pub fn merge(
    unwound: &UnwoundStack,
    python: Option<PythonPart<'_>>,
    table: &mut StackTable,
) -> Option<StackId> {
    let merged = match python.filter(|it| !it.frames.is_empty()) {
        Some(python) => with_python(unwound, python),
        None => {
            let frames = unwound.frames.iter().cloned().map(native);
            let missing = unwound.incomplete.clone().map(MergedFrame::Missing);
            frames.chain(missing).collect()
        }
    };
    let mut stack = None;
    for frame in merged.into_iter().rev() {
        let frame = match frame {
            MergedFrame::Frame(MixedFrame::Python(frame)) => table.frame(frame),
            MergedFrame::Frame(MixedFrame::Native(native)) => {
                let name = native.function.as_deref().unwrap_or("??");
                native_frame(name.into(), native.module.as_deref().unwrap_or_default(), table)
            }
            MergedFrame::Missing(why) => {
                native_frame(format!("[native frames unknown: {why}]").into(), "", table)
            }
        };
        stack = Some(table.stack(stack, frame));
    }
    stack
}

fn native_frame(name: Arc<str>, module: &str, table: &mut StackTable) -> crate::model::FrameId {
    let function = table.function(Function::native(name, module.into()));
    table.frame(Frame { function, line: 0 })
}

fn native(frame: NativeFrame) -> MergedFrame {
    MergedFrame::Frame(MixedFrame::Native(frame))
}

fn with_python(unwound: &UnwoundStack, python: PythonPart<'_>) -> Vec<MergedFrame> {
    let PythonPart { frames, calls, truncated } = python;
    let mut found = &unwound.frames[..];
    let mut is_incomplete = unwound.incomplete.is_some();
    if truncated {
        let calls_found = found.iter().enumerate().filter(|(_, frame)| is_interpreter(frame));
        if let Some((last, _)) =
            calls.len().checked_sub(1).and_then(|last| calls_found.clone().nth(last))
        {
            found = &found[..=last];
            is_incomplete = false;
        }
    }
    match why_apart(found, frames, Some(calls), is_incomplete) {
        None => {
            let mut merged = between(found.to_vec(), frames, calls);
            let python = merged.iter().rposition(|it| matches!(it, MixedFrame::Python(_)));
            merged.truncate(python.map_or(0, |last| last + 1));
            merged.into_iter().map(MergedFrame::Frame).collect()
        }
        Some(why) => {
            // Frames inside no interpreter call belong to Python's innermost frame. The place of
            // the others is unknown.
            let why = match (&unwound.incomplete, is_incomplete) {
                (Some(incomplete), true) => incomplete.clone(),
                _ => why,
            };
            let inner = found.iter().take_while(|frame| !is_interpreter(frame)).cloned();
            let python = frames.iter().map(|it| MergedFrame::Frame(MixedFrame::Python(*it)));
            inner.map(native).chain([MergedFrame::Missing(why)]).chain(python).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVAL: &str = "_PyEval_EvalFrameDefault";

    fn stack(names: &[&str], incomplete: Option<&str>) -> UnwoundStack {
        let frame = |name: &&str| NativeFrame {
            function: (!name.is_empty()).then(|| (*name).to_owned()),
            module: Some("l.so".to_owned()),
            address: 0,
        };
        let frames = names.iter().map(frame).collect();
        UnwoundStack { number: 1, frames, incomplete: incomplete.map(str::to_owned) }
    }

    fn merged(unwound: &UnwoundStack, lines: &[u32], calls: &[u32], truncated: bool) -> String {
        let mut table = StackTable::new();
        let function = Function {
            name: "f".into(),
            file: "f.py".into(),
            first_line: 1,
            last_line: 9,
            is_native: false,
        };
        let function = table.function(function);
        let frames: Vec<Frame> = lines.iter().map(|&line| Frame { function, line }).collect();
        let python = PythonPart { frames: &frames, calls, truncated };
        let stack = merge(unwound, Some(python), &mut table).unwrap();
        let mut names: Vec<String> = table
            .frames(stack)
            .map(|frame| {
                let function = table.get_function(frame.function).unwrap();
                match function.is_native {
                    true => function.name.to_string(),
                    false => frame.line.to_string(),
                }
            })
            .collect();
        names.reverse();
        names.join(" ")
    }

    #[test]
    fn native_frames_go_between_python_frames_without_the_program_start() {
        let unwound =
            stack(&["malloc", "at::empty", EVAL, "list_sort", EVAL, "main", "_start"], None);
        assert_eq!(
            merged(&unwound, &[3, 2, 1], &[1, 2], false),
            "1 2 list_sort 3 at::empty malloc"
        );
    }

    #[test]
    fn a_truncated_native_stack_keeps_what_innermost_python_called() {
        let unwound = stack(&["malloc", "at::empty", EVAL, "list_sort"], Some("it is cut"));
        let expected = "1 2 3 [native frames unknown: it is cut] at::empty malloc";
        assert_eq!(merged(&unwound, &[3, 2, 1], &[1, 2], false), expected);
    }

    #[test]
    fn mismatched_native_frames_are_never_put_between_python_frames() {
        let unwound = stack(&["malloc", EVAL, "list_sort", EVAL, "x", EVAL, "main"], None);
        let text = merged(&unwound, &[3, 2, 1], &[1, 2], false);
        assert!(
            text.starts_with("1 2 3 [native frames unknown: the interpreter is called 3"),
            "{text}"
        );
        assert!(text.ends_with("] malloc"), "{text}");
        let text = merged(&stack(&["", "", "main"], None), &[1], &[1], false);
        assert!(text.contains("stripped") && text.ends_with("main ?? ??"), "{text}");
    }

    #[test]
    fn a_truncated_python_stack_gets_native_frames_for_known_calls() {
        let unwound = stack(&["malloc", EVAL, "list_sort", EVAL, "x", EVAL, "main"], None);
        assert_eq!(merged(&unwound, &[3, 2, 1], &[1, 2], true), "1 2 list_sort 3 malloc");
    }

    #[test]
    fn a_thread_without_python_has_all_its_frames() {
        let mut table = StackTable::new();
        let unwound = stack(&["malloc", "evaluate", "clone"], Some("lost"));
        let id = merge(&unwound, None, &mut table).unwrap();
        let names =
            table.frames(id).map(|it| table.get_function(it.function).unwrap().name.clone());
        let names: Vec<_> = names.collect();
        assert_eq!(names.join(" "), "malloc evaluate clone [native frames unknown: lost]");
        assert!(table.frames(id).all(|it| table.get_function(it.function).unwrap().is_native));
        assert_eq!(merge(&stack(&[], None), None, &mut table), None);
    }
}
