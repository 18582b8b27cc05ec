//! Which tracked objects each tracked object refers to, found out by several threads.
//!
//! Each looks through a view of the copied memory ([`PageCache::view`]). Where that lacks a page, the object is looked at again
//! when the missing pages of all objects have been copied together, and at last by itself.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustc_hash::FxHashMap;

use super::{ClassKind, HeapObject, KnownClasses, PyClass, PythonHeap};
use crate::target::{Addr, Field, ViewedPages};

/// Objects of C of which nothing is known are searched only so far.
const MAX_BODY: u64 = 4096;
const WORD: u64 = 8;
/// Objects that a thread looks at before it takes the next ones; those that make another thread worth its start.
const PORTION: usize = 4096;
const OBJECTS_A_THREAD: usize = 1 << 15;
/// More threads only wait for the memory. At most half of the processors: the process that is looked at runs meanwhile.
const MAX_THREADS: usize = 8;
/// References that one thread finds: more than fit into the memory of most machines. Those left out count as nobody's.
const MAX_TARGETS: usize = 1 << 28;
/// How often missing pages are copied together: so many steps are between an object's head and all that it refers to.
const MAX_ROUNDS: usize = 12;

/// What was found in some objects.
#[derive(Debug, Default)]
pub(super) struct ScannedObjects {
    /// Each object with where its references begin in `targets`.
    pub(super) starts: Vec<(u32, u32)>,
    pub(super) targets: Vec<u32>,
    /// What objects lead to without a counted reference that is known: a class to its dictionary.
    pub(super) uncounted: Vec<(u32, u32)>,
    /// What objects of unknown kinds hold: a word in them is the object's address.
    pub(super) held: Vec<(u32, u32)>,
}

/// What one thread came to.
struct ThreadScan {
    found: ScannedObjects,
    /// Objects of which something was missing.
    left: Vec<u32>,
    unreadable: u64,
    viewed: ViewedPages,
}

/// Looks into objects.
struct ObjectScan<'h, 'a> {
    heap: &'h PythonHeap<'a>,
    numbers: &'h FxHashMap<Addr, u32>,
    /// By class: whether something is not known of its instances.
    unknown: FxHashMap<Addr, bool>,
    found: ScannedObjects,
}

impl PythonHeap<'_> {
    /// Looks into all tracked objects, whose `numbers` are given by address.
    pub(super) fn scan_references(&self, numbers: &FxHashMap<Addr, u32>) -> Vec<ScannedObjects> {
        let mut found = Vec::new();
        let mut left: Vec<u32> = (0..self.objects.len() as u32).collect();
        for _ in 0..MAX_ROUNDS {
            if left.is_empty() {
                return found;
            }
            let mut views = Vec::new();
            let mut missing = Vec::new();
            for scan in self.scan_by_threads(&left, numbers) {
                self.unreadable.set(self.unreadable.get() + scan.unreadable);
                found.push(scan.found);
                missing.extend(scan.left);
                views.push(scan.viewed);
            }
            left = missing;
            if !self.memory.take_back(views) {
                break;
            }
        }
        let mut scan = ObjectScan::new(self, numbers);
        left.iter().for_each(|number| scan.object(*number, &self.objects[*number as usize]));
        found.push(scan.found);
        found
    }

    fn scan_by_threads(&self, left: &[u32], numbers: &FxHashMap<Addr, u32>) -> Vec<ThreadScan> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let most = (left.len() / OBJECTS_A_THREAD).clamp(1, MAX_THREADS);
        let threads = (processors / 2).clamp(1, most);
        let (layout, runtime, objects) = (self.layout, self.runtime, &self.objects);
        let next = AtomicUsize::new(0);
        let scan = |classes: KnownClasses, view| {
            let heap = PythonHeap::over(layout, runtime, classes, &view);
            let mut scan = ObjectScan::new(&heap, numbers);
            let mut missing = Vec::new();
            loop {
                let first = next.fetch_add(PORTION, Ordering::Relaxed);
                let Some(portion) = left.get(first..left.len().min(first + PORTION)) else { break };
                for &number in portion {
                    if !scan.try_object(number, &objects[number as usize]) {
                        missing.push(number);
                    }
                }
            }
            let (found, unreadable) = (scan.found, heap.unreadable());
            drop(heap);
            ThreadScan { found, left: missing, unreadable, viewed: view.into_viewed() }
        };
        let known = || (self.classes.borrow().clone(), self.memory.view());
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads)
                .map(|_| {
                    let (classes, view) = known();
                    scope.spawn(|| scan(classes, view))
                })
                .collect();
            let (classes, view) = known();
            let own = scan(classes, view);
            // The only failure of a thread is a panic, which has been printed by then.
            others.into_iter().filter_map(|thread| thread.join().ok()).chain([own]).collect()
        })
    }

    /// Whether C made a class or a base of it and nothing is known of what it keeps in its instances.
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
    fn new(heap: &'h PythonHeap<'a>, numbers: &'h FxHashMap<Addr, u32>) -> ObjectScan<'h, 'a> {
        let (unknown, found) = (FxHashMap::default(), ScannedObjects::default());
        ObjectScan { heap, numbers, unknown, found }
    }

    /// Looks into an object; whether everything was there. What was found of it is forgotten where something was missing.
    fn try_object(&mut self, number: u32, object: &HeapObject) -> bool {
        let before = (self.heap.memory.refused(), self.heap.unreadable());
        let ScannedObjects { starts, targets, uncounted, held } = &self.found;
        let lens = (starts.len(), targets.len(), uncounted.len(), held.len());
        self.object(number, object);
        if self.heap.memory.refused() == before.0 {
            return true;
        }
        self.heap.unreadable.set(before.1);
        self.found.starts.truncate(lens.0);
        self.found.targets.truncate(lens.1);
        self.found.uncounted.truncate(lens.2);
        self.found.held.truncate(lens.3);
        false
    }

    fn object(&mut self, number: u32, object: &HeapObject) {
        let ObjectScan { heap, numbers, found, .. } = self;
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
