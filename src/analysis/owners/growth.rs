//! What grows: owners and lines whose live bytes rise from floor to floor, whatever the sawtooth of a training step does between.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::analysis::owners::owner_groups::{OwnerGroup, OwnerKind};
use crate::model::{TensorCategory, TensorDevice};

/// Windows that a time is divided into at most: their floors are what is compared.
const MAX_WINDOWS: usize = 6;
/// Observations of one window, where there are enough: one alone may be at the top of the sawtooth.
const MIN_PER_WINDOW: usize = 4;
/// So many floors, each above the one before, are no accident, however high the sawtooth is above them.
const MANY_STEPS: usize = 4;
/// So many more blocks in no tensor are no work spaces of libraries, each of which is made when it is first needed.
const MANY_BLOCKS: i64 = 8;
/// Fewer observations tell nothing.
const MIN_OBSERVATIONS: usize = 3;

/// How something rose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrowthRise {
    /// From the first floor to the last, in bytes.
    pub bytes: u64,
    /// Seconds between these.
    pub seconds: f64,
    /// How many floors were compared.
    pub windows: usize,
    /// Which observations the first floor and the last are.
    pub between: (usize, usize),
}

impl GrowthRise {
    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }

    /// That of bytes at times in seconds; `None` unless no floor is below the one before and two at least are above it. A few
    /// floors have to rise by more than the sawtooth does: what was seen of it by chance is no growth.
    pub fn of(levels: &[(f64, u64)]) -> Option<GrowthRise> {
        if levels.len() < MIN_OBSERVATIONS {
            return None;
        }
        let windows = (levels.len() / MIN_PER_WINDOW).clamp(MIN_OBSERVATIONS, MAX_WINDOWS);
        let bounds = |window: usize| window * levels.len() / windows;
        let part = |window: usize| levels.get(bounds(window)..bounds(window + 1));
        let floors: Vec<(f64, u64, usize)> = (0..windows)
            .filter_map(|window| {
                let part = part(window)?.iter().enumerate();
                let (at, floor) = part.min_by_key(|(_, (_, bytes))| *bytes)?;
                Some((floor.0, floor.1, bounds(window) + at))
            })
            .collect();
        let steps = || floors.windows(2).map(|pair| (pair[0].1, pair[1].1));
        let (first, last) = (floors.first()?, floors.last()?);
        // What steady growth adds between a floor and what was seen after it is no sawtooth, however long that took.
        let rate = last.1.saturating_sub(first.1) as f64 / (last.0 - first.0).max(1e-9);
        let above = |(at, bytes): &(f64, u64), floor: &(f64, u64, usize)| {
            (bytes - floor.1).saturating_sub((rate * (at - floor.0).max(0.0)) as u64)
        };
        let tops = floors.iter().zip(0..).filter_map(|(floor, window)| {
            part(window)?.iter().map(|level| above(level, floor)).max()
        });
        let sawtooth = tops.max().unwrap_or(0);
        let up = steps().filter(|(a, b)| a < b).count();
        let is_rising = steps().all(|(a, b)| a <= b)
            && (up >= MANY_STEPS || up >= 2 && last.1.saturating_sub(first.1) >= sawtooth);
        is_rising.then(|| GrowthRise {
            bytes: last.1 - first.1,
            seconds: last.0 - first.0,
            windows: floors.len(),
            between: (first.2, last.2),
        })
    }
}

/// An owner that grows.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnerGrowth {
    /// It, as it was last.
    pub group: OwnerGroup,
    /// How it rose.
    pub rise: GrowthRise,
    /// Storages more, between the same floors.
    pub storages: i64,
}

impl OwnerGrowth {
    /// Whether this may be the forward pass of one long step: what one variable's graph keeps rises all through it, and the few
    /// looks there were may all have fallen into it. Several results, each with its graph, are of several steps.
    pub fn may_be_one_step(&self) -> bool {
        self.group.category == TensorCategory::Saved
            && !self.group.owner.contains("[*]")
            && self.rise.windows < MANY_STEPS
    }
}

