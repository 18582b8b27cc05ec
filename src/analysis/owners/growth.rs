//! Owners and lines whose floor of live bytes rises.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::analysis::owners::owner_groups::{OwnerGroup, OwnerKind};
use crate::model::{TensorCategory, TensorDevice};

const MAX_WINDOWS: usize = 6;
/// Observations per window: one alone may be the top of the sawtooth.
const MIN_PER_WINDOW: usize = 4;
/// This many rising floors are no accident.
const MANY_STEPS: usize = 4;
/// Fewer new blocks in no tensor may be library workspaces, allocated on first use.
const MANY_BLOCKS: i64 = 8;
const MIN_OBSERVATIONS: usize = 3;

/// A rise of live bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrowthRise {
    /// From the first floor to the last.
    pub bytes: u64,
    /// Seconds between these.
    pub seconds: f64,
    /// Number of floors compared.
    pub windows: usize,
    /// The observations at the first and last floor.
    pub between: (usize, usize),
}

impl GrowthRise {
    /// Bytes per second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }

    /// The rise of (seconds, bytes); `None` if a floor falls or fewer than two rise. Few floors
    /// must rise by more than the sawtooth.
    pub fn of(levels: &[(f64, u64)]) -> Option<GrowthRise> {
        if levels.len() < MIN_OBSERVATIONS {
            return None;
        }
        let floors = Self::floors(levels);
        let steps = || floors.windows(2).map(|pair| (pair[0].bytes, pair[1].bytes));
        let (first, last) = (floors.first()?, floors.last()?);
        // Steady growth is not part of the sawtooth.
        let rate = last.bytes.saturating_sub(first.bytes) as f64 / (last.at - first.at).max(1e-9);
        let above = |(at, bytes): &(f64, u64), floor: &LowestLevel| {
            (bytes - floor.bytes).saturating_sub((rate * (at - floor.at).max(0.0)) as u64)
        };
        let tops = floors.iter().zip(parts(levels)).filter_map(|(floor, part)| {
            levels.get(part)?.iter().map(|level| above(level, floor)).max()
        });
        let sawtooth = tops.max().unwrap_or(0);
        let up = steps().filter(|(a, b)| a < b).count();
        let is_rising = steps().all(|(a, b)| a <= b)
            && (up >= MANY_STEPS || up >= 2 && last.bytes.saturating_sub(first.bytes) >= sawtooth);
        is_rising.then(|| GrowthRise {
            bytes: last.bytes - first.bytes,
            seconds: last.at - first.at,
            windows: floors.len(),
            between: (first.number, last.number),
        })
    }

    /// The lowest level of each of a few parts of the time.
    pub(crate) fn floors(levels: &[(f64, u64)]) -> Vec<LowestLevel> {
        let floor = |part: Range<usize>| {
            let levels = part.clone().zip(levels.get(part)?);
            let (number, &(at, bytes)) = levels.min_by_key(|(_, (_, bytes))| *bytes)?;
            Some(LowestLevel { at, bytes, number })
        };
        parts(levels).filter_map(floor).collect()
    }
}

/// A lowest level: its time in seconds, and the observation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LowestLevel {
    pub(crate) at: f64,
    pub(crate) bytes: u64,
    number: usize,
}

fn parts(levels: &[(f64, u64)]) -> impl Iterator<Item = Range<usize>> {
    let (count, windows) = (levels.len(), levels.len() / MIN_PER_WINDOW);
    let windows = windows.clamp(MIN_OBSERVATIONS, MAX_WINDOWS);
    (0..windows).map(move |window| window * count / windows..(window + 1) * count / windows)
}

/// An owner that grows: its last state, its rise, and the storages gained between the same floors.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub struct OwnerGrowth {
    pub group: OwnerGroup,
    pub rise: GrowthRise,
    pub storages: i64,
}

impl OwnerGrowth {
    /// Whether it may be one long forward pass: a single graph, in few snapshots.
    pub fn may_be_one_step(&self) -> bool {
        self.group.category == TensorCategory::Saved
            && !self.group.owner.contains("[*]")
            && self.rise.windows < MANY_STEPS
    }

