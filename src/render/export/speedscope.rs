//! speedscope's JSON: a sampled profile of each device, weighted by bytes.
//!
//! <https://github.com/jlfwong/speedscope/blob/main/src/lib/file-format-spec.ts>

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;

use super::{ExportedDevice, ExportedFrame};
use crate::render::shared::{OutputError, json_line};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpeedscopeFile {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    active_profile_index: usize,
    shared: SharedFrames,
    profiles: Vec<SampledProfile>,
}

#[derive(Serialize)]
struct SharedFrames {
    frames: Vec<SpeedscopeFrame>,
}

#[derive(Serialize)]
struct SpeedscopeFrame {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SampledProfile {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Frame numbers, outermost first.
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// Writes a profile per device.
pub fn speedscope(out: &mut dyn Write, devices: &[ExportedDevice<'_>]) -> Result<(), OutputError> {
    let mut frames: Vec<SpeedscopeFrame> = Vec::new();
    let mut numbers: BTreeMap<ExportedFrame, usize> = BTreeMap::new();
    let mut profiles = Vec::new();
    for device in devices {
        let mut number = |frame: ExportedFrame| {
            *numbers.entry(frame.clone()).or_insert_with(|| {
                let line = (frame.line > 0).then_some(frame.line);
                frames.push(SpeedscopeFrame { name: frame.name, file: frame.file, line });
                frames.len() - 1
            })
        };
        let stacks = device.folded.stacks.iter().filter(|stack| stack.bytes > 0);
        let (samples, weights): (Vec<Vec<usize>>, Vec<u64>) = stacks
            .map(|stack| {
                let path = device.frames(&stack.path).into_iter();
                (path.map(&mut number).collect::<Vec<_>>(), stack.bytes)
            })
            .unzip();
        let moment = device.moment();
        profiles.push(SampledProfile {
            kind: "sampled",
            name: format!("{}, GPU {}, live bytes at {moment}", device.label, device.device().0),
            unit: "bytes",
            start_value: 0,
            end_value: weights.iter().sum(),
            samples,
            weights,
        });
    }
    let name = profiles.first().map_or_else(String::new, |profile| profile.name.clone());
    let file = SpeedscopeFile {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("memspy@", env!("CARGO_PKG_VERSION")).to_owned(),
        name,
        active_profile_index: 0,
        shared: SharedFrames { frames },
        profiles,
    };
    json_line(out, &file)
}
