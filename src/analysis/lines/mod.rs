//! The table of lines.

mod exact_lines;
mod group_diff;
mod line_diff;
mod node_stats;
mod ranking;
mod ranks;
mod recording_kind;
mod sampled_lines;
mod statements;

pub use group_diff::{function_changes, ownership_changes, stack_changes};
pub use line_diff::{ChangedPlace, ComparedMoment, MemoryChange, StackStep, line_changes};
use node_stats::{LineStats, NodeStat, SumAccuracy, UNKNOWN, row};
pub use ranking::{LineOrder, LineRanking, RankedLine, ranking};
pub use ranks::{RankFunction, RankRow, RankTable, RankValues};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::exact::{LineDoubt, UnknownReason};
use crate::analysis::flame;
use crate::analysis::folded::FoldError;
use crate::analysis::peak;
use crate::analysis::profile::{HighWater, Profile};
use crate::model::{
    CudaIndex, FrameId, FunctionId, Metric, Pool, StackId, StackTable, StatField, StatKey,
};

/// A value, exact or a lower limit; `upper` is the upper limit, if any.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundedValue {
    pub value: i64,
    pub exact: bool,
    pub upper: Option<i64>,
}

/// One value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineCell {
    /// Which statistic.
    pub key: StatKey,
    /// Greatest level while the line was on a stack (`peak`), or at its end (`current`; sampled: at
    /// a sample). Sum (`allocated`, `freed`; sampled: an estimate).
    pub value: BoundedValue,
    /// Why the value is unknown.
    pub unknown: Option<UnknownReason>,
    /// For `allocated` or `freed`: the greatest of one execution.
    pub one_run: Option<BoundedValue>,
}

/// One line of a function, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineRow {
    /// 0 if unknown.
    pub line: u32,
    /// One per requested column, in order.
    pub cells: Vec<LineCell>,
    /// With the line on the stack (estimated unless exact).
    pub allocated: i64,
    /// Estimated; `None` in exact recordings without the stacks of frees.
    pub freed: Option<i64>,
    /// Live at the peak, as accurate as `allocated`.
    pub live: u64,
    /// The part allocated with the line innermost.
    pub live_self: u64,
    /// Samples of running threads, or exact allocations.
    pub samples: u64,
}

/// A function's lines in order, and the greatest value of the first column.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineFunction {
    pub function: FunctionId,
    pub peak: i64,
    pub rows: Vec<LineRow>,
}

/// One device's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineTable {
    /// The device.
    pub device: CudaIndex,
    /// The columns.
    pub columns: Vec<StatKey>,
    /// Functions by peak, then by own live bytes.
    pub functions: Vec<LineFunction>,
    /// Allocated and live bytes are estimates: all but exact recordings with every event's
    /// stack.
    pub estimated: bool,
    /// Peak of allocated bytes.
    pub allocated: HighWater,
    /// Peak of reserved bytes, if known.
    pub reserved: Option<HighWater>,
    /// Why no line of an exact recording is marked exact.
    pub doubt: Option<LineDoubt>,
}

impl LineTable {
    /// Adds rows for all other lines of code.
    pub fn with_all_lines(mut self, profile: &Profile) -> LineTable {
        let kind = recording_kind::of(profile);
        let frees_known = kind.knows_none(StatField::Freed);
        for function in &mut self.functions {
            let Some(source) = profile.source(function.function) else { continue };
            let seen: FxHashSet<u32> = function.rows.iter().map(|row| row.line).collect();
            for (text, line) in source.text.lines().zip(source.first_line..=u32::MAX) {
                let text = text.trim_start();
                let is_code = !text.is_empty() && !text.starts_with('#');
                if !is_code || seen.contains(&line) {
                    continue;
                }
                let cell = |key: &StatKey| {
                    // It ran without allocating or freeing.
                    let nothing = kind.knows_none(key.field);
                    let unknown = kind.unknown_reason(self.device, *key);
                    let is_exact = !self.estimated;
                    let zero =
                        BoundedValue { value: 0, exact: is_exact, upper: is_exact.then_some(0) };
                    let (value, unknown) = match nothing && unknown.is_none() {
                        true => (zero, None),
                        false => (UNKNOWN, unknown.or(Some(UnknownReason::NotSeen))),
                    };
                    LineCell { key: *key, value, unknown, one_run: None }
                };
                function.rows.push(LineRow {
                    line,
                    cells: self.columns.iter().map(cell).collect(),
                    allocated: 0,
                    freed: frees_known.then_some(0),
                    live: 0,
                    live_self: 0,
                    samples: 0,
                });
            }
            function.rows.sort_unstable_by_key(|row| row.line);
        }
        self
    }
}

/// Why there is no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum LineError {
    #[error(transparent)]
    NoGpu(FoldError),
    #[error("the statistics of lines were left out as the recording was read")]
    NotGathered,
    #[error("no counters of GPU {} were recorded", .device.0)]
    NoCounters { device: CudaIndex },
}

/// The default columns.
pub fn default_columns() -> Vec<StatKey> {
    [Metric::AllocatedBytes, Metric::ReservedBytes]
        .map(|metric| StatKey { metric, pool: Pool::All, field: StatField::Peak })
        .to_vec()
}