    /// Whether its deque is full before it has taken so many more bytes.
    pub fn ends_within(&self, left: u64) -> bool {
        self.group.full_at.is_some_and(|full| full.saturating_sub(self.group.size.bytes) <= left)
    }
}

/// A line whose live bytes grow.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub struct LineGrowth {
    pub line: String,
    pub rise: GrowthRise,
}

/// Snapshots that see a lasting owner.
const MIN_LASTING: usize = 2;

type OwnerKey = (TensorDevice, TensorCategory, OwnerKind, String);

fn owner_key(group: &OwnerGroup) -> OwnerKey {
    (group.device, group.category, group.kind.clone(), group.owner.clone())
}

/// Takes observations in time order.
#[derive(Debug, Default)]
pub struct GrowthWatch {
    times: Vec<f64>,
    /// (Bytes, storages) of each owner at each time.
    owners: BTreeMap<OwnerKey, Vec<(u64, u64)>>,
    last: Vec<OwnerGroup>,
    last_in_no_tensor: Vec<OwnerGroup>,
    line_times: Vec<f64>,
    lines: BTreeMap<String, Vec<u64>>,
}

impl GrowthWatch {
    /// `time` is in seconds.
    pub fn add_owners(&mut self, time: f64, mut groups: Vec<OwnerGroup>) {
        let before = self.times.len();
        self.keep_names(&mut groups);
        self.keep_frees(&mut groups);
        for group in &groups {
            let key = owner_key(group);
            let levels = self.owners.entry(key).or_insert_with(|| vec![(0, 0); before]);
            levels.push((group.size.bytes, group.size.storages));
        }
        self.times.push(time);
        for levels in self.owners.values_mut() {
            levels.resize(before + 1, (0, 0));
        }
        (self.last_in_no_tensor, self.last) =
            groups.into_iter().partition(|group| group.kind == OwnerKind::NoTensor);
    }

    /// Keeps what a group frees if it was known before, and as much is held: a snapshot may be too
    /// uncertain for it.
    fn keep_frees(&self, groups: &mut [OwnerGroup]) {
        if groups.iter().any(|group| group.frees.is_some() && group.kind != OwnerKind::Garbage) {
            return;
        }
        for group in groups.iter_mut().filter(|group| group.frees.is_none()) {
            let key = owner_key(group);
            let before = self.last.iter().find(|known| owner_key(known) == key);
            let before = before.filter(|known| known.size == group.size);
            group.frees = before.and_then(|known| known.frees.clone());
        }
    }

    /// Keeps a group's previous name if most storages are the same: a running function may hold
    /// them in another variable.
    fn keep_names(&self, groups: &mut [OwnerGroup]) {
        let mut owners: FxHashMap<(TensorDevice, u64), usize> = FxHashMap::default();
        for (index, group) in self.last.iter().enumerate() {
            owners.extend(group.addresses.iter().map(|at| ((group.device, *at), index)));
        }
        let known: BTreeSet<_> = groups.iter().map(owner_key).collect();
        for group in groups.iter_mut() {
            if self.owners.contains_key(&owner_key(group)) {
                continue;
            }
            let mut shared: BTreeMap<usize, usize> = BTreeMap::new();
            for at in &group.addresses {
                if let Some(&index) = owners.get(&(group.device, *at)) {
                    *shared.entry(index).or_default() += 1;
                }
            }
            let most = shared.into_iter().max_by_key(|(_, count)| *count);
            let before = most.filter(|(_, count)| count * 2 > group.addresses.len());
            let Some(before) = before.and_then(|(index, _)| self.last.get(index)) else { continue };
            let is_alike = before.category == group.category && before.kind == group.kind;
            if is_alike && !known.contains(&owner_key(before)) {
                group.owner.clone_from(&before.owner);
            }
        }
    }

