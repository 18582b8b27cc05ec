//! One look at a process as JSON: sizes in bytes, unknown is `null`.

use std::io::Write;

use serde_json::{Value, json};

use super::RenderError;
use super::dump::{activity_text, allocator_text, labels};
use crate::analysis::{Look, LookDevice, LookThread, OutsideTorch};

/// Writes the look as one JSON object.
pub fn dump_json(out: &mut dyn Write, look: &Look) -> Result<(), RenderError> {
    let start = look.start();
    let runtime = look.runtime();
    let threads: Vec<Value> = look.threads().iter().map(|t| thread(look, t)).collect();
    let devices: Vec<Value> = look.devices().iter().map(device).collect();
    let missed: Vec<Value> = look
        .missed()
        .iter()
        .map(|m| json!({"reader": format!("{:?}", m.reader), "why": format!("{:?}", m.why)}))
        .collect();
    let value = json!({
        "pid": start.map(|s| s.pid),
        "host": start.map(|s| &s.host),
        "command": start.map(|s| &s.command),
        "python": runtime.and_then(|r| r.python.as_ref()),
        "torch": runtime.and_then(|r| r.torch.as_ref()),
        "allocator": runtime.map(|r| allocator_text(&r.allocator)),
        "threads": threads,
        "devices": devices,
        "not_read": missed,
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)?;
    Ok(())
}

fn thread(look: &Look, thread: &LookThread) -> Value {
    let known = look.stacks().get_thread(thread.thread);
    let labels = labels(look, true);
    let frames: Vec<Value> = look
        .stacks()
        .frames(thread.stack)
        .map(|frame| {
            let function = look.stacks().get_function(frame.function);
            json!({
                "function": function.map(|f| &*f.name),
                "file": function.map(|f| labels.file(f)),
                "line": (frame.line > 0).then_some(frame.line),
            })
        })
        .collect();
    json!({
        "os_id": known.and_then(|t| t.os_id),
        "name": known.and_then(|t| t.name.as_deref()),
        "main": known.map(|t| t.main),
        "gil": thread.gil,
        "activity": activity_text(thread.activity),
        "frames": frames,
    })
}

fn device(device: &LookDevice) -> Value {
    let (outside, why) = match &device.outside {
        OutsideTorch::Bytes(bytes) => (Some(bytes), None),
        OutsideTorch::Unknown(why) => (None, Some(why)),
    };
    json!({
        "cuda_index": device.cuda_index.map(|c| c.0),
        "nvml_index": device.nvml_index,
        "name": device.name,
        "total": device.total,
        "used": device.used,
        "free": device.free,
        "allocated": device.allocated,
        "reserved": device.reserved,
        "cached_free": device.cached,
        "largest_free_block": device.largest_free,
        "outside_pytorch": outside,
        "outside_pytorch_unknown_because": why,
        "other_processes": device.others,
    })
}