/// The table of lines of a device.
pub fn table(
    profile: &Profile,
    device: CudaIndex,
    columns: &[StatKey],
) -> Result<LineTable, LineError> {
    if !profile.gathers_lines() {
        return Err(LineError::NotGathered);
    }
    if !profile.has_gpu(device) {
        return Err(LineError::NoGpu(flame::no_gpu(profile, device)));
    }
    let has_counters = profile.counters(device).is_some() || profile.exact().is_some();
    let Some(allocated) = peak::allocated(profile, device).filter(|_| has_counters) else {
        return Err(LineError::NoCounters { device });
    };
    let reserved = profile.peak_reserved(device);
    let kind = recording_kind::of(profile);
    let unknown: Vec<Option<UnknownReason>> =
        columns.iter().map(|key| kind.unknown_reason(device, *key)).collect();
    let (sure, doubt) = kind.accuracy(device);
    let by_frame = by_frame(profile, device, columns);
    let mut functions: FxHashMap<FunctionId, Vec<LineRow>> = FxHashMap::default();
    for (frame, node) in by_frame {
        let Some(frame) = profile.stacks().get_frame(frame) else {
            continue;
        };
        // Never seen on a running thread.
        if node.stats[0].current == i64::MIN && node.live == 0 {
            continue;
        }
        functions
            .entry(frame.function)
            .or_default()
            .push(row(frame.line, &node, columns, &unknown, sure));
    }
    for (function, rows) in &mut functions {
        kind.join_statements(rows, profile.source(*function));
    }
    let mut functions: Vec<LineFunction> = functions
        .into_iter()
        .map(|(function, mut rows)| {
            rows.sort_unstable_by_key(|r| r.line);
            let peak = rows
                .iter()
                .map(|r| r.cells.first().map_or(r.allocated, |c| c.value.value))
                .max()
                .unwrap_or(0);
            LineFunction { function, peak, rows }
        })
        .collect();
    functions.sort_by_cached_key(|f| {
        let own: u64 = f.rows.iter().map(|r| r.live_self).sum();
        (std::cmp::Reverse((f.peak, own)), f.function)
    });
    let columns = columns.to_vec();
    let estimated = !sure.exact;
    Ok(LineTable { device, columns, functions, estimated, allocated, reserved, doubt })
}

fn by_frame(
    profile: &Profile,
    device: CudaIndex,
    columns: &[StatKey],
) -> FxHashMap<FrameId, LineStats> {
    let mut nodes = recording_kind::of(profile).nodes(device, columns);
    let table = profile.stacks();
    // Callers have smaller numbers than callees: one pass from the end sums subtrees.
    let own: Vec<u64> = nodes.iter().map(|n| n.live).collect();
    for i in (0..nodes.len()).rev() {
        let parent = table.get_stack(StackId(i as u32)).and_then(|n| n.parent);
        if let Some(parent) = parent {
            let (callers, rest) = nodes.split_at_mut(i);
            callers[parent.0 as usize].raise_to(&rest[0]);
            callers[parent.0 as usize].add(&rest[0]);
        }
    }
    let recursive = recursive(table, nodes.len());
    let mut by_frame: FxHashMap<FrameId, LineStats> = FxHashMap::default();
    for (i, node) in nodes.iter().enumerate() {
        let Some(stack) = table.get_stack(StackId(i as u32)) else {
            continue;
        };
        let line = by_frame.entry(stack.frame).or_insert_with(|| LineStats {
            stats: vec![NodeStat::NONE; node.stats.len()],
            live: 0,
            live_self: 0,
            samples: 0,
        });
        line.raise_to(node);
        line.end(node);
        line.live_self += own[i];
        // The outer occurrence includes the inner one.
        if !recursive[i] {
            line.add(node);
        }
    }
    by_frame
}

/// Whether a stack's innermost frame also occurs further out. One walk for all stacks.
fn recursive(table: &StackTable, count: usize) -> Vec<bool> {
    let stack = |i: u32| table.get_stack(StackId(i));
    let (mut first_callee, mut next_callee) = (vec![None; count], vec![None; count]);
    let mut outermost = Vec::new();
    for i in (0..count as u32).rev() {
        match stack(i).and_then(|node| node.parent) {
            Some(parent) => {
                next_callee[i as usize] = first_callee[parent.0 as usize].replace(i);
            }
            None => outermost.push(i),
        }
    }
    let mut recursive = vec![false; count];
    let mut standing: FxHashMap<FrameId, u32> = FxHashMap::default();
    for root in outermost {
        let mut path: Vec<(u32, Option<u32>)> = Vec::new();
        let mut enter = Some(root);
        loop {
            if let Some(i) = enter {
                if let Some(node) = stack(i) {
                    let times = standing.entry(node.frame).or_default();
                    recursive[i as usize] = *times > 0;
                    *times += 1;
                }
                path.push((i, first_callee[i as usize]));
            }
            let Some((i, callee)) = path.last_mut() else { break };
            enter = *callee;
            match enter {
                Some(next) => *callee = next_callee[next as usize],
                None => {
                    if let Some(times) = stack(*i).and_then(|node| standing.get_mut(&node.frame)) {
                        *times -= 1;
                    }
                    path.pop();
                }
            }
        }
    }
    recursive
}