    /// `time` is in seconds.
    pub fn add_lines(&mut self, time: f64, lines: Vec<(String, u64)>) {
        let before = self.line_times.len();
        for (line, bytes) in lines {
            self.lines.entry(line).or_insert_with(|| vec![0; before]).push(bytes);
        }
        self.line_times.push(time);
        for levels in self.lines.values_mut() {
            levels.resize(before + 1, 0);
        }
    }

    /// Number of owner snapshots.
    pub fn snapshots(&self) -> usize {
        self.times.len()
    }

    /// From the first snapshot to the last.
    pub fn seconds(&self) -> f64 {
        self.times.last().zip(self.times.first()).map_or(0.0, |(last, first)| last - first)
    }

    /// The owners in the last snapshot.
    pub fn last(&self) -> &[OwnerGroup] {
        &self.last
    }

    /// Whether all of several snapshots have it, and it never shrank.
    pub(crate) fn lasts(&self, group: &OwnerGroup) -> bool {
        let levels = self.owners.get(&owner_key(group)).map_or(&[][..], Vec::as_slice);
        levels.len() >= MIN_LASTING
            && levels.iter().all(|(bytes, _)| *bytes > 0)
            && levels.windows(2).all(|pair| pair[0].0 <= pair[1].0)
    }

    /// Growing owners, the fastest first.
    pub fn owners(&self) -> Vec<OwnerGrowth> {
        let last = self.last.iter().chain(&self.last_in_no_tensor);
        let grown = last.filter_map(|group| {
            let levels = self.owners.get(&owner_key(group))?;
            let bytes = levels.iter().map(|(bytes, _)| *bytes);
            let rise = GrowthRise::of(&self.times.iter().copied().zip(bytes).collect::<Vec<_>>())?;
            let storages = |at: usize| levels.get(at).map_or(0, |(_, storages)| *storages as i64);
            let storages = storages(rise.between.1) - storages(rise.between.0);
            // Gradients come and go with each step, and are never more than the parameters.
            let is_bounded = group.category == TensorCategory::Gradient
                && matches!(group.kind, OwnerKind::Model);
            if is_bounded || group.kind == OwnerKind::NoTensor && storages < MANY_BLOCKS {
                return None;
            }
            Some(OwnerGrowth { group: group.clone(), rise, storages })
        });
        let mut grown: Vec<OwnerGrowth> = grown.collect();
        grown.sort_by(|a, b| b.rise.rate().total_cmp(&a.rise.rate()));
        grown
    }

