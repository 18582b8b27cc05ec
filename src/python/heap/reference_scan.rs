//! Finds each tracked object's references with several threads; retries objects once missing pages
//! were copied.

use rustc_hash::{FxHashMap, FxHashSet};

use super::threads::NextItems;
use super::{ClassKind, HeapObject, ObjectHeap, PyClass};
use crate::target::{Addr, Field, Memory as _};

const MAX_BODY: u64 = 4096;
const WORD: u64 = 8;
const PORTION: usize = 4096;
/// Most machines lack the memory for more.
const MAX_TARGETS: usize = 1 << 28;
/// Containers in containers that the collector does not track.
const MAX_NESTED: u32 = 3;
/// From an object's head to its references.
const MAX_ROUNDS: usize = 12;

#[derive(Debug, Default)]
pub(super) struct ScannedObjects {
    pub(super) starts: Vec<(u32, u32)>,
    pub(super) targets: Vec<u32>,
    pub(super) uncounted: Vec<(u32, u32)>,
    pub(super) held: Vec<(u32, u32)>,
    /// Objects whose references may be of another moment than the snapshot.
    pub(super) torn: Vec<u32>,
}

struct ObjectScan<'h, 'a> {
    heap: &'h ObjectHeap<'a>,
    numbers: &'h FxHashMap<Addr, u32>,
    unknown: FxHashMap<Addr, bool>,
    found: ScannedObjects,
}

impl ObjectHeap<'_> {
    pub(super) fn scan_references(&self, numbers: &FxHashMap<Addr, u32>) -> Vec<ScannedObjects> {
        let objects = &self.objects[..];
        let mut found = Vec::new();
        let mut left: Vec<u32> = (0..objects.len() as u32).collect();
        let rounds = if self.threads.get() > 1 { MAX_ROUNDS } else { 0 };
        for _ in 0..rounds {
            if left.is_empty() {
                return found;
            }
            let scan = |heap: &ObjectHeap<'_>, next: NextItems<'_>| {
                let mut scan = ObjectScan::new(heap, numbers);
                let mut missing = Vec::new();
                while let Some(portion) = next() {
                    for &number in &left[portion] {
                        if !scan.try_object(number, &objects[number as usize]) {
                            missing.push(number);
                        }
                    }
                }
                (scan.found, missing)
            };
            let (scans, has_more) = self.by_threads(left.len(), PORTION, &scan);
            left = Vec::new();
            for (scanned, missing) in scans {
                found.push(scanned);
                left.extend(missing);
            }
            if !has_more {
                break;
            }
        }
        let mut scan = ObjectScan::new(self, numbers);
        left.iter().for_each(|number| scan.object(*number, &objects[*number as usize]));
        found.push(scan.found);
        found
    }

    /// Scans `waiting` and what these lead to.
    pub(super) fn scan_behind(
        &self,
        numbers: &FxHashMap<Addr, u32>,
        mut waiting: Vec<u32>,
        ends: &FxHashSet<Addr>,
        is_scanned: &mut [bool],
    ) -> ScannedObjects {
        let mut scan = ObjectScan::new(self, numbers);
        while let Some(number) = waiting.pop() {
            let object = &self.objects[number as usize];
            let is_end = matches!(object.class.kind, ClassKind::Module | ClassKind::Type)
                || ends.contains(&object.at);
            if is_end || std::mem::replace(&mut is_scanned[number as usize], true) {
                continue;
            }
            let first = scan.found.targets.len();
            scan.object(number, object);
            waiting.extend(scan.found.targets.iter().skip(first));
        }
        scan.found
    }

    /// Whether it may have references that are not known: of a C type, or a class.
    pub fn is_opaque(&self, class: &PyClass) -> bool {
        matches!(class.kind, ClassKind::Type | ClassKind::Capsule) || self.has_unknown_part(class)
    }

    /// Whether an untracked object may lead to tensors: a capsule, an object of a class that C++
    /// made, or a container of such.
    pub fn is_untracked_holder(&self, at: Addr) -> bool {
        self.leads_on_untracked(at, MAX_NESTED)
    }

    fn leads_on_untracked(&self, at: Addr, depth: u32) -> bool {
        let Some(class) = self.class_of(at) else { return false };
        match class.kind {
            ClassKind::Capsule => true,
            ClassKind::Dict | ClassKind::Tuple if depth > 0 => {
                let mut leads = false;
                self.owned(&HeapObject { at, class, references: 0 }, &mut |to| {
                    leads = leads || self.leads_on_untracked(to, depth - 1);
                });
                leads
            }
            ClassKind::Other if class.parts.is_some() => true,
            _ => class.is_heap_type() && class.name.contains('.') && self.has_unknown_part(&class),
        }
    }

    /// Whether it is at least partly C, with unknown fields.
    fn has_unknown_part(&self, class: &PyClass) -> bool {
        let is_unknown = |base: &PyClass| {
            let is_of_c = !base.is_heap_type() || base.name.contains('.');
            let is_plain = matches!(base.kind, ClassKind::Other | ClassKind::Instance);
            is_of_c && is_plain && base.parts.is_none() && &*base.name != "object"
        };
        class.bases.iter().filter_map(|base| self.class_at(*base)).any(|base| is_unknown(&base))
    }
}

