//! Replays a recording with today's rules and compares it with its truth.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use memspy::analysis::{
    Evidence, FoldOptions, FoldedStack, Moment, Profile, PseudoFrame, StackLabel, flame, peak,
};
use memspy::model::CudaIndex;
use memspy::trace::TraceReader;
use serde::{Deserialize, Serialize};

use crate::truth::{Bytes, Place, Stack, Truth};

/// memspy starts a little before the history: proven bytes beyond this factor are wrong.
const EARLY: f64 = 1.02;
/// Files with one of these in their path are not the program's own.
const LIBRARIES: [&str; 3] = ["site-packages", "/lib/python", "/torchinductor_"];
/// Memory older than the recording.
const OLDER: &str = "[before recording]";
/// Memory whose stack nobody saw.
const NOT_SEEN: &str = "[not seen]";

/// Bytes with one kind of evidence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// Bytes with this evidence.
    pub bytes: u64,
    /// Those on the stack that allocated them.
    pub right: u64,
}

/// The accuracy of one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The truth's bytes, without those older than the recording.
    pub bytes: u64,
    /// Per cent of them on the right stack.
    pub stack: f64,
    /// Per cent of them on the right line of the program's own files.
    pub line: f64,
    /// By the name of the evidence.
    pub known: BTreeMap<String, Known>,
}

/// The accuracy of a recording.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// At its end.
    pub live: Part,
    /// At its peak.
    pub peak: Part,
    /// All allocations; `None` if only sampled.
    pub every: Option<Part>,
    /// Seconds to read it.
    #[serde(skip)]
    pub seconds: f64,
    /// Peak resident MiB of a process that reads it.
    #[serde(skip)]
    pub mebibytes: u64,
}

impl Score {
    /// Proven bytes on a wrong stack.
    pub fn wrong_and_proven(&self) -> u64 {
        let parts = [Some(&self.live), Some(&self.peak), self.every.as_ref()];
        let of_part =
            |part: &Part| part.known.get("proven").map_or(0, |known| known.bytes - known.right);
        parts.into_iter().flatten().map(of_part).sum()
    }
}

/// Replays the recording at `trace`.
pub fn judge(trace: &Path, truth: &Truth) -> Result<Score> {
    let started = Instant::now();
    let mut first = Profile::first_reading();
    // An exact recording needs none, and ends it.
    let _ = TraceReader::open(trace)?.replay(&mut first);
    let mut profile = Profile::new().without_line_statistics();
    profile.set_first(&first.into_first_reading());
    let mut reader = TraceReader::open(trace)?;
    reader.replay(&mut profile).with_context(|| format!("cannot read {}", trace.display()))?;
    profile.finish();
    let Some(device) = peak::main_gpu(&profile) else { bail!("{} has no GPU", trace.display()) };
    let mut score = Score {
        live: moment(&profile, device, Moment::End, (std::slice::from_ref(&truth.live), 1.0))?,
        peak: moment(&profile, device, Moment::Peak, (&truth.peaks, EARLY))?,
        every: every(&profile, device, &truth.every)?,
        ..Score::default()
    };
    score.seconds = started.elapsed().as_secs_f64();
    score.mebibytes = greatest_resident_size()? >> 10;
    Ok(score)
}