    /// Growing lines, the fastest first.
    pub fn lines(&self) -> Vec<LineGrowth> {
        let grown = self.lines.iter().filter_map(|(line, levels)| {
            let levels: Vec<(f64, u64)> =
                self.line_times.iter().copied().zip(levels.iter().copied()).collect();
            Some(LineGrowth { line: line.clone(), rise: GrowthRise::of(&levels)? })
        });
        let mut grown: Vec<LineGrowth> = grown.collect();
        grown.sort_by(|a, b| b.rise.rate().total_cmp(&a.rise.rate()));
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::owners::owner_groups::tests::groups;

    fn levels(bytes: &[u64]) -> Vec<(f64, u64)> {
        bytes.iter().enumerate().map(|(at, bytes)| (at as f64, *bytes)).collect()
    }

    #[test]
    fn only_the_rising_floor_of_a_sawtooth_grows() {
        let sawtooth: Vec<u64> = [5, 90, 40].repeat(8);
        assert_eq!(GrowthRise::of(&levels(&sawtooth)), None);
        let rising: Vec<u64> = sawtooth.iter().zip(0..).map(|(bytes, i)| bytes + i * 2).collect();
        let rise = GrowthRise::of(&levels(&rising)).unwrap();
        assert_eq!(rise.windows, 6);
        assert!(rise.bytes > 0 && rise.seconds > 0.0, "{rise:?}");
        // Seen so seldom that its floors may be missed.
        assert_eq!(
            GrowthRise::of(&levels(&[5, 92, 44, 11, 98, 50, 17, 104, 56, 23, 110, 62])),
            None
        );
        assert_eq!(GrowthRise::of(&levels(&[5, 9, 9, 9, 9, 9])), None);
        assert_eq!(GrowthRise::of(&levels(&[1, 2])), None);
        assert_eq!(GrowthRise::of(&levels(&[9, 8, 10, 11])), None);
    }

    #[test]
    fn leak_is_found_with_unequal_times_between_snapshots() {
        let steady = [(0.0, 10), (0.7, 17), (1.4, 24), (13.2, 142)];
        assert_eq!(GrowthRise::of(&steady).map(|rise| rise.bytes), Some(14));
        // No growth: a sawtooth's top seen late, or a single rise.
        assert_eq!(GrowthRise::of(&[(0.0, 10), (0.7, 11), (1.4, 12), (2.0, 142)]), None);
    }

    #[test]
    fn rate_is_measured_between_the_floors() {
        let rise = GrowthRise::of(&levels(&[10, 20, 30, 40])).unwrap();
        assert_eq!((rise.bytes, rise.seconds), (20, 2.0));
        assert!((rise.rate() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn cache_growth_survives_a_temporary_owner_name() {
        let mut watch = GrowthWatch::default();
        for (snapshot, name) in
            (1_u64..).zip(["main: t.kept", "step: self.kept", "main: t.kept", "add: k"])
        {
            let mut found = groups(&[(name.to_owned(), snapshot * 8)]);
            found[0].addresses = (0..snapshot + 4).collect();
            watch.add_owners(snapshot as f64, found);
        }
        let grown = watch.owners();
        assert_eq!((grown.len(), grown[0].group.owner.as_str()), (1, "main: t.kept"));
    }

    #[test]
    fn one_graph_growing_in_three_snapshots_may_be_one_step() {
        let grown = |owner: &str, snapshots: u64| {
            let mut watch = GrowthWatch::default();
            for snapshot in 0..snapshots {
                let mut held = groups(&[(owner.to_owned(), 100 * (snapshot + 1))]);
                held[0].category = TensorCategory::Saved;
                watch.add_owners(snapshot as f64, held);
            }
            watch.owners().remove(0).may_be_one_step()
        };
        assert!(grown("backward: loss", 3));
        assert!(!grown("history[\"loss\"][*]", 3), "several results");
        assert!(!grown("main: total_loss", 24), "six floors, each above the one before");
    }

    #[test]
    fn memory_in_no_tensor_grows_but_is_no_owner() {
        let watch = |blocks: u64| {
            let mut watch = GrowthWatch::default();
            for snapshot in 0..4_u64 {
                let mut all = groups(&[("f: cache".to_owned(), 50)]);
                let mut rest = groups(&[("[in no tensor]".to_owned(), 100 * snapshot)]).remove(0);
                rest.kind = OwnerKind::NoTensor;
                rest.size.storages = blocks * snapshot;
                all.push(rest);
                watch.add_owners(snapshot as f64, all);
            }
            watch
        };
        assert_eq!(watch(4).owners()[0].group.owner, "[in no tensor]");
        assert_eq!(watch(4).last().len(), 1);
        assert!(watch(1).owners().is_empty());
    }

    #[test]
    fn late_owner_grows_from_zero_and_shrinking_owner_is_omitted() {
        let mut watch = GrowthWatch::default();
        for step in 0..6_u64 {
            let mut held =
                vec![("f: losses[0]".to_owned(), 4 * (step + 1)), ("f: w".to_owned(), 99 - step)];
            if step > 1 {
                held.push(("f: late".to_owned(), step));
            }
            watch.add_owners(step as f64, groups(&held));
            watch.add_lines(step as f64, vec![("train (a.py:3)".to_owned(), step * 7)]);
        }
        let grown: Vec<String> = watch.owners().into_iter().map(|g| g.group.owner).collect();
        assert_eq!(grown, ["f: losses[0]", "f: late"]);
        assert_eq!(watch.lines()[0].line, "train (a.py:3)");
        assert_eq!((watch.snapshots(), watch.seconds()), (6, 5.0));
    }
}
