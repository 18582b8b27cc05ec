//! Stacks with frames of compiled code, as JSON.

use super::json::{MixedFrameJson, MixedStackJson, NativeJson, NativeThreadJson};
use super::label::FrameLabels;
use crate::analysis::ProcessSnapshot;
use crate::model::{MixedFrame, MixedStack};

/// The native part beside the stacks of Python threads; `None` if it was not requested.
pub(super) fn native_json(look: &ProcessSnapshot, labels: &FrameLabels<'_>) -> Option<NativeJson> {
    let (stacks, unknown) = match look.mixed_stacks()? {
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

/// One stack; `labels` belong to its table.
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
