//! The table of lines: what the counters reached while each line was on a stack.

use rustc_hash::FxHashMap;

use super::charge::Origin;
use super::device::Moment;
use super::exact::ExactProfile;
use super::fold::FoldError;
use super::high_water::HighWater;
use super::line_bounds::stat_index;
use super::profile::Profile;
use crate::model::{
    CudaIndex, FrameId, FunctionId, Metric, Pool, StackId, StackTable, StatField, StatKey,
};

/// A value that may be known only to lie between two limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounded {
    /// The value; when not `exact`, the true one is at least this.
    pub value: i64,
    /// Whether the value is the true one.
    pub exact: bool,
    /// The true value is at most this; `None` when nothing limits it.
    pub upper: Option<i64>,
}

/// One value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Which statistic.
    pub key: StatKey,
    /// Its value: for `peak` the greatest reached while the line was on a stack, for `current` the
    /// greatest seen at a sample, for `allocated` and `freed` the sum while it was on a stack,
    /// estimated as the attribution rule does.
    pub value: Bounded,
}

/// One line of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineRow {
    /// Line number in the function's file; 0 when unknown.
    pub line: u32,
    /// One cell per column asked for, in their order.
    pub cells: Vec<Cell>,
    /// Bytes allocated while the line was on a stack (estimated, but exact in an exact recording).
    pub allocated: i64,
    /// Bytes freed while the line was on a stack (estimated); `None` in an exact recording that has not
    /// the stacks of frees.
    pub freed: Option<i64>,
    /// Bytes alive at the peak's moment that were allocated while the line was on the stack (as sure as `allocated`).
    pub live: u64,
    /// Of these, bytes allocated while the line was innermost.
    pub live_self: u64,
    /// Samples of threads at work that had the line on their stack; in an exact recording, allocations.
    pub samples: u64,
}

/// A function's lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineFunction {
    /// The function.
    pub function: FunctionId,
    /// Greatest value of the first column.
    pub peak: i64,
    /// The lines seen, in order.
    pub rows: Vec<LineRow>,
}

/// The table of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineTable {
    /// The device.
    pub device: CudaIndex,
    /// The columns.
    pub columns: Vec<StatKey>,
    /// Functions, the greatest peak first; among equals the one whose own lines hold the most.
    pub functions: Vec<LineFunction>,
    /// Whether the rows' bytes allocated and live are estimates: of all recordings but exact ones with the stack of each event.
    pub estimated: bool,
    /// The device's high-water mark of allocated bytes.
    pub allocated: HighWater,
    /// The device's high-water mark of reserved bytes.
    pub reserved: HighWater,
}

/// Why there is no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The recording has nothing of this device.
    #[error(transparent)]
    NoGpu(FoldError),
    /// The device's counters were not recorded.
    #[error("no counters of GPU {} were recorded", .device.0)]
    NoCounters {
        /// Asked for.
        device: CudaIndex,
    },
    /// Exact events do not tell this of lines.
    #[error(
        "an exact recording does not tell {key} of lines; it tells allocated_bytes.all.peak, \
         reserved_bytes.all.peak, active_bytes.all.peak, allocated_bytes.all.allocated, \
         allocation.all.allocated and, if made with --frees stacks, allocated_bytes.all.freed"
    )]
    NotInEvents {
        /// Asked for.
        key: StatKey,
    },
}

/// One statistic below a node of the stack tree.
#[derive(Debug, Clone, Copy)]
struct Sums {
    current: i64,
    lower: i64,
    upper: i64,
    allocated: i64,
    freed: i64,
}

impl Sums {
    const NONE: Sums =
        Sums { current: i64::MIN, lower: i64::MIN, upper: i64::MIN, allocated: 0, freed: 0 };

    fn reach(&mut self, other: &Sums) {
        self.current = self.current.max(other.current);
        self.lower = self.lower.max(other.lower);
        self.upper = self.upper.max(other.upper);
    }

    fn add(&mut self, other: &Sums) {
        self.allocated += other.allocated;
        self.freed += other.freed;
    }

