//! Trigger conditions on records.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;

use crate::model::{
    AllocatorCounters, CudaIndex, EndReason, EventBatch, EventKind, GpuDevice, MemoryKind, Nanos,
    QuantityError, Record, RecordingEnd, TriggerFired, parse_size,
};

/// Parts in each half of the time measured.
const PARTS: usize = 10;
/// A job that ends this soon after a refusal probably died of it.
const MAX_EXIT_DELAY: u64 = 5_000_000_000;

/// A condition of `record --until`.
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerCondition {
    text: String,
    kind: TriggerKind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum TriggerKind {
    Oom,
    /// PyTorch freed its cache to get memory.
    Retry,
    Exit,
    Above(TriggerLevel, TriggerAmount),
    /// The allocated floor rises by `bytes` in `every` nanoseconds.
    Growth {
        bytes: u64,
        every: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TriggerLevel {
    /// Of the device, by all processes.
    Used,
    Reserved,
    Allocated,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum TriggerAmount {
    Bytes(u64),
    /// Of the device's memory.
    Percent(f64),
}

/// A text that is no condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a condition: {why}; known are oom, retry, exit, used>N, reserved>N, allocated>N (N in bytes, \
     as 500M, 70G, or in per cent of the device, as 90%) and growth>N/min (or /s, /h)"
)]
pub struct UnknownCondition {
    text: String,
    why: String,
}

impl TriggerCondition {
    /// Whether it needs NVML, for memory in use or device size.
    pub fn needs_driver(&self) -> bool {
        matches!(
            self.kind,
            TriggerKind::Above(TriggerLevel::Used, _)
                | TriggerKind::Above(_, TriggerAmount::Percent(_))
        )
    }
}

impl fmt::Display for TriggerCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for TriggerCondition {
    type Err = UnknownCondition;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let unknown = |why: &str| UnknownCondition { text: text.to_owned(), why: why.to_owned() };
        let no_size = |error: QuantityError| unknown(&error.to_string());
        let kind = match plain.split_once('>') {
            None => match plain.as_str() {
                "oom" => TriggerKind::Oom,
                "retry" => TriggerKind::Retry,
                "exit" => TriggerKind::Exit,
                _ => return Err(unknown("it needs a limit, or is unknown")),
            },
            Some(("growth", limit)) => {
                let (bytes, every) = limit.split_once('/').unwrap_or((limit, ""));
                let every = match every {
                    "s" => 1,
                    "min" | "m" => 60,
                    "h" => 3600,
                    _ => return Err(unknown("growth needs a time, as in growth>1G/min")),
                };
                let bytes = parse_size(bytes).map_err(no_size)?;
                TriggerKind::Growth { bytes, every: every * 1_000_000_000 }
            }
            Some((name, limit)) => {
                let level = match name {
                    "used" => TriggerLevel::Used,
                    "reserved" => TriggerLevel::Reserved,
                    "allocated" => TriggerLevel::Allocated,
                    _ => return Err(unknown("what it limits is unknown")),
                };
                TriggerKind::Above(level, amount(limit).map_err(|why| unknown(&why))?)
            }
        };
        Ok(TriggerCondition { text: plain, kind })
    }
}

fn amount(text: &str) -> Result<TriggerAmount, String> {
    match text.strip_suffix('%') {
        None => parse_size(text).map(TriggerAmount::Bytes).map_err(|error| error.to_string()),
        Some(percent) => match percent.parse::<f64>() {
            Ok(percent) if (0.0..100.0).contains(&percent) => Ok(TriggerAmount::Percent(percent)),
            _ => Err("a part of the device is from 0% to less than 100%".to_owned()),
        },
    }
}