/// Evidence by name, the strongest first.
fn names() -> [(Evidence, &'static str); 5] {
    [
        (Evidence::Proven, "proven"),
        (Evidence::Probable, "probable"),
        (Evidence::Sampled, "sampled"),
        (Evidence::Shared, "shared"),
        (Evidence::NotSeen, "not seen"),
    ]
}

fn moment(
    profile: &Profile,
    device: CudaIndex,
    moment: Moment,
    (truths, early): (&[Bytes], f64),
) -> Result<Part> {
    let mut kinds = Vec::new();
    if profile.exact().is_some() {
        let folded = flame::fold(profile, device, moment, FoldOptions::default())?;
        let (unknown, proven): (Vec<_>, Vec<_>) =
            folded.stacks.into_iter().partition(|stack| has_no_event(&stack.path));
        kinds.push(("proven", bytes_of(profile, &proven)));
        kinds.push(("not seen", bytes_of(profile, &unknown)));
    } else {
        for (evidence, name) in names() {
            let options = FoldOptions { evidence: Some(evidence), ..FoldOptions::default() };
            match flame::fold(profile, device, moment, options) {
                Ok(folded) => kinds.push((name, bytes_of(profile, &folded.stacks))),
                // A recording that only sampled proves nothing.
                Err(_) if evidence == Evidence::Proven => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    // Moments can be equally high; memspy shows one of them.
    let parts = truths.iter().map(|truth| compare(&kinds, truth, early));
    parts.max_by(|a, b| a.stack.total_cmp(&b.stack)).context("the truth has no moment")
}

/// All allocations, as shares, because the history begins later than the recording.
fn every(profile: &Profile, device: CudaIndex, truth: &Bytes) -> Result<Option<Part>> {
    let options = FoldOptions { churn: true, ..FoldOptions::default() };
    let Ok(all) = flame::fold(profile, device, Moment::End, options) else { return Ok(None) };
    let all = bytes_of(profile, &all.stacks);
    let total: u64 = all.values().sum();
    let wanted: u64 = truth.values().sum();
    let scaled = |bytes: Bytes| -> Bytes {
        let scale = wanted as f64 / total.max(1) as f64;
        bytes.into_iter().map(|(stack, n)| (stack, (n as f64 * scale).round() as u64)).collect()
    };
    let proven = if profile.exact().is_some() {
        all.clone()
    } else {
        let options = FoldOptions { evidence: Some(Evidence::Proven), ..options };
        bytes_of(profile, &flame::fold(profile, device, Moment::End, options)?.stacks)
    };
    let mut rest = all;
    for (stack, bytes) in &proven {
        if let Some(all) = rest.get_mut(stack) {
            *all -= (*bytes).min(*all);
        }
    }
    let (unknown, rest): (Bytes, Bytes) =
        rest.into_iter().partition(|of| of.0 == Stack::Mark(NOT_SEEN.into()));
    let kinds =
        [("proven", scaled(proven)), ("not proven", scaled(rest)), ("not seen", scaled(unknown))];
    Ok(Some(compare(&kinds, truth, EARLY)))
}

/// Compares bytes by evidence, the strongest first, with the truth. Proven bytes may be `early`
/// times as many.
fn compare(kinds: &[(&str, Bytes)], truth: &Bytes, early: f64) -> Part {
    let older = Stack::Mark(OLDER.into());
    let truth: Bytes = truth.iter().filter(|(s, _)| **s != older).map(clone_pair).collect();
    let mut ours = Bytes::new();
    let mut part = Part { bytes: truth.values().sum(), ..Part::default() };
    for (name, bytes) in kinds {
        let mut known = Known::default();
        for (stack, &bytes) in bytes.iter().filter(|(stack, _)| **stack != older) {
            let taken = ours.entry(stack.clone()).or_default();
            let there = truth.get(stack).copied().unwrap_or(0);
            let there = if *name == "proven" { (there as f64 * early) as u64 } else { there };
            known.bytes += bytes;
            known.right += bytes.min(there.saturating_sub(*taken));
            *taken += bytes;
        }
        part.known.insert((*name).to_owned(), known);
    }
    let share = |right: u64| round(100.0 * right as f64 / part.bytes.max(1) as f64);
    part.stack = share(overlap(&ours, &truth));
    part.line = share(overlap(&by_own_line(&ours), &by_own_line(&truth)));
    part
}

fn clone_pair((stack, bytes): (&Stack, &u64)) -> (Stack, u64) {
    (stack.clone(), *bytes)
}

/// To a hundredth of a point, as in saved scores.
fn round(share: f64) -> f64 {
    (share * 100.0).round() / 100.0
}

fn overlap(ours: &Bytes, truth: &Bytes) -> u64 {
    ours.iter().map(|(stack, bytes)| *truth.get(stack).unwrap_or(&0).min(bytes)).sum()
}

/// By the innermost frame outside installed libraries.
fn by_own_line(bytes: &Bytes) -> Bytes {
    let mut lines = Bytes::new();
    for (stack, bytes) in bytes {
        let line = match stack {
            Stack::Mark(_) => stack.clone(),
            Stack::Frames(frames) | Stack::Below(frames) => {
                let is_own = |(file, _): &&Place| !LIBRARIES.iter().any(|part| file.contains(part));
                let own = frames.iter().find(is_own).or(frames.first());
                Stack::Frames(own.into_iter().cloned().collect())
            }
        };
        *lines.entry(line).or_default() += bytes;
    }
    lines
}

fn bytes_of(profile: &Profile, stacks: &[FoldedStack]) -> Bytes {
    let mut bytes = Bytes::new();
    for stack in stacks {
        *bytes.entry(stack_of(profile, &stack.path)).or_default() += stack.bytes;
    }
    bytes
}

/// The counter has these bytes without an event: memspy shows them as unattributed.
fn has_no_event(path: &[StackLabel]) -> bool {
    path.contains(&StackLabel::Pseudo(PseudoFrame::NoEvent))
}

fn stack_of(profile: &Profile, path: &[StackLabel]) -> Stack {
    let is = |mark: PseudoFrame| path.contains(&StackLabel::Pseudo(mark));
    for mark in [PseudoFrame::AutogradThread, PseudoFrame::BeforeRecording] {
        if is(mark) {
            return Stack::Mark(mark.text().into());
        }
    }
    let is_below = path.len() > 1 && is(PseudoFrame::NotSeen);
    if is(PseudoFrame::NotSeen) && !is_below {
        return Stack::Mark(NOT_SEEN.into());
    }
    let mut places = Vec::new();
    for label in path.iter().rev().skip(usize::from(is_below)) {
        let StackLabel::Frame(frame) = label else { return Stack::Mark(format!("{label:?}")) };
        let function = profile.stacks().get_function(frame.function);
        let Some(function) = function else { return Stack::Mark("[unknown function]".into()) };
        places.push((function.file.to_string(), frame.line));
    }
    if is_below { Stack::Below(places) } else { Stack::Frames(places) }
}

/// In KiB.
fn greatest_resident_size() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)).context("no VmHWM")?;
    Ok(kib.parse()?)
}