    /// `exact` says whether sums are.
    fn bounded(&self, field: StatField, exact: bool) -> Bounded {
        let estimate = |value| Bounded { value, exact, upper: exact.then_some(value) };
        match field {
            StatField::Peak => Bounded {
                value: self.lower,
                exact: self.lower == self.upper,
                upper: (self.upper != i64::MAX).then_some(self.upper),
            },
            StatField::Current => {
                Bounded { value: self.current, exact: true, upper: Some(self.current) }
            }
            StatField::Allocated => estimate(self.allocated),
            StatField::Freed => estimate(self.freed),
        }
    }
}

/// What a node of the stack tree, or a line, has.
#[derive(Debug, Clone)]
struct Node {
    stats: Vec<Sums>,
    live: u64,
    live_self: u64,
    samples: u64,
}

impl Node {
    fn reach(&mut self, other: &Node) {
        for (a, b) in self.stats.iter_mut().zip(&other.stats) {
            a.reach(b);
        }
    }

    fn add(&mut self, other: &Node) {
        for (a, b) in self.stats.iter_mut().zip(&other.stats) {
            a.add(b);
        }
        self.live += other.live;
        self.samples += other.samples;
    }
}

impl Profile {
    /// The columns shown when none are asked for.
    pub fn default_columns() -> Vec<StatKey> {
        [Metric::AllocatedBytes, Metric::ReservedBytes]
            .map(|metric| StatKey { metric, pool: Pool::All, field: StatField::Peak })
            .to_vec()
    }

