//! The references between all tracked objects: who refers to an object, and how many of its references nobody accounts for.

use std::collections::VecDeque;
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{ClassKind, HeapObject, PyClass, PythonHeap};
use crate::target::{Addr, Field};

/// Objects of C of which nothing is known are searched only so far.
const MAX_BODY: u64 = 4096;
const WORD: u64 = 8;

/// All tracked objects with the references between them.
pub struct ReferenceGraph<'h> {
    objects: &'h [HeapObject],
    numbers: FxHashMap<Addr, u32>,
    /// By object, where its references begin in `targets`.
    starts: Vec<usize>,
    targets: Vec<u32>,
    /// What objects lead to without a counted reference that is known: a class to its dictionary.
    uncounted: Vec<(u32, u32)>,
    /// Of the references that are counted, those that come from no tracked object.
    unaccounted: Vec<i64>,
}

/// The objects that lead to others, directly or through others.
#[derive(Debug, Default)]
pub struct LeadingObjects {
    /// All of them, with those that they lead to.
    pub all: FxHashSet<Addr>,
    /// Those that something refers to which is no tracked object (C code, a frame, an object of an unknown kind), the nearest
    /// first; without the objects that were asked about.
    pub kept_from_outside: Vec<Addr>,
}

impl PythonHeap<'_> {
    /// Looks into all tracked objects.
    pub fn reference_graph(&self) -> ReferenceGraph<'_> {
        let objects = self.objects();
        let numbers: FxHashMap<Addr, u32> =
            objects.iter().zip(0..).map(|(object, number)| (object.at, number)).collect();
        let mut unaccounted: Vec<i64> =
            objects.iter().map(|object| i64::from(object.references)).collect();
        let mut starts = Vec::with_capacity(objects.len() + 1);
        let (mut targets, mut uncounted) = (Vec::new(), Vec::new());
        for (number, object) in (0u32..).zip(objects) {
            starts.push(targets.len());
            self.owned(object, &mut |owned| {
                if let Some(&target) = numbers.get(&owned) {
                    targets.push(target);
                    unaccounted[target as usize] -= 1;
                }
            });
            if object.class.kind == ClassKind::Type
                && let Some(&dict) =
                    self.class_at(object.at).and_then(|class| numbers.get(&class.dict))
            {
                uncounted.push((number, dict));
            }
        }
        starts.push(targets.len());
        ReferenceGraph { objects, numbers, starts, targets, uncounted, unaccounted }
    }

    /// Which of `objects` the objects of C hold of which it is not known where their references are: a word in them is the
    /// object's address. Holder and object.
    pub fn held_in_unknown_objects(&self, objects: &FxHashSet<Addr>) -> Vec<(Addr, Addr)> {
        let head = self.layout.object.head_len as u64;
        let mut held = Vec::new();
        let mut unknown: FxHashMap<Addr, bool> = FxHashMap::default();
        for holder in self.objects() {
            let class = &holder.class;
            if !*unknown.entry(class.at).or_insert_with(|| self.has_unknown_part(class)) {
                continue;
            }
            let words = class.basic_size.min(MAX_BODY).saturating_sub(head) / WORD;
            let Ok(body) = self.memory().vec(holder.at + head, (WORD * words) as usize) else {
                self.missed();
                continue;
            };
            let words =
                body.chunks_exact(WORD as usize).filter_map(|w| Field::<Addr>::at(0).get(w));
            held.extend(words.filter(|to| objects.contains(to)).map(|to| (holder.at, to)));
        }
        held
    }

    /// Whether C made a class or a base of it and nothing is known of what it keeps in its instances.
    fn has_unknown_part(&self, class: &PyClass) -> bool {
        let is_unknown = |base: Rc<PyClass>| {
            let is_of_c = !base.is_heap_type() || base.name.contains('.');
            let is_plain = matches!(base.kind, ClassKind::Other | ClassKind::Instance);
            is_of_c && is_plain && base.parts.is_none() && &*base.name != "object"
        };
        class.bases.iter().filter_map(|base| self.class_at(*base)).any(is_unknown)
    }
}

impl ReferenceGraph<'_> {
    pub(super) fn objects(&self) -> &[HeapObject] {
        self.objects
    }

    /// The objects that one refers to, as often as it does.
    pub(super) fn references_of(&self, number: u32) -> &[u32] {
        &self.targets[self.starts[number as usize]..self.starts[number as usize + 1]]
    }

    pub(super) fn unaccounted(&self, number: u32) -> i64 {
        self.unaccounted[number as usize]
    }

    /// What leads to `objects`. Behind an object that `ends` holds nothing more is looked for.
    pub fn leading_to(&self, objects: &[Addr], ends: &FxHashSet<Addr>) -> LeadingObjects {
        let referrers = self.referrers();
        let mut reached = vec![false; self.objects.len()];
        let mut leading = LeadingObjects::default();
        let asked: Vec<u32> =
            objects.iter().filter_map(|at| self.numbers.get(at)).copied().collect();
        let mut waiting: VecDeque<u32> = asked.iter().copied().collect();
        for &number in &asked {
            reached[number as usize] = true;
        }
        let asked: FxHashSet<u32> = asked.into_iter().collect();
        while let Some(number) = waiting.pop_front() {
            let object = &self.objects[number as usize];
            leading.all.insert(object.at);
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

    /// Divides `objects` into those that a tracked object refers to, but for `garbage`, and those that only something else does.
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

    /// The references the other way round.
    fn referrers(&self) -> Referrers {
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
    }
}

/// By object, those that refer to it.
struct Referrers {
    starts: Vec<usize>,
    sources: Vec<u32>,
}

impl Referrers {
    fn of(&self, number: u32) -> &[u32] {
        &self.sources[self.starts[number as usize]..self.starts[number as usize + 1]]
    }
}
