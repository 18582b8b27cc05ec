//! The cycles behind garbage.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::garbage::CombinedReferences;
use super::paths;
use crate::model::GarbageCycle;
use crate::python::{ClassKind, HeapObject, ObjectHeap, PyClass};
use crate::target::Addr;

const MAX_KINDS: usize = 16;
/// Further cycles are reported without a path.
const MAX_CYCLES: usize = 4096;
const MAX_STEPS: usize = 24;

struct CycleFinder<'h, 'a> {
    heap: &'h ObjectHeap<'a>,
    objects: Vec<Addr>,
    next: Vec<Vec<u32>>,
    through_cpp: FxHashSet<(Addr, Addr)>,
    own_modules: FxHashSet<String>,
}

pub(super) fn find(
    heap: &ObjectHeap<'_>,
    held: &CombinedReferences<'_>,
    objects: &FxHashSet<Addr>,
    freed: &FxHashSet<u64>,
    through_cpp: &[(Addr, Addr)],
) -> Vec<GarbageCycle> {
    let finder = CycleFinder::new(heap, held, objects, through_cpp);
    let mut cycles = finder.strongly_connected();
    // Referring cycles first, then those with classes of the program.
    cycles.reverse();
    cycles.sort_by_cached_key(|cycle| finder.rank_of(cycle));
    let mut kinds: Vec<GarbageCycle> = Vec::new();
    let mut known: FxHashMap<(Arc<str>, String), usize> = FxHashMap::default();
    let mut seen: FxHashSet<u64> = FxHashSet::default();
    for cycle in cycles.into_iter().take(MAX_CYCLES) {
        let tensors =
            reached(held, cycle.iter().map(|&at| finder.objects[at as usize]), freed, &mut seen);
        if tensors.is_empty() {
            continue;
        }
        let (class, way) = finder.describe(&cycle);
        let kind = *known.entry((class.clone(), way.clone())).or_insert_with(|| {
            kinds.push(GarbageCycle { class, way, cycles: 0, tensors: Vec::new() });
            kinds.len() - 1
        });
        kinds[kind].cycles += 1;
        kinds[kind].tensors.extend(tensors);
    }
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.tensors.len()));
    kinds.truncate(MAX_KINDS);
    kinds
}

fn reached(
    held: &CombinedReferences<'_>,
    from: impl Iterator<Item = Addr>,
    freed: &FxHashSet<u64>,
    seen: &mut FxHashSet<u64>,
) -> Vec<u64> {
    let mut waiting: VecDeque<u64> = from.map(|at| held.key(at)).collect();
    waiting.retain(|key| seen.insert(*key));
    let mut all = Vec::new();
    while let Some(key) = waiting.pop_front() {
        if held.is_tensor(key) {
            all.push(key);
        }
        held.each_held(key, &mut |to| {
            if freed.contains(&to) && seen.insert(to) {
                waiting.push_back(to);
            }
        });
    }
    all
}

impl<'h, 'a> CycleFinder<'h, 'a> {
    fn new(
        heap: &'h ObjectHeap<'a>,
        held: &CombinedReferences<'_>,
        garbage: &FxHashSet<Addr>,
        through_cpp: &[(Addr, Addr)],
    ) -> CycleFinder<'h, 'a> {
        let mut objects: Vec<Addr> = garbage.iter().copied().collect();
        objects.sort_unstable();
        let numbers: FxHashMap<Addr, u32> = objects.iter().copied().zip(0..).collect();
        let mut next: Vec<Vec<u32>> = objects
            .iter()
            .map(|at| held.targets_of(*at).filter_map(|to| numbers.get(&to).copied()).collect())
            .collect();
        let mut joined = FxHashSet::default();
        for (from, to) in through_cpp {
            if let (Some(&from_number), Some(&to_number)) = (numbers.get(from), numbers.get(to)) {
                next[from_number as usize].push(to_number);
                joined.insert((*from, *to));
            }
        }
        let is_own = |name: &str, dict: Addr| paths::is_own_module(heap, name, dict);
        let own = heap.modules().into_iter().filter(|(name, dict)| is_own(name, *dict));
        let own_modules = own.map(|(name, _)| name).collect();
        CycleFinder { heap, objects, next, through_cpp: joined, own_modules }
    }

    /// Strongly connected components (Tarjan), each after its successors.
    fn strongly_connected(&self) -> Vec<Vec<u32>> {
        const UNSEEN: u32 = u32::MAX;
        let count = self.objects.len();
        let (mut order, mut low) = (vec![UNSEEN; count], vec![0u32; count]);
        let mut is_open = vec![false; count];
        let (mut open, mut found, mut time) = (Vec::new(), Vec::new(), 0);
        for start in 0..count as u32 {
            if order[start as usize] != UNSEEN {
                continue;
            }
            let mut calls: Vec<(u32, usize)> = vec![(start, 0)];
            while let Some((at, step)) = calls.last_mut() {
                let here = *at as usize;
                if *step == 0 {
                    (order[here], low[here]) = (time, time);
                    time += 1;
                    open.push(*at);
                    is_open[here] = true;
                }
                if let Some(&to) = self.next[here].get(*step) {
                    *step += 1;
                    if order[to as usize] == UNSEEN {
                        calls.push((to, 0));
                    } else if is_open[to as usize] {
                        low[here] = low[here].min(order[to as usize]);
                    }
                    continue;
                }
                if low[here] == order[here] {
                    let first = open.iter().rposition(|other| *other as usize == here);
                    let set = open.split_off(first.unwrap_or(open.len()));
                    set.iter().for_each(|other| is_open[*other as usize] = false);
                    let is_cycle = set.len() > 1 || self.next[here].contains(&(here as u32));
                    if is_cycle {
                        found.push(set);
                    }
                }
                let done = low[here];
                calls.pop();
                if let Some((caller, _)) = calls.last() {
                    let caller = *caller as usize;
                    low[caller] = low[caller].min(done);
                }
            }
        }
        found
    }

