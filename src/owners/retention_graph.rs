//! Counted references between objects of Python and C++, and what goes when some of them go.
//!
//! CPython and PyTorch free an object when its last reference goes, so removal is counted down as
//! they do; then the collector's algorithm (Python/gc.c) runs over what lost a reference. A count
//! that no known reference explains keeps its object alive: what is said to be freed is freed. No
//! tree of dominators is built: an object needs its last reference to go, not a common ancestor,
//! and the counts say when that is.

use rustc_hash::{FxHashMap, FxHashSet};

/// Who knows of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReferenceSide {
    /// Of C++: counted, but the collector does not follow it.
    Cpp,
    /// Of Python: counted and followed.
    Python,
    /// Followed by the collector, counted elsewhere.
    Followed,
}

/// A reference; `from`: `None` if no known object has it, as a running function's variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Removed {
    pub(super) from: Option<u32>,
    pub(super) to: u32,
}

/// What goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FreedObjects {
    /// With the reference.
    pub(super) at_once: Vec<u32>,
    /// After `gc.collect()`.
    pub(super) after_collect: Vec<u32>,
    /// What lost references and stays, with those left; 0 if they are not known.
    pub(super) stays: Vec<(u32, i64)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct EdgePlace {
    start: u32,
    /// Before it those of C++, then Python's.
    python: u32,
    followed: u32,
}

/// Objects by number.
#[derive(Debug, Default)]
pub(super) struct RetentionGraph {
    /// `None`: unknown or immortal, so alive.
    counts: Vec<Option<i64>>,
    /// Whether the collector may free it.
    is_tracked: Vec<bool>,
    places: Vec<EdgePlace>,
    targets: Vec<u32>,
    /// Counts that known references do not explain.
    unexplained: Vec<i64>,
}

impl RetentionGraph {
    /// Of each object its count and whether the collector tracks it; edges in any order.
    pub(super) fn new(
        objects: Vec<(Option<i64>, bool)>,
        mut edges: Vec<(u32, u32, ReferenceSide)>,
    ) -> RetentionGraph {
        // Most are in order: a stable sort finds these runs.
        edges.sort_by_key(|(from, _, side)| (*from, *side));
        let (mut counts, is_tracked): (Vec<Option<i64>>, Vec<bool>) = objects.into_iter().unzip();
        let mut explained = vec![0i64; counts.len()];
        let mut places = vec![EdgePlace::default(); counts.len() + 1];
        for &(from, to, side) in &edges {
            if side != ReferenceSide::Followed {
                explained[to as usize] += 1;
            }
            let place = &mut places[from as usize + 1];
            place.start += 1;
            let own = &mut places[from as usize];
            own.python += u32::from(side == ReferenceSide::Cpp);
            own.followed += u32::from(side != ReferenceSide::Followed);
        }
        let mut start = 0;
        for place in &mut places {
            start += std::mem::replace(&mut place.start, 0);
            *place =
                EdgePlace { start, python: start + place.python, followed: start + place.followed };
        }
        for (count, explained) in counts.iter_mut().zip(&explained) {
            // Contradictions prove nothing.
            *count = count.filter(|count| count >= explained);
        }
        let unexplained = counts.iter().zip(&explained);
        let unexplained = unexplained.map(|(count, known)| count.map_or(1, |c| c - known));
        RetentionGraph {
            unexplained: unexplained.collect(),
            counts,
            is_tracked,
            places,
            targets: edges.into_iter().map(|(_, to, _)| to).collect(),
        }
    }

    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.counts.len() as u32
    }

    /// References that are counted.
    pub(super) fn counted(&self, from: u32) -> &[u32] {
        let EdgePlace { start, followed, .. } = self.places[from as usize];
        &self.targets[start as usize..followed as usize]
    }

    /// References that the collector follows.
    fn followed(&self, from: u32) -> &[u32] {
        let EdgePlace { python, .. } = self.places[from as usize];
        &self.targets[python as usize..self.places[from as usize + 1].start as usize]
    }

    /// References to it of no known object.
    pub(super) fn unexplained(&self, object: u32) -> i64 {
        self.unexplained[object as usize]
    }

    /// Alive even if all of these go at once, and so if one of them goes.
    pub(super) fn alive_without(&self, removed: &[Removed]) -> Vec<bool> {
        let (mut from_unknown, mut from_known) = (FxHashMap::default(), FxHashMap::default());
        for &Removed { from, to } in removed {
            match from {
                None => *from_unknown.entry(to).or_insert(0i64) += 1,
                Some(from) => *from_known.entry((from, to)).or_insert(0u32) += 1,
            }
        }
        let removers: FxHashSet<u32> = removed.iter().filter_map(|one| one.from).collect();
        let mut alive = vec![false; self.counts.len()];
        let mut waiting: Vec<u32> = Vec::new();
        for (object, unexplained) in (0u32..).zip(&self.unexplained) {
            let gone = from_unknown.get(&object).copied().unwrap_or_default();
            if self.counts[object as usize].is_none() || unexplained - gone > 0 {
                alive[object as usize] = true;
                waiting.push(object);
            }
        }
        while let Some(object) = waiting.pop() {
            let loses = removers.contains(&object);
            for &to in self.counted(object) {
                if loses
                    && let Some(left) = from_known.get_mut(&(object, to))
                    && *left > 0
                {
                    *left -= 1;
                    continue;
                }
                if !std::mem::replace(&mut alive[to as usize], true) {
                    waiting.push(to);
                }
            }
        }
        alive
    }

    /// What goes with these references; `alive`: [`Self::alive_without`] these and perhaps others.
    /// `None`: more than `room` references would have to be looked at.
    pub(super) fn freed(
        &self,
        removed: &[Removed],
        alive: &[bool],
        room: &mut usize,
    ) -> Option<FreedObjects> {
        let mut removal = Removal { graph: self, alive, room, state: RemovalState::new(removed) };
        for one in removed {
            removal.lose(one.to);
        }
        removal.count_down()?;
        let at_once = std::mem::take(&mut removal.state.order);
        for object in removal.unreachable()? {
            removal.state.free(object);
        }
        removal.count_down()?;
        let RemovalState { left, freed, order: after_collect, .. } = removal.state;
        let mut stays: Vec<(u32, i64)> =
            left.into_iter().filter(|(object, _)| !freed.contains(object)).collect();
        stays.sort_unstable();
        Some(FreedObjects { at_once, after_collect, stays })
    }
}