/// Waits for conditions in a stream of records.
#[derive(Debug, Default)]
pub struct TriggerWatch {
    conditions: Vec<TriggerCondition>,
    /// By (condition, device).
    holds: BTreeMap<(usize, u32), bool>,
    devices: Vec<GpuDevice>,
    counters: BTreeMap<CudaIndex, AllocatorCounters>,
    floors: BTreeMap<(usize, CudaIndex), GrowthFloor>,
    /// No allocator existed when events began: its first counters count from 0.
    starts_empty: bool,
    /// Time and bytes of the last refusal without a later allocation.
    refused: Option<(Nanos, u64)>,
    now: Nanos,
}

impl TriggerWatch {
    /// Waits for any of `conditions`.
    pub fn new(conditions: Vec<TriggerCondition>) -> TriggerWatch {
        TriggerWatch { conditions, ..TriggerWatch::default() }
    }

    /// The conditions.
    pub fn conditions(&self) -> &[TriggerCondition] {
        &self.conditions
    }

    /// A condition that just became true.
    pub fn on_record(&mut self, record: &Record) -> Option<TriggerFired> {
        if let Some(time) = record.time() {
            self.now = self.now.max(time);
        }
        match record {
            Record::Device(device) => {
                device.merge_into(&mut self.devices);
                None
            }
            Record::ExactSettings(exact) => {
                self.starts_empty |= exact.starts_empty;
                None
            }
            Record::Counters { time, device, counters } => {
                self.on_counters(*time, *device, counters)
            }
            Record::Events(events) => self.on_events(events),
            Record::Usage(usage) => {
                let grown = self.passes(usage.time);
                let mut fired = None;
                for index in 0..self.conditions.len() {
                    let TriggerKind::Above(TriggerLevel::Used, amount) =
                        self.conditions[index].kind
                    else {
                        continue;
                    };
                    let limit = limit(amount, Some(usage.total));
                    let holds = limit.is_some_and(|limit| usage.used > limit);
                    let became = self.becomes(index, usage.nvml_index, holds);
                    if became {
                        let seen = format!(
                            "{} of {} of the device in use by all processes",
                            size(usage.used),
                            size(usage.total)
                        );
                        fired = fired.or(Some(self.triggered(index, usage.time, seen)));
                    }
                }
                fired.or(grown)
            }
            Record::Sample(sample) => self.passes(sample.time),
            Record::End(end) => self.on_end(end),
            _ => None,
        }
    }

    fn triggered(&self, index: usize, time: Nanos, seen: String) -> TriggerFired {
        TriggerFired { time, condition: self.conditions[index].text.clone(), seen }
    }

    fn becomes(&mut self, index: usize, device: u32, holds: bool) -> bool {
        let before = self.holds.insert((index, device), holds);
        holds && before != Some(true)
    }

    fn total(&self, device: CudaIndex) -> Option<u64> {
        self.devices.iter().find(|known| known.cuda_index == Some(device))?.total
    }

    fn on_counters(
        &mut self,
        time: Nanos,
        device: CudaIndex,
        now: &AllocatorCounters,
    ) -> Option<TriggerFired> {
        let before = self.counters.insert(device, *now);
        let mut fired = None;
        for index in 0..self.conditions.len() {
            // A reset counter counts from 0.
            let grown = |of: fn(&AllocatorCounters) -> i64| match &before {
                Some(before) => of(now) - of(before),
                None if self.starts_empty => of(now),
                None => 0,
            };
            let on = format!("on GPU {}", device.0);
            let seen = match self.conditions[index].kind {
                TriggerKind::Oom if grown(|c| c.num_ooms) > 0 => Some(format!(
                    "PyTorch's allocator ran out of memory {on} (error number {})",
                    now.num_ooms
                )),
                TriggerKind::Retry if grown(|c| c.num_alloc_retries) > 0 => Some(format!(
                    "PyTorch's allocator had to free its cache {on} to get memory (number {})",
                    now.num_alloc_retries
                )),
                _ => None,
            };
            if let Some(seen) = seen {
                fired = fired.or(Some(self.triggered(index, time, seen)));
            }
        }
        // Peaks show levels reached between two polls.
        let risen =
            |peak: i64, before: Option<i64>| before.is_some_and(|b| peak > b).then_some(peak);
        let before = before.as_ref();
        let reached = [
            (
                TriggerLevel::Allocated,
                now.allocated(),
                risen(now.max_allocated(), before.map(|b| b.max_allocated())),
            ),
            (
                TriggerLevel::Reserved,
                now.reserved(),
                risen(now.max_reserved(), before.map(|b| b.max_reserved())),
            ),
        ];
        for (level, current, peak) in reached {
            let bytes = current.max(peak.unwrap_or(0)).max(0) as u64;
            fired = fired.or(self.reaches(time, device, level, bytes));
        }
        let allocated = now.allocated().max(0) as u64;
        fired.or(self.grows(time, device, allocated))
    }

