//! References between tracked objects, and from outside.

use std::cell::OnceCell;
use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::reference_scan::ScannedObjects;
use super::{HeapObject, ObjectHeap};
use crate::target::Addr;

/// Tracked objects and their references.
pub struct ReferenceGraph<'h> {
    objects: &'h [HeapObject],
    numbers: FxHashMap<Addr, u32>,
    scanned: Vec<ScannedObjects>,
    /// `None`: all are.
    is_scanned: Option<Vec<bool>>,
    places: Vec<ReferencesPlace>,
    /// Such as a class to its dictionary.
    uncounted: Vec<(u32, u32)>,
    /// Owners of unknown kind, and objects whose address appears in them.
    held: Vec<(u32, u32)>,
    unaccounted: Vec<i64>,
    /// Objects whose references may be of another moment than the snapshot.
    torn: FxHashSet<u32>,
    referrers: OnceCell<Referrers>,
}

#[derive(Debug, Clone, Copy, Default)]
struct ReferencesPlace {
    part: u32,
    start: u32,
    end: u32,
}

/// Objects that lead to others.
#[derive(Debug, Default)]
pub struct LeadingObjects {
    /// Including the objects asked for.
    pub all: Vec<Addr>,
    /// Referenced from outside (C code, a frame), nearest first.
    pub kept_from_outside: Vec<Addr>,
}

impl ObjectHeap<'_> {
    /// Scans all tracked objects.
    pub fn reference_graph(&self) -> ReferenceGraph<'_> {
        let numbers = self.numbers();
        let scanned = self.scan_references(&numbers);
        self.graph_of(numbers, scanned, None)
    }

    /// Scans these and what they lead to, but nothing behind modules, classes and `ends`: a part of
    /// the heap. Other objects have no references.
    pub fn reference_graph_behind(
        &self,
        from: &[Addr],
        ends: &FxHashSet<Addr>,
    ) -> ReferenceGraph<'_> {
        let numbers = self.numbers();
        let mut is_scanned = vec![false; self.objects().len()];
        let waiting = from.iter().filter_map(|at| numbers.get(at)).copied().collect();
        let scanned = self.scan_behind(&numbers, waiting, ends, &mut is_scanned);
        self.graph_of(numbers, vec![scanned], Some(is_scanned))
    }

    fn numbers(&self) -> FxHashMap<Addr, u32> {
        self.objects().iter().zip(0..).map(|(object, number)| (object.at, number)).collect()
    }

    fn graph_of(
        &self,
        numbers: FxHashMap<Addr, u32>,
        mut scanned: Vec<ScannedObjects>,
        is_scanned: Option<Vec<bool>>,
    ) -> ReferenceGraph<'_> {
        let objects = self.objects();
        let mut places = vec![ReferencesPlace::default(); objects.len()];
        let mut unaccounted: Vec<i64> =
            objects.iter().map(|object| i64::from(object.references)).collect();
        let (mut uncounted, mut held) = (Vec::new(), Vec::new());
        let mut torn: FxHashSet<u32> =
            self.torn.iter().filter_map(|at| numbers.get(at)).copied().collect();
        for (found, part) in scanned.iter_mut().zip(0..) {
            let starts = std::mem::take(&mut found.starts);
            let ends = starts.iter().skip(1).map(|(_, start)| *start);
            let ends = ends.chain([found.targets.len() as u32]);
            for (&(number, start), end) in starts.iter().zip(ends) {
                places[number as usize] = ReferencesPlace { part, start, end };
            }
            for &target in &found.targets {
                unaccounted[target as usize] -= 1;
            }
            uncounted.append(&mut found.uncounted);
            held.append(&mut found.held);
            torn.extend(found.torn.drain(..));
        }
        uncounted.sort_unstable();
        held.sort_by_key(|(holder, _)| *holder);
        let referrers = OnceCell::new();
        ReferenceGraph {
            objects,
            numbers,
            scanned,
            is_scanned,
            places,
            uncounted,
            held,
            unaccounted,
            torn,
            referrers,
        }
    }
}

