//! Reads many objects with several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{KnownClasses, ObjectHeap};

/// More only wait for memory; the target needs processors, too.
const MAX_THREADS: usize = 8;
const PORTIONS_PER_THREAD: usize = 2;

pub(super) type NextItems<'n> = &'n mut dyn FnMut() -> Option<Range<usize>>;

pub(super) fn max_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 2).clamp(1, MAX_THREADS)
}

impl ObjectHeap<'_> {
    /// Overrides the number of threads. One alone reads missing pages at once.
    pub fn set_threads(&self, threads: usize) {
        self.threads.set(threads.clamp(1, MAX_THREADS));
    }

    /// Each thread reads only copied memory ([`Self::whole`]). Returns whether missing pages were
    /// copied since.
    pub(super) fn by_threads<R: Send>(
        &self,
        items: usize,
        portion: usize,
        work: &(dyn Fn(&ObjectHeap<'_>, NextItems<'_>) -> R + Sync),
    ) -> (Vec<R>, bool) {
        let (layout, runtime) = (self.layout, self.runtime);
        let threads = self.threads.get().min(items / portion / PORTIONS_PER_THREAD).max(1);
        let next = AtomicUsize::new(0);
        let run = |classes: KnownClasses, view| {
            let heap = ObjectHeap::over(layout, runtime, classes, &view);
            let result = work(&heap, &mut || {
                let first = next.fetch_add(portion, Ordering::Relaxed);
                (first < items).then(|| first..items.min(first + portion))
            });
            let unreadable = heap.unreadable();
            drop(heap);
            (result, unreadable, view.into_viewed())
        };
        let known = || (self.classes.borrow().clone(), self.memory.view());
        let done: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                let (classes, view) = known();
                scope.spawn(|| run(classes, view))
            };
            let others: Vec<_> = (1..threads).map(|_| start()).collect();
            let (classes, view) = known();
            let own = run(classes, view);
            others.into_iter().filter_map(|thread| thread.join().ok()).chain([own]).collect()
        });
        let (mut all, mut views) = (Vec::new(), Vec::new());
        for (result, unreadable, viewed) in done {
            self.unreadable.set(self.unreadable.get() + unreadable);
            all.push(result);
            views.push(viewed);
        }
        (all, self.memory.take_back(views))
    }

    /// `None` if a page was missing; then nothing counts as unreadable.
    pub(super) fn whole<R>(&self, read: impl FnOnce() -> R) -> Option<R> {
        let (refused, unreadable) = (self.memory.refused(), self.unreadable.get());
        let result = read();
        if self.memory.refused() == refused {
            return Some(result);
        }
        self.unreadable.set(unreadable);
        None
    }
}