    /// The table of lines of a device.
    pub fn lines(&self, device: CudaIndex, columns: &[StatKey]) -> Result<LineTable, LineError> {
        if !self.has_gpu(device) {
            return Err(LineError::NoGpu(self.no_gpu(device)));
        }
        let (Some(allocated), Some(reserved)) =
            (self.peak_allocated(device), self.peak_reserved(device))
        else {
            return Err(LineError::NoCounters { device });
        };
        let exact = self.exact();
        let untold = |key: &&StatKey| exact.is_some_and(|exact| !exact.tells(**key));
        if let Some(&key) = columns.iter().find(untold) {
            return Err(LineError::NotInEvents { key });
        }
        let sums = Sureness {
            exact: exact.is_some_and(|exact| !exact.is_estimated()),
            frees: exact.is_none_or(ExactProfile::knows_freed),
        };
        let by_frame = self.by_frame(device, columns);
        let mut functions: FxHashMap<FunctionId, Vec<LineRow>> = FxHashMap::default();
        for (frame, node) in by_frame {
            let Some(frame) = self.stacks().get_frame(frame) else {
                continue;
            };
            // A line that was never on the stack of a thread at work was not charged with anything.
            if node.stats[0].current == i64::MIN && node.live == 0 {
                continue;
            }
            functions
                .entry(frame.function)
                .or_default()
                .push(row(frame.line, &node, columns, sums));
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
        Ok(LineTable { device, columns, functions, estimated: !sums.exact, allocated, reserved })
    }

    /// What every frame has: of all stacks that it stands on.
    fn by_frame(&self, device: CudaIndex, columns: &[StatKey]) -> FxHashMap<FrameId, Node> {
        let mut nodes = self.nodes(device, columns);
        let table = self.stacks();
        // A caller's number is smaller than its callees': one pass from the end sums up whole subtrees.
        let own: Vec<u64> = nodes.iter().map(|n| n.live).collect();
        for i in (0..nodes.len()).rev() {
            let parent = table.get_stack(StackId(i as u32)).and_then(|n| n.parent);
            if let Some(parent) = parent {
                let (callers, rest) = nodes.split_at_mut(i);
                callers[parent.0 as usize].reach(&rest[0]);
                callers[parent.0 as usize].add(&rest[0]);
            }
        }
        let recursive = recursive(table, nodes.len());
        let mut by_frame: FxHashMap<FrameId, Node> = FxHashMap::default();
        for (i, node) in nodes.iter().enumerate() {
            let Some(stack) = table.get_stack(StackId(i as u32)) else {
                continue;
            };
            let line = by_frame.entry(stack.frame).or_insert_with(|| Node {
                stats: vec![Sums::NONE; node.stats.len()],
                live: 0,
                live_self: 0,
                samples: 0,
            });
            line.reach(node);
            line.live_self += own[i];
            // In a recursion the outer occurrence has counted the inner one already.
            if !recursive[i] {
                line.add(node);
            }
        }
        by_frame
    }

    /// What every stack has by itself. The first statistic is that of allocated bytes.
    fn nodes(&self, device: CudaIndex, columns: &[StatKey]) -> Vec<Node> {
        let mut wanted = vec![stat_index(Metric::AllocatedBytes, Pool::All)];
        wanted.extend(columns.iter().map(|k| stat_index(k.metric, k.pool)));
        if let Some(exact) = self.exact() {
            return self.exact_nodes(exact, device, &wanted);
        }
        let bounds = self.bounds(device);
        let mut nodes: Vec<Node> = Vec::new();
        for i in 0..self.known_stacks() {
            let of_stack = bounds.and_then(|b| b.get(i));
            let stats = wanted
                .iter()
                .map(|&w| {
                    of_stack.map_or(Sums::NONE, |b| Sums {
                        current: b.current[w],
                        lower: b.lower[w],
                        upper: b.upper[w],
                        allocated: b.allocated[w],
                        freed: b.freed[w],
                    })
                })
                .collect();
            nodes.push(Node { stats, live: 0, live_self: 0, samples: self.samples_of_stack(i) });
        }
        if let Some(snapshot) = self.snapshot(device, Moment::Peak) {
            for (origin, bytes) in Profile::bytes_by_origin(snapshot) {
                if let Origin::Stack(_, stack) = origin
                    && let Some(node) = nodes.get_mut(stack.0 as usize)
                {
                    node.live += bytes;
                }
            }
        }
        nodes
    }
}

impl Profile {
    /// The same out of exact events, which tell the levels of allocated, reserved and active bytes and
    /// each allocation.
    fn exact_nodes(&self, exact: &ExactProfile, device: CudaIndex, wanted: &[usize]) -> Vec<Node> {
        let levels = [Metric::AllocatedBytes, Metric::ReservedBytes, Metric::ActiveBytes]
            .map(|metric| stat_index(metric, Pool::All));
        let bytes = levels[0];
        let allocations = stat_index(Metric::Allocation, Pool::All);
        let none =
            Node { stats: vec![Sums::NONE; wanted.len()], live: 0, live_self: 0, samples: 0 };
        let mut nodes = vec![none; self.known_stacks() as usize];
        for (node, reached) in nodes.iter_mut().zip(exact.line_levels(device)) {
            for (stat, w) in node.stats.iter_mut().zip(wanted) {
                if let Some(i) = levels.iter().position(|level| level == w) {
                    (stat.current, stat.lower) = (reached.lower[i], reached.lower[i]);
                    stat.upper = reached.upper[i];
                }
                if *w == bytes {
                    stat.freed = reached.freed as i64;
                }
            }
        }
        for held in exact.by_site(device) {
            let stack = self.stacks().get_site(held.site).and_then(|site| site.stack);
            let Some(node) = stack.and_then(|stack| nodes.get_mut(stack.0 as usize)) else {
                continue;
            };
            node.live += held.at_height;
            node.samples += held.count;
            for (stat, w) in node.stats.iter_mut().zip(wanted) {
                if *w == bytes {
                    stat.allocated += held.allocated as i64;
                } else if *w == allocations {
                    stat.allocated += held.count as i64;
                }
            }
        }
        nodes
    }
}

/// Of the first `count` stacks, which have their innermost frame also further out. One walk over the tree of stacks, so that
/// the time grows with their number and not with their depth.
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
    // How often each frame stands on the stack that is being walked.
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

/// How far sums can be trusted.
#[derive(Debug, Clone, Copy)]
struct Sureness {
    exact: bool,
    /// Whether those of frees are known at all.
    frees: bool,
}

fn row(line: u32, node: &Node, columns: &[StatKey], sure: Sureness) -> LineRow {
    let seen = node.stats[0].current != i64::MIN;
    let cells = columns
        .iter()
        .zip(&node.stats[1..])
        .map(|(&key, sums)| Cell {
            key,
            value: if seen {
                sums.bounded(key.field, sure.exact)
            } else {
                Sums { current: 0, lower: 0, upper: i64::MAX, ..*sums }
                    .bounded(key.field, sure.exact)
            },
        })
        .collect();
    LineRow {
        line,
        cells,
        allocated: node.stats[0].allocated,
        freed: sure.frees.then_some(node.stats[0].freed),
        live: node.live,
        live_self: node.live_self,
        samples: node.samples,
    }
}