    fn on_events(&mut self, events: &EventBatch) -> Option<TriggerFired> {
        let mut fired = None;
        for event in &events.events {
            match event.change {
                EventKind::Allocated { memory_kind: MemoryKind::Torch(device), levels, .. } => {
                    self.refused = None;
                    let Some(levels) = levels else { continue };
                    for (level, bytes) in [
                        (TriggerLevel::Allocated, levels.allocated),
                        (TriggerLevel::Reserved, levels.reserved),
                    ] {
                        let bytes = bytes.max(0) as u64;
                        fired = fired.or(self.reaches(event.time, device, level, bytes));
                    }
                }
                EventKind::Failed { size, code: EventKind::OUT_OF_MEMORY, .. } => {
                    self.refused = Some((event.time, size));
                }
                _ => {}
            }
        }
        fired
    }

    fn reaches(
        &mut self,
        time: Nanos,
        device: CudaIndex,
        level: TriggerLevel,
        bytes: u64,
    ) -> Option<TriggerFired> {
        let mut fired = None;
        for index in 0..self.conditions.len() {
            let TriggerKind::Above(wanted, amount) = self.conditions[index].kind else { continue };
            if wanted != level {
                continue;
            }
            let total = self.total(device);
            let holds = limit(amount, total).is_some_and(|limit| bytes > limit);
            if self.becomes(index, device.0, holds) {
                let what = if level == TriggerLevel::Reserved { "reserved" } else { "allocated" };
                let of = total.map_or(String::new(), |total| format!(" of {}", size(total)));
                let seen = format!("{}{of} {what} by PyTorch on GPU {}", size(bytes), device.0);
                fired = fired.or(Some(self.triggered(index, time, seen)));
            }
        }
        fired
    }

    fn passes(&mut self, time: Nanos) -> Option<TriggerFired> {
        if !self.conditions.iter().any(|c| matches!(c.kind, TriggerKind::Growth { .. })) {
            return None;
        }
        let known: Vec<(CudaIndex, u64)> =
            self.counters.iter().map(|(&d, c)| (d, c.allocated().max(0) as u64)).collect();
        known.into_iter().find_map(|(device, allocated)| self.grows(time, device, allocated))
    }

    fn grows(&mut self, time: Nanos, device: CudaIndex, allocated: u64) -> Option<TriggerFired> {
        let mut fired = None;
        for index in 0..self.conditions.len() {
            let TriggerKind::Growth { bytes, every } = self.conditions[index].kind else {
                continue;
            };
            let floor = self.floors.entry((index, device)).or_default();
            let Some((before, now)) = floor.on_level(time.0, allocated, every) else { continue };
            let grown = 2 * now.saturating_sub(before);
            if self.becomes(index, device.0, grown > bytes) {
                let seconds = every / 1_000_000_000;
                let seen = format!(
                    "what stays allocated on GPU {} rose from {} to {} in {} s: {} in {seconds} s",
                    device.0,
                    size(before),
                    size(now),
                    seconds as f64 / 2.0,
                    size(grown)
                );
                fired = fired.or(Some(self.triggered(index, time, seen)));
            }
        }
        fired
    }