/// A line that owns more and more.
#[derive(Debug, Clone, PartialEq)]
pub struct LineGrowth {
    /// What it is called.
    pub line: String,
    /// How it rose.
    pub rise: GrowthRise,
}

type OwnerKey = (TensorDevice, TensorCategory, OwnerKind, String);

fn owner_key(group: &OwnerGroup) -> OwnerKey {
    (group.device, group.category, group.kind.clone(), group.owner.clone())
}

/// Takes observations one after the other.
#[derive(Debug, Default)]
pub struct GrowthWatch {
    times: Vec<f64>,
    /// Bytes and storages of each owner at each time.
    owners: BTreeMap<OwnerKey, Vec<(u64, u64)>>,
    last: Vec<OwnerGroup>,
    /// What is in no tensor, as it was last.
    last_in_no_tensor: Vec<OwnerGroup>,
    line_times: Vec<f64>,
    lines: BTreeMap<String, Vec<u64>>,
}

impl GrowthWatch {
    /// Adds a look at owners, at a time in seconds.
    pub fn add_owners(&mut self, time: f64, mut groups: Vec<OwnerGroup>) {
        let before = self.times.len();
        self.keep_names(&mut groups);
        for group in &groups {
            let key = owner_key(group);
            // Nothing was there before it was seen first.
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

    /// Calls groups as the look before did, where it had most of their storages under another name: what a function that
    /// runs just now has in a variable is called after that.
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

    /// Adds what lines own that is live, at a time in seconds.
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

    /// How many looks at owners there were.
    pub fn looks(&self) -> usize {
        self.times.len()
    }

    /// Seconds from the first look to the last.
    pub fn seconds(&self) -> f64 {
        self.times.last().zip(self.times.first()).map_or(0.0, |(last, first)| last - first)
    }

    /// The owners of the last look.
    pub fn last(&self) -> &[OwnerGroup] {
        &self.last
    }

    /// The owners that grow, the fastest first.
    pub fn owners(&self) -> Vec<OwnerGrowth> {
        let last = self.last.iter().chain(&self.last_in_no_tensor);
        let grown = last.filter_map(|group| {
            let levels = self.owners.get(&owner_key(group))?;
            let bytes = levels.iter().map(|(bytes, _)| *bytes);
            let rise = GrowthRise::of(&self.times.iter().copied().zip(bytes).collect::<Vec<_>>())?;
            let storages = |at: usize| levels.get(at).map_or(0, |(_, storages)| *storages as i64);
            let storages = storages(rise.between.1) - storages(rise.between.0);
            if group.kind == OwnerKind::NoTensor && storages < MANY_BLOCKS {
                return None;
            }
            Some(OwnerGrowth { group: group.clone(), rise, storages })
        });
        let mut grown: Vec<OwnerGrowth> = grown.collect();
        grown.sort_by(|a, b| b.rise.rate().total_cmp(&a.rise.rate()));
        grown
    }

    /// The lines that own more and more, the fastest first.
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
    fn a_sawtooth_does_not_grow_and_its_rising_floor_does() {
        let sawtooth: Vec<u64> = [5, 90, 40].repeat(8);
        assert_eq!(GrowthRise::of(&levels(&sawtooth)), None);
        let rising: Vec<u64> = sawtooth.iter().zip(0..).map(|(bytes, i)| bytes + i * 2).collect();
        let rise = GrowthRise::of(&levels(&rising)).unwrap();
        assert_eq!(rise.windows, 6);
        assert!(rise.bytes > 0 && rise.seconds > 0.0, "{rise:?}");
        // The same seen so seldom that its floors may have been missed.
        assert_eq!(
            GrowthRise::of(&levels(&[5, 92, 44, 11, 98, 50, 17, 104, 56, 23, 110, 62])),
            None
        );
        // Once more memory than before, and then the same, is no growth.
        assert_eq!(GrowthRise::of(&levels(&[5, 9, 9, 9, 9, 9])), None);
        assert_eq!(GrowthRise::of(&levels(&[1, 2])), None);
        assert_eq!(GrowthRise::of(&levels(&[9, 8, 10, 11])), None);
    }

    /// `summary` of a job with an unnamed tensor more every step: "nothing grew in 4 snapshots", as the last one came late.
    #[test]
    fn a_leak_that_is_looked_at_in_unequal_times_grows_all_the_same() {
        let steady = [(0.0, 10), (0.7, 17), (1.4, 24), (13.2, 142)];
        assert_eq!(GrowthRise::of(&steady).map(|rise| rise.bytes), Some(14));
        // A sawtooth whose top was seen late is none, nor one that was seen rising once.
        assert_eq!(GrowthRise::of(&[(0.0, 10), (0.7, 11), (1.4, 12), (2.0, 142)]), None);
    }

    #[test]
    fn the_rate_is_that_between_the_floors() {
        let rise = GrowthRise::of(&levels(&[10, 20, 30, 40])).unwrap();
        assert_eq!((rise.bytes, rise.seconds), (20, 2.0));
        assert!((rise.rate() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_cache_that_another_function_has_in_a_variable_meanwhile_grows_all_the_same() {
        let mut watch = GrowthWatch::default();
        for (look, name) in
            (1_u64..).zip(["main: t.kept", "step: self.kept", "main: t.kept", "add: k"])
        {
            let mut look_groups = groups(&[(name.to_owned(), look * 8)]);
            look_groups[0].addresses = (0..look + 4).collect();
            watch.add_owners(look as f64, look_groups);
        }
        let grown = watch.owners();
        assert_eq!((grown.len(), grown[0].group.owner.as_str()), (1, "main: t.kept"));
    }

    /// `summary` of a LoRA job whose step took longer than the observation: "alive by backward: loss grows by 768 MiB a second".
    #[test]
    fn one_graph_that_rises_in_three_looks_may_be_one_long_step() {
        let grown = |owner: &str, looks: u64| {
            let mut watch = GrowthWatch::default();
            for look in 0..looks {
                let mut held = groups(&[(owner.to_owned(), 100 * (look + 1))]);
                held[0].category = TensorCategory::Saved;
                watch.add_owners(look as f64, held);
            }
            watch.owners().remove(0).may_be_one_step()
        };
        assert!(grown("backward: loss", 3));
        assert!(!grown("history[\"loss\"][*]", 3), "several results");
        assert!(!grown("main: total_loss", 24), "six floors, each above the one before");
    }

    /// `summary` said "nothing grew" of a job that kept storages without tensors, 19 MiB of them a second.
    #[test]
    fn memory_in_no_tensor_grows_like_an_owner_and_is_none() {
        let watch = |blocks: u64| {
            let mut watch = GrowthWatch::default();
            for look in 0..4_u64 {
                let mut all = groups(&[("f: cache".to_owned(), 50)]);
                let mut rest = groups(&[("[in no tensor]".to_owned(), 100 * look)]).remove(0);
                rest.kind = OwnerKind::NoTensor;
                rest.size.storages = blocks * look;
                all.push(rest);
                watch.add_owners(look as f64, all);
            }
            watch
        };
        assert_eq!(watch(4).owners()[0].group.owner, "[in no tensor]");
        assert_eq!(watch(4).last().len(), 1);
        // `summary` of a job that had just begun: "[in no tensor: work spaces, C++] grows by 46.65 MiB a second (+3 storages)".
        assert!(watch(1).owners().is_empty());
    }

    #[test]
    fn what_comes_up_later_grew_from_nothing_and_what_shrinks_is_left_out() {
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
        assert_eq!((watch.looks(), watch.seconds()), (6, 5.0));
    }
}
