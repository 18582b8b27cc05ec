//! Trace events in JSON, as ui.perfetto.dev and chrome://tracing read them: counters over time, iterations as slices.

use std::io::Write;

use serde::Serialize;
use serde_json::{Value, json};

use crate::analysis::Profile;
use crate::model::{CudaIndex, Nanos};
use crate::render::RenderError;
use crate::render::interchange::json_line;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TraceEvents {
    trace_events: Vec<Value>,
    display_time_unit: &'static str,
    other_data: Value,
}

fn micros(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}

/// Writes the counters of the allocator over time and the iterations of each recording, which goes by the name before it; of
/// one device, or of all.
pub fn perfetto(
    out: &mut dyn Write,
    recordings: &[(&str, &Profile)],
    device: Option<CudaIndex>,
) -> Result<(), RenderError> {
    // Each on its own clock: wall time brings them together.
    let began = |profile: &Profile| profile.start().map_or(0, |start| start.unix_nanos);
    let first = recordings.iter().map(|(_, profile)| began(profile)).min().unwrap_or(0);
    let mut events = Vec::new();
    for (label, profile) in recordings {
        let pid = profile.start().map_or(0, |start| start.pid);
        let offset = began(profile) - first;
        let at = |time: Nanos| micros(Nanos(time.0.saturating_add(offset)));
        events.push(json!({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": label}}));
        let gpus: Vec<CudaIndex> =
            profile.gpus().filter(|gpu| device.is_none_or(|wanted| wanted == *gpu)).collect();
        for gpu in &gpus {
            for point in profile.timeline(*gpu).map_or(&[][..], |timeline| timeline.points()) {
                for (name, bytes) in [("allocated", point.allocated), ("reserved", point.reserved)]
                {
                    events.push(json!({
                        "name": format!("GPU {} {name}", gpu.0), "ph": "C", "ts": at(point.time),
                        "pid": pid, "tid": 0, "args": {"bytes": bytes},
                    }));
                }
            }
        }
        for iteration in profile.iterations().0 {
            let peaks: serde_json::Map<String, Value> = iteration
                .levels
                .iter()
                .filter(|(gpu, _)| gpus.contains(gpu))
                .map(|(gpu, levels)| {
                    (format!("GPU {} peak_allocated", gpu.0), levels.peak_allocated.into())
                })
                .collect();
            events.push(json!({
                "name": format!("step {}", iteration.step), "cat": "iteration", "ph": "X",
                "ts": at(iteration.from),
                "dur": micros(Nanos(iteration.to.0.saturating_sub(iteration.from.0))),
                "pid": pid, "tid": 0, "args": peaks,
            }));
        }
    }
    let other_data = json!({"exporter": concat!("memspy ", env!("CARGO_PKG_VERSION")), "began_unix_nanos": first});
    json_line(out, &TraceEvents { trace_events: events, display_time_unit: "ms", other_data })
}