struct RemovalState {
    /// Of what lost some.
    left: FxHashMap<u32, i64>,
    freed: FxHashSet<u32>,
    order: Vec<u32>,
    next: usize,
    without: FxHashMap<(u32, u32), u32>,
    removers: FxHashSet<u32>,
}

impl RemovalState {
    fn new(removed: &[Removed]) -> RemovalState {
        let mut without = FxHashMap::default();
        for one in removed {
            if let Some(from) = one.from {
                *without.entry((from, one.to)).or_insert(0) += 1;
            }
        }
        let removers = without.keys().map(|(from, _)| *from).collect();
        let (left, freed) = (FxHashMap::default(), FxHashSet::default());
        RemovalState { left, freed, order: Vec::new(), next: 0, without, removers }
    }

    fn free(&mut self, object: u32) {
        if self.freed.insert(object) {
            self.order.push(object);
        }
    }
}

struct Removal<'g> {
    graph: &'g RetentionGraph,
    alive: &'g [bool],
    room: &'g mut usize,
    state: RemovalState,
}

impl Removal<'_> {
    fn takes(&mut self, references: usize) -> Option<()> {
        *self.room = self.room.checked_sub(references + 1)?;
        Some(())
    }

    fn lose(&mut self, object: u32) {
        let Some(count) = self.graph.counts[object as usize] else {
            self.state.left.insert(object, 0);
            return;
        };
        let left = self.state.left.entry(object).or_insert(count);
        *left -= 1;
        if *left == 0 {
            self.state.free(object);
        }
    }

    /// An object's references without those removed.
    fn left_of(&self, object: u32, references: &[u32]) -> Vec<u32> {
        if !self.state.removers.contains(&object) {
            return references.to_vec();
        }
        let mut skipped: FxHashMap<u32, u32> = FxHashMap::default();
        let is_left = |to: &&u32| {
            let most = self.state.without.get(&(object, **to)).copied().unwrap_or_default();
            let skipped = skipped.entry(**to).or_default();
            *skipped += 1;
            *skipped > most
        };
        references.iter().filter(is_left).copied().collect()
    }

    fn count_down(&mut self) -> Option<()> {
        while let Some(&object) = self.state.order.get(self.state.next) {
            self.state.next += 1;
            let references = self.left_of(object, self.graph.counted(object));
            self.takes(references.len())?;
            references.into_iter().for_each(|to| self.lose(to));
        }
        self.state.next = 0;
        Some(())
    }

    /// What the collector finds among objects that lost a reference, and what they lead to.
    fn unreachable(&mut self) -> Option<Vec<u32>> {
        let mut inside: FxHashMap<u32, i64> = FxHashMap::default();
        let mut waiting: Vec<u32> = self.state.left.keys().copied().collect();
        waiting.sort_unstable();
        let mut order = Vec::new();
        while let Some(object) = waiting.pop() {
            let may_go = self.graph.is_tracked[object as usize]
                && !self.alive[object as usize]
                && !self.state.freed.contains(&object);
            if !may_go || inside.contains_key(&object) {
                continue;
            }
            let count = self.graph.counts[object as usize]?;
            inside.insert(object, self.state.left.get(&object).copied().unwrap_or(count));
            order.push(object);
            let references = self.left_of(object, self.graph.followed(object));
            self.takes(references.len())?;
            waiting.extend(references);
        }
        for &object in &order {
            for to in self.left_of(object, self.graph.followed(object)) {
                if let Some(left) = inside.get_mut(&to) {
                    *left -= 1;
                }
            }
        }
        // What something outside refers to stays, with all that it leads to.
        let mut waiting: Vec<u32> = inside.iter().filter(|it| *it.1 > 0).map(|it| *it.0).collect();
        let mut stays: FxHashSet<u32> = waiting.iter().copied().collect();
        while let Some(object) = waiting.pop() {
            for to in self.left_of(object, self.graph.followed(object)) {
                if inside.contains_key(&to) && stays.insert(to) {
                    waiting.push(to);
                }
            }
        }
        order.retain(|object| !stays.contains(object));
        order.sort_unstable();
        Some(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use ReferenceSide::{Cpp, Followed, Python};

    const ROOM: usize = 1 << 20;

    /// Counts are the edges' and `roots`.
    fn graph(objects: u32, edges: &[(u32, u32, ReferenceSide)], roots: &[u32]) -> RetentionGraph {
        let count = |object: u32| {
            let counted = edges.iter().filter(|(_, to, side)| *to == object && *side != Followed);
            (counted.count() + roots.iter().filter(|root| **root == object).count()) as i64
        };
        let objects = (0..objects).map(|object| (Some(count(object)), true)).collect();
        RetentionGraph::new(objects, edges.to_vec())
    }

    fn freed(graph: &RetentionGraph, removed: &[Removed]) -> (Vec<u32>, Vec<u32>) {
        let alive = graph.alive_without(removed);
        let FreedObjects { mut at_once, mut after_collect, .. } =
            graph.freed(removed, &alive, &mut ROOM.clone()).unwrap();
        at_once.sort_unstable();
        after_collect.sort_unstable();
        (at_once, after_collect)
    }

    fn edge(from: u32, to: u32) -> Removed {
        Removed { from: Some(from), to }
    }

    fn variable(to: u32) -> Removed {
        Removed { from: None, to }
    }

    #[test]
    fn the_last_reference_frees_and_cycles_wait_for_the_collector() {
        // A list (0) of two (1, 2); 2 is also a variable; 3 and 4 are a cycle behind 1.
        let edges =
            [(0, 1, Python), (0, 2, Python), (1, 3, Python), (3, 4, Python), (4, 3, Python)];
        let known = graph(5, &edges, &[0, 2]);
        assert_eq!(freed(&known, &[variable(0)]), (vec![0, 1], vec![3, 4]));
        assert_eq!(freed(&known, &[edge(0, 1)]), (vec![1], vec![3, 4]));
        assert_eq!(freed(&known, &[edge(0, 2)]), (vec![], vec![]));
        assert_eq!(freed(&known, &[edge(0, 2), variable(2)]), (vec![2], vec![]));
        assert_eq!(known.unexplained(2), 1);
    }

    #[test]
    fn a_name_inside_its_own_cycle_is_one_reference() {
        // The object refers to itself through a dictionary.
        let edges = [(0, 1, Python), (1, 0, Python)];
        let known = graph(2, &edges, &[0]);
        assert_eq!(freed(&known, &[variable(0)]), (vec![], vec![0, 1]));
        assert_eq!(freed(&known, &[edge(1, 0)]), (vec![], vec![]));
        assert_eq!(freed(&known, &[edge(0, 1)]), (vec![1], vec![]));
    }

    #[test]
    fn the_collector_does_not_follow_cpp() {
        let edges = [(0, 1, Cpp), (1, 0, Python)];
        assert_eq!(freed(&graph(2, &edges, &[0]), &[variable(0)]), (vec![], vec![]));
        // But through a tensor to the `ctx` of its node: 0 is the tensor, 1 the node, 2 `ctx`.
        let edges = [(0, 1, Cpp), (1, 2, Cpp), (0, 2, Followed), (2, 0, Python)];
        let mut objects = vec![(Some(2), true), (Some(1), false), (Some(1), true)];
        let known = RetentionGraph::new(objects.clone(), edges.to_vec());
        assert_eq!(freed(&known, &[variable(0)]), (vec![], vec![0, 2, 1].sorted()));
        objects[2].0 = Some(2);
        let known = RetentionGraph::new(objects, edges.to_vec());
        assert_eq!(freed(&known, &[variable(0)]), (vec![], vec![]), "C has one, too");
    }

    #[test]
    fn contradictions_and_immortals_stay() {
        let objects = vec![(Some(1), true), (None, true), (Some(0), true)];
        let known = RetentionGraph::new(objects, vec![(0, 1, Python), (0, 2, Python)]);
        assert_eq!(freed(&known, &[variable(0)]), (vec![0], vec![]));
    }

    #[test]
    fn a_limit_leaves_it_unknown() {
        let known = graph(2, &[(0, 1, Python)], &[0]);
        let alive = known.alive_without(&[variable(0)]);
        assert_eq!(known.freed(&[variable(0)], &alive, &mut 1), None);
    }

    trait Sorted {
        fn sorted(self) -> Self;
    }

    impl Sorted for Vec<u32> {
        fn sorted(mut self) -> Self {
            self.sort_unstable();
            self
        }
    }

    /// What is reachable from `roots` by counted edges.
    fn reached(objects: u32, edges: &[(u32, u32)], roots: &[u32]) -> Vec<u32> {
        let mut seen: FxHashSet<u32> = roots.iter().copied().collect();
        let mut waiting = roots.to_vec();
        while let Some(object) = waiting.pop() {
            for (_, to) in edges.iter().filter(|(from, _)| *from == object) {
                if seen.insert(*to) {
                    waiting.push(*to);
                }
            }
        }
        (0..objects).filter(|object| seen.contains(object)).collect()
    }

    /// Counts down by looking at all edges again and again.
    fn counted_down(objects: u32, edges: &[(u32, u32)], roots: &[u32], from: &[u32]) -> Vec<u32> {
        let mut gone: Vec<u32> = Vec::new();
        loop {
            let is_held = |object: u32| {
                roots.contains(&object)
                    || edges.iter().any(|(from, to)| *to == object && !gone.contains(from))
            };
            // Only what loses a reference is looked at.
            let lost = |object: u32| {
                from.contains(&object)
                    || edges.iter().any(|(from, to)| *to == object && gone.contains(from))
            };
            let next = (0..objects).find(|&it| !gone.contains(&it) && lost(it) && !is_held(it));
            match next {
                Some(object) => gone.push(object),
                None => return gone.sorted(),
            }
        }
    }

    proptest! {
        /// With Python's references only: what goes in all is what can no longer be reached.
        #[test]
        fn what_goes_is_what_nothing_reaches(
            edges in prop::collection::vec((0u32..12, 0u32..12), 0..40),
            roots in prop::collection::vec(0u32..12, 1..4),
            which in any::<prop::sample::Index>(),
            others in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        ) {
            // Garbage of before would go, too.
            let live = reached(12, &edges, &roots);
            let edges: Vec<(u32, u32)> =
                edges.into_iter().filter(|(from, _)| live.contains(from)).collect();
            let typed: Vec<_> = edges.iter().map(|&(from, to)| (from, to, Python)).collect();
            let known = graph(12, &typed, &roots);
            let all: Vec<Removed> = edges
                .iter()
                .map(|&(from, to)| edge(from, to))
                .chain(roots.iter().map(|&root| variable(root)))
                .collect();
            let chosen = which.index(all.len());
            let removed = all[chosen];
            let (mut edges_left, mut roots_left) = (edges.clone(), roots.clone());
            match chosen.checked_sub(edges.len()) {
                None => _ = edges_left.remove(chosen),
                Some(root) => _ = roots_left.remove(root),
            }
            let mut at_the_same_time = vec![removed];
            at_the_same_time.extend(others.iter().map(|other| all[other.index(all.len())]));
            let alive = known.alive_without(&at_the_same_time);
            let found = known.freed(&[removed], &alive, &mut ROOM.clone()).unwrap();
            let still = reached(12, &edges_left, &roots_left);
            let gone: Vec<u32> =
                live.iter().copied().filter(|object| !still.contains(object)).collect();
            let at_once = counted_down(12, &edges_left, &roots_left, &[removed.to]);
            prop_assert_eq!(found.at_once.clone().sorted(), at_once);
            prop_assert_eq!([found.at_once, found.after_collect].concat().sorted(), gone);
        }
    }
}