impl ReferenceGraph<'_> {
    /// The tracked objects, by number.
    pub fn objects(&self) -> &[HeapObject] {
        self.objects
    }

    /// Numbers of tracked objects that it references, with repetitions.
    pub fn references_of(&self, number: u32) -> &[u32] {
        let ReferencesPlace { part, start, end } = self.places[number as usize];
        let part = self.scanned.get(part as usize);
        part.and_then(|part| part.targets.get(start as usize..end as usize)).unwrap_or_default()
    }

    /// `None` if untracked.
    pub fn number_of(&self, object: Addr) -> Option<u32> {
        self.numbers.get(&object).copied()
    }

    /// Whether its references are known.
    pub fn is_scanned(&self, number: u32) -> bool {
        let known = self.is_scanned.as_ref();
        known.is_none_or(|scanned| scanned.get(number as usize).copied().unwrap_or(false))
    }

    /// With repetitions.
    pub fn targets_of(&self, object: Addr) -> impl Iterator<Item = Addr> {
        let targets = self.number_of(object).map_or(&[][..], |number| self.references_of(number));
        targets.iter().map(|to| self.objects[*to as usize].at)
    }

    /// Whether its references may be of another moment than the snapshot.
    pub fn is_torn(&self, number: u32) -> bool {
        self.torn.contains(&number)
    }

    /// Its reference count; `None` if untracked, immortal or unknown.
    pub fn count_of(&self, object: Addr) -> Option<i64> {
        self.count(self.number_of(object)?)
    }

    /// Its reference count; `None` if immortal or unknown.
    pub fn count(&self, number: u32) -> Option<i64> {
        let references = self.objects[number as usize].references;
        (references >= 0 && !self.is_torn(number)).then_some(i64::from(references))
    }

    /// How many references to each object torn ones seem to have.
    pub(super) fn by_torn(&self) -> FxHashMap<u32, i64> {
        let mut references: FxHashMap<u32, i64> = FxHashMap::default();
        for to in self.torn.iter().flat_map(|torn| self.references_of(*torn)) {
            *references.entry(*to).or_default() += 1;
        }
        references
    }

    pub(super) fn unaccounted(&self, number: u32) -> i64 {
        self.unaccounted[number as usize]
    }

    /// Pairs of a C object of unknown layout and an object in it.
    pub fn held_in_unknown_objects(&self, objects: &FxHashSet<Addr>) -> Vec<(Addr, Addr)> {
        let at = |number: u32| self.objects[number as usize].at;
        let held = self.held.iter().map(|(holder, held)| (at(*holder), at(*held)));
        held.filter(|(_, held)| objects.contains(held)).collect()
    }

    /// All objects that lead to `objects`, up to `ends`.
    pub fn leading_to(&self, objects: &[Addr], ends: &FxHashSet<Addr>) -> LeadingObjects {
        let referrers = self.referrers();
        let mut reached = vec![false; self.objects.len()];
        let mut leading = LeadingObjects::default();
        let asked: Vec<u32> =
            objects.iter().filter_map(|at| self.numbers.get(at)).copied().collect();
        let mut waiting: VecDeque<u32> = VecDeque::new();
        for &number in &asked {
            if !std::mem::replace(&mut reached[number as usize], true) {
                waiting.push_back(number);
            }
        }
        let asked: FxHashSet<u32> = asked.into_iter().collect();
        while let Some(number) = waiting.pop_front() {
            let object = &self.objects[number as usize];
            leading.all.push(object.at);
            if self.unaccounted(number) > 0 && !asked.contains(&number) {
                leading.kept_from_outside.push(object.at);
            }
            if ends.contains(&object.at) {
                continue;
            }
            for &referrer in referrers.of(number) {
                if !std::mem::replace(&mut reached[referrer as usize], true) {
                    waiting.push_back(referrer);
                }
            }
        }
        leading
    }

    /// Splits `objects`: referenced by a tracked object outside `garbage`, and others.
    pub fn divide(&self, objects: &[Addr], garbage: &FxHashSet<Addr>) -> (Vec<Addr>, Vec<Addr>) {
        let referrers = self.referrers();
        let is_referred_to = |at: &Addr| {
            let number = self.numbers.get(at).copied();
            let is_alive = |by: &u32| !garbage.contains(&self.objects[*by as usize].at);
            number.is_some_and(|number| referrers.of(number).iter().any(is_alive))
        };
        let alive = objects.iter().copied().filter(|at| !garbage.contains(at));
        alive.partition(is_referred_to)
    }

    fn referrers(&self) -> &Referrers {
        self.referrers.get_or_init(|| {
            let counted = (0u32..self.objects.len() as u32)
                .flat_map(|from| self.references_of(from).iter().map(move |to| (from, *to)));
            let all = || counted.clone().chain(self.uncounted.iter().copied());
            let mut starts = vec![0usize; self.objects.len() + 1];
            for (_, to) in all() {
                starts[to as usize + 1] += 1;
            }
            for number in 1..starts.len() {
                starts[number] += starts[number - 1];
            }
            let mut sources = vec![0u32; starts.last().copied().unwrap_or_default()];
            let mut next = starts.clone();
            for (from, to) in all() {
                let place = &mut next[to as usize];
                sources[*place] = from;
                *place += 1;
            }
            Referrers { starts, sources }
        })
    }
}

struct Referrers {
    starts: Vec<usize>,
    sources: Vec<u32>,
}

impl Referrers {
    fn of(&self, number: u32) -> &[u32] {
        &self.sources[self.starts[number as usize]..self.starts[number as usize + 1]]
    }
}
