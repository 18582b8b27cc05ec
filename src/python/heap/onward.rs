//! What many objects refer to, found out ahead of a walk by several threads.

use super::threads::NextItems;
use super::{HeapObject, PythonHeap, ReferenceKind};
use crate::target::Addr;

/// Objects that a thread looks at before it takes the next ones. Fewer than this many are not worth a thread.
const PORTION: usize = 256;
/// How often missing pages are copied together.
const MAX_ROUNDS: usize = 4;

/// What an object refers to of what is worth going on to, in order; `None` where that has to be asked of the object itself.
pub type OnwardReferences = Option<Vec<(ReferenceKind, Addr)>>;

/// Which objects are looked into.
type IsAsked<'f> = &'f (dyn Fn(&HeapObject) -> bool + Sync);
/// Which references of one are told: by their number, from 1 on, and what they lead to.
type Takes<'f> = &'f (dyn Fn(&PythonHeap<'_>, usize, Addr) -> bool + Sync);

impl PythonHeap<'_> {
    /// Of each object that is `asked` about what it refers to, hidden references first, as far as `takes` says so. Without other threads
    /// to do it, or for a few objects, all is left to the walk.
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
            let look = |heap: &PythonHeap<'_>, next: NextItems<'_>| {
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
            let (looks, has_more) = self.by_threads(left.len(), PORTION, &look);
            left = Vec::new();
            for (done, missing) in looks {
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