    fn on_end(&mut self, end: &RecordingEnd) -> Option<TriggerFired> {
        let gone = matches!(end.reason, EndReason::TargetExited | EndReason::TargetExecuted);
        let of = |kind: TriggerKind| self.conditions.iter().position(|c| c.kind == kind);
        if let (Some(index), Some((time, bytes)), true) = (of(TriggerKind::Oom), self.refused, gone)
            && end.time.0.saturating_sub(time.0) < MAX_EXIT_DELAY
        {
            let seen = format!(
                "the driver refused {} {:.3} s before the job ended, and nothing was allocated after that",
                size(bytes),
                (end.time.0 - time.0.min(end.time.0)) as f64 / 1e9
            );
            return Some(self.triggered(index, end.time, seen));
        }
        let index = of(TriggerKind::Exit).filter(|_| gone)?;
        let what = match end.reason {
            EndReason::TargetExecuted => "the job became another program",
            _ => "the job ended",
        };
        Some(self.triggered(index, end.time, what.to_owned()))
    }
}

fn limit(amount: TriggerAmount, total: Option<u64>) -> Option<u64> {
    match amount {
        TriggerAmount::Bytes(bytes) => Some(bytes),
        TriggerAmount::Percent(percent) => {
            total.map(|total| (total as f64 * percent / 100.0) as u64)
        }
    }
}

/// As in reports; the text is kept in the trace.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..units.len()).rev().find(|&u| bytes >> (10 * u) > 0).unwrap_or(0);
    match unit {
        0 => format!("{bytes} B"),
        unit => {
            format!("{:.2} {}", bytes as f64 / f64::from(1u32 << 10).powi(unit as i32), units[unit])
        }
    }
}

/// Least level of each part: a sawtooth's floor.
#[derive(Debug, Default)]
struct GrowthFloor {
    parts: VecDeque<u64>,
    /// Start and least level of the current part.
    open: Option<(u64, u64)>,
    last: u64,
}

impl GrowthFloor {
    /// When a part closes, the floors of both halves.
    fn on_level(&mut self, time: u64, level: u64, every: u64) -> Option<(u64, u64)> {
        let length = (every / (2 * PARTS as u64)).max(1);
        let mut closed = false;
        let (mut began, mut least) = *self.open.get_or_insert((time, level));
        if time.saturating_sub(began) >= length * 4 * PARTS as u64 {
            // Unchanged for that long: earlier parts no longer count.
            self.parts.clear();
            (began, least) = (time - length * 2 * PARTS as u64, self.last);
        }
        // Near the end of a u64, `began + length` would overflow.
        while time.saturating_sub(began) >= length {
            self.parts.push_back(least);
            if self.parts.len() > 2 * PARTS {
                self.parts.pop_front();
            }
            (began, least) = (began + length, self.last);
            closed = true;
        }
        self.last = level;
        self.open = Some((began, least.min(level)));
        if !closed || self.parts.len() < 2 * PARTS {
            return None;
        }
        let floor = |parts: std::collections::vec_deque::Iter<'_, u64>| parts.copied().min();
        floor(self.parts.range(..PARTS)).zip(floor(self.parts.range(PARTS..)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_near_u64_max_cost_no_more_work() {
        for every in [1_000_000_000, 60_000_000_000, 3_600_000_000_000] {
            for times in [
                [0, u64::MAX, 0, u64::MAX - 1],
                [u64::MAX - 3, u64::MAX - 2, u64::MAX - 1, u64::MAX],
                [u64::MAX, 0, 1 << 63, u64::MAX],
            ] {
                let mut floor = GrowthFloor::default();
                for time in times {
                    floor.on_level(time, 1 << 20, every);
                    assert!(floor.parts.len() <= 2 * PARTS);
                }
            }
        }
    }
}
