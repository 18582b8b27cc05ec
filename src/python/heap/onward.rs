//! Reads references in parallel, ahead of a walk.

use super::threads::NextItems;
use super::{HeapObject, ObjectHeap, ReferenceKind};
use crate::target::Addr;

const PORTION: usize = 256;
const MAX_ROUNDS: usize = 4;

/// `None`: the walk must read the object.
pub type OnwardReferences = Option<Vec<(ReferenceKind, Addr)>>;

type IsAsked<'f> = &'f (dyn Fn(&HeapObject) -> bool + Sync);
/// Whether to include a reference, by index (from 1) and target.
type Takes<'f> = &'f (dyn Fn(&ObjectHeap<'_>, usize, Addr) -> bool + Sync);

impl ObjectHeap<'_> {
    /// Accepted references, hidden ones first. With few objects or no spare threads, leaves all to
    /// the walk.
    pub fn onward_references(
        &self,
        objects: &[Addr],
        is_asked: IsAsked<'_>,
        takes: Takes<'_>,
    ) -> Vec<OnwardReferences> {
        if self.threads.get() < 2 || objects.len() < 2 * PORTION {
            return vec![None; objects.len()];
        }
        self.onward_by_threads(objects, is_asked, takes)
    }

    fn onward_by_threads(
        &self,
        objects: &[Addr],
        is_asked: IsAsked<'_>,
        takes: Takes<'_>,
    ) -> Vec<OnwardReferences> {
        let mut onward: Vec<OnwardReferences> = vec![None; objects.len()];
        let mut left: Vec<usize> = (0..objects.len()).collect();
        for _ in 0..MAX_ROUNDS {
            let read = |heap: &ObjectHeap<'_>, next: NextItems<'_>| {
                let (mut done, mut missing) = (Vec::new(), Vec::new());
                while let Some(portion) = next() {
                    for &index in &left[portion] {
                        match heap.whole(|| heap.onward_of(objects[index], is_asked, takes)) {
                            Some(references) => done.push((index, references)),
                            None => missing.push(index),
                        }
                    }
                }
                (done, missing)
            };
            let (results, has_more) = self.by_threads(left.len(), PORTION, &read);
            left = Vec::new();
            for (done, missing) in results {
                done.into_iter().for_each(|(index, references)| onward[index] = references);
                left.extend(missing);
            }
            if left.is_empty() || !has_more {
                break;
            }
        }
        onward
    }

    fn onward_of(&self, at: Addr, is_asked: IsAsked<'_>, takes: Takes<'_>) -> OnwardReferences {
        let object = HeapObject { at, class: self.class_of(at)?, references: 0 };
        if self.needs_all_objects(&object) || !is_asked(&object) {
            return None;
        }
        let (mut items, mut onward) = (0, Vec::new());
        let mut take = |edge, to| {
            items += 1;
            if takes(self, items, to) {
                onward.push((edge, to));
            }
        };
        self.hidden_references(&object, &mut take);
        self.references(&object, &mut take);
        Some(onward)
    }
}