impl<'h, 'a> ObjectScan<'h, 'a> {
    fn new(heap: &'h ObjectHeap<'a>, numbers: &'h FxHashMap<Addr, u32>) -> ObjectScan<'h, 'a> {
        let (unknown, found) = (FxHashMap::default(), ScannedObjects::default());
        ObjectScan { heap, numbers, unknown, found }
    }

    /// `false` if a page was missing.
    fn try_object(&mut self, number: u32, object: &HeapObject) -> bool {
        let ScannedObjects { starts, targets, uncounted, held, torn } = &self.found;
        let lens = (starts.len(), targets.len(), uncounted.len(), held.len(), torn.len());
        let heap = self.heap;
        if heap.whole(|| self.object(number, object)).is_some() {
            return true;
        }
        self.found.starts.truncate(lens.0);
        self.found.targets.truncate(lens.1);
        self.found.uncounted.truncate(lens.2);
        self.found.held.truncate(lens.3);
        self.found.torn.truncate(lens.4);
        false
    }

    fn object(&mut self, number: u32, object: &HeapObject) {
        let ObjectScan { heap, numbers, found, .. } = self;
        let torn_before = heap.memory.torn_reads();
        found.starts.push((number, found.targets.len() as u32));
        let targets = &mut found.targets;
        heap.owned(object, &mut |owned| {
            if targets.len() < MAX_TARGETS {
                targets.extend(numbers.get(&owned));
            }
        });
        if object.class.kind == ClassKind::Type
            && let Some(class) = heap.class_at(object.at)
            && let Some(&dict) = numbers.get(&class.dict)
        {
            found.uncounted.push((number, dict));
        }
        if self.has_unknown_part(&object.class) {
            self.held_by_unknown(number, object);
        }
        if self.heap.memory.torn_reads() > torn_before {
            self.found.torn.push(number);
        }
    }

    fn has_unknown_part(&mut self, class: &PyClass) -> bool {
        if let Some(&known) = self.unknown.get(&class.at) {
            return known;
        }
        let refused = self.heap.memory.refused();
        let is_unknown = self.heap.has_unknown_part(class);
        if self.heap.memory.refused() == refused {
            self.unknown.insert(class.at, is_unknown);
        }
        is_unknown
    }

    fn held_by_unknown(&mut self, number: u32, object: &HeapObject) {
        let head = self.heap.layout.object.head_len as u64;
        let words = object.class.basic_size.min(MAX_BODY).saturating_sub(head) / WORD;
        let Ok(body) = self.heap.memory().vec(object.at + head, (WORD * words) as usize) else {
            self.heap.missed();
            return;
        };
        let words = body.chunks_exact(WORD as usize).filter_map(|w| Field::<Addr>::at(0).get(w));
        let held = words.filter_map(|to| self.numbers.get(&to)).map(|to| (number, *to));
        self.found.held.extend(held);
    }
}
