//! Trace events for ui.perfetto.dev and chrome://tracing.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;

use crate::analysis::{Iteration, IterationLevels, Profile};
use crate::model::{CudaIndex, Nanos};
use crate::render::shared::{OutputError, json_line};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TraceDocument {
    trace_events: Vec<TraceEvent>,
    display_time_unit: &'static str,
    other_data: TraceOrigin,
}

#[derive(Serialize)]
struct TraceOrigin {
    exporter: &'static str,
    began_unix_nanos: u64,
}

#[derive(Serialize)]
struct TraceEvent {
    name: String,
    #[serde(rename = "ph")]
    phase: EventPhase,
    #[serde(rename = "cat", skip_serializing_if = "Option::is_none")]
    category: Option<&'static str>,
    /// Microseconds, as is `duration`.
    #[serde(rename = "ts", skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(rename = "dur", skip_serializing_if = "Option::is_none")]
    duration: Option<f64>,
    pid: u32,
    tid: u32,
    args: EventArguments,
}

#[derive(Serialize)]
enum EventPhase {
    #[serde(rename = "M")]
    Metadata,
    #[serde(rename = "C")]
    Counter,
    #[serde(rename = "X")]
    Slice,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EventArguments {
    ProcessName { name: String },
    Counter { bytes: i64 },
    Peaks(BTreeMap<String, i64>),
}

fn micros(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}

/// Writes counters and iterations of one device or all.
pub fn perfetto(
    out: &mut dyn Write,
    recordings: &[(&str, &Profile)],
    device: Option<CudaIndex>,
) -> Result<(), OutputError> {
    // Each recording has its own clock; wall time aligns them.
    let began = |profile: &Profile| profile.start().map_or(0, |start| start.unix_nanos);
    let first = recordings.iter().map(|(_, profile)| began(profile)).min().unwrap_or(0);
    let mut events = Vec::new();
    for (label, profile) in recordings {
        let origin = ProcessOrigin {
            pid: profile.start().map_or(0, |start| start.pid),
            offset: began(profile) - first,
        };
        events.push(origin.process_name(label));
        let gpus: Vec<CudaIndex> =
            profile.gpus().filter(|gpu| device.is_none_or(|wanted| wanted == *gpu)).collect();
        for gpu in &gpus {
            for point in profile.timeline(*gpu).map_or(&[][..], |timeline| timeline.points()) {
                for (name, bytes) in [("allocated", point.allocated), ("reserved", point.reserved)]
                {
                    let name = format!("GPU {} {name}", gpu.0);
                    events.push(origin.counter(name, point.time, bytes));
                }
            }
        }
        let iterations = profile.iterations().0.iter();
        events.extend(iterations.map(|iteration| origin.slice(iteration, &gpus)));
    }
    let other_data = TraceOrigin {
        exporter: concat!("memspy ", env!("CARGO_PKG_VERSION")),
        began_unix_nanos: first,
    };
    json_line(out, &TraceDocument { trace_events: events, display_time_unit: "ms", other_data })
}

/// A process, and its clock's nanoseconds behind the document's.
struct ProcessOrigin {
    pid: u32,
    offset: u64,
}

impl ProcessOrigin {
    fn at(&self, time: Nanos) -> Option<f64> {
        Some(micros(Nanos(time.0.saturating_add(self.offset))))
    }

    fn process_name(&self, label: &str) -> TraceEvent {
        TraceEvent {
            name: "process_name".to_owned(),
            phase: EventPhase::Metadata,
            category: None,
            time: None,
            duration: None,
            pid: self.pid,
            tid: 0,
            args: EventArguments::ProcessName { name: label.to_owned() },
        }
    }

    fn counter(&self, name: String, time: Nanos, bytes: i64) -> TraceEvent {
        TraceEvent {
            name,
            phase: EventPhase::Counter,
            category: None,
            time: self.at(time),
            duration: None,
            pid: self.pid,
            tid: 0,
            args: EventArguments::Counter { bytes },
        }
    }

    fn slice(&self, iteration: &Iteration, gpus: &[CudaIndex]) -> TraceEvent {
        let of_gpus = iteration.levels.iter().filter(|(gpu, _)| gpus.contains(gpu));
        let peak = |(gpu, levels): (&CudaIndex, &IterationLevels)| {
            (format!("GPU {} peak_allocated", gpu.0), levels.peak_allocated)
        };
        TraceEvent {
            name: match iteration.epoch {
                Some(epoch) => format!("epoch {epoch} step {}", iteration.step),
                None => format!("step {}", iteration.step),
            },
            phase: EventPhase::Slice,
            category: Some("iteration"),
            time: self.at(iteration.from),
            duration: Some(micros(Nanos(iteration.to.0.saturating_sub(iteration.from.0)))),
            pid: self.pid,
            tid: 0,
            args: EventArguments::Peaks(of_gpus.map(peak).collect()),
        }
    }
}