    /// The class that names a cycle best, and the shortest cycle through it.
    fn describe(&self, cycle: &[u32]) -> (Arc<str>, String) {
        let class = |at: &u32| self.heap.class_of(self.objects[*at as usize]);
        let named = |at: &u32| class(at).map(|class| (self.rank(&class), class.name.clone(), *at));
        let Some((_, name, first)) = cycle.iter().filter_map(named).min() else {
            return ("?".into(), String::new());
        };
        let name: Arc<str> = name.rsplit('.').next().unwrap_or_default().into();
        let way = self.shortest_cycle(cycle, first).map(|way| self.text(&way)).unwrap_or_default();
        (name, way)
    }

    fn rank_of(&self, cycle: &[u32]) -> u8 {
        let class = |at: &u32| self.heap.class_of(self.objects[*at as usize]);
        cycle.iter().filter_map(class).map(|class| self.rank(&class)).min().unwrap_or(u8::MAX)
    }

    /// The lowest names a cycle best.
    fn rank(&self, class: &PyClass) -> u8 {
        let is_instance = matches!(class.kind, ClassKind::Instance | ClassKind::Other);
        match class.kind {
            _ if self.is_own(class) => 0,
            _ if is_instance && class.name.ends_with("Backward") => 1,
            _ if is_instance => 2,
            ClassKind::Function | ClassKind::Generator | ClassKind::Frame => 3,
            _ => 4,
        }
    }

    fn is_own(&self, class: &PyClass) -> bool {
        let module = self.heap.module_of(class);
        module.is_some_and(|module| self.own_modules.contains(&*module))
    }

    fn shortest_cycle(&self, cycle: &[u32], first: u32) -> Option<Vec<u32>> {
        let inside: FxHashSet<u32> = cycle.iter().copied().collect();
        let mut from: FxHashMap<u32, u32> = FxHashMap::default();
        let mut waiting = VecDeque::from([first]);
        while let Some(at) = waiting.pop_front() {
            for &to in self.next[at as usize].iter().filter(|to| inside.contains(to)) {
                if to == first {
                    let mut way = vec![at];
                    while let Some(&before) = way.last().and_then(|at| from.get(at)) {
                        way.push(before);
                    }
                    way.reverse();
                    return Some(way);
                }
                if to != first && !from.contains_key(&to) {
                    from.insert(to, at);
                    waiting.push_back(to);
                }
            }
        }
        None
    }

    fn text(&self, way: &[u32]) -> String {
        let objects: Vec<Addr> = way.iter().map(|at| self.objects[*at as usize]).collect();
        let mut text = String::new();
        let mut step = 0;
        while step < objects.len() && step < MAX_STEPS {
            let at = objects[step];
            let next = |ahead: usize| objects[(step + ahead) % objects.len()];
            if let Some(name) = self.name(at) {
                text.push_str(if text.is_empty() { "" } else { " → " });
                text.push_str(&name);
            }
            let dict =
                self.heap.class_of(at).and_then(|class| self.heap.dict_of_instance(at, &class));
            // Attributes belong to the instance, not its dictionary.
            let (from, to) = match dict {
                Some(dict) if dict == next(1) && step + 1 < objects.len() => (dict, next(2)),
                _ => (at, next(1)),
            };
            let word = self.step(from, to);
            let is_attribute = from != at;
            text.push_str(
                &match word.strip_prefix("[\"").and_then(|key| key.strip_suffix("\"]")) {
                    Some(name) if is_attribute => format!(".{name}"),
                    _ => word,
                },
            );
            step += if is_attribute { 2 } else { 1 };
        }
        if objects.len() > MAX_STEPS {
            text.push_str(" → …");
        }
        match objects.first().and_then(|first| self.name(*first)) {
            Some(name) => format!("{text} → {name}"),
            None => format!("{text} → the same"),
        }
    }

    /// `None` for an intermediate object.
    fn name(&self, at: Addr) -> Option<String> {
        let class = self.heap.class_of(at)?;
        let short = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
        match class.kind {
            ClassKind::Dict | ClassKind::List | ClassKind::Tuple | ClassKind::Cell
                if !self.is_own(&class) =>
            {
                None
            }
            ClassKind::Function | ClassKind::Generator => {
                let name = self.heap.name_of_code(at);
                Some(name.unwrap_or_else(|| short(&class.name)))
            }
            _ => Some(short(&class.name)),
        }
    }

    fn step(&self, from: Addr, to: Addr) -> String {
        if self.through_cpp.contains(&(from, to)) {
            let is_hooks =
                self.heap.class_of(to).is_some_and(|class| class.kind == ClassKind::Dict);
            return if is_hooks { "._backward_hooks" } else { ".grad_fn" }.to_owned();
        }
        let Some(class) = self.heap.class_of(from) else { return String::new() };
        let mut word = None;
        self.heap.references(
            &HeapObject { at: from, class, references: 0 },
            &mut |edge, target| {
                if target == to && word.is_none() {
                    word = Some(paths::step(self.heap, &edge));
                }
            },
        );
        word.unwrap_or_default()
    }
}
