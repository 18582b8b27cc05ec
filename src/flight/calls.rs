//! Counts calls of a function by its allocations.

use rustc_hash::FxHashMap;

use crate::model::{Event, StackId, StackSource, StackTable, ThreadId};

/// A call ends with the thread's first allocation outside the function.
#[derive(Debug)]
pub(super) struct CallCounter {
    function: String,
    every: u64,
    has: FxHashMap<StackId, bool>,
    threads: FxHashMap<ThreadId, bool>,
    calls: u64,
    is_due: bool,
}

impl CallCounter {
    /// `function` is a name or qualified name.
    pub(super) fn new(function: &str, every: u64) -> CallCounter {
        CallCounter {
            function: function.to_owned(),
            every: every.max(1),
            has: FxHashMap::default(),
            threads: FxHashMap::default(),
            calls: 0,
            is_due: false,
        }
    }

    pub(super) fn on_events(&mut self, events: &[Event], table: &StackTable) {
        for event in events {
            let site = event.site.and_then(|site| table.get_site(site));
            let Some(site) = site.filter(|site| site.source == StackSource::Own) else { continue };
            let Some(stack) = site.stack else { continue };
            let is_in = self.is_in(stack, table);
            let was_in = self.threads.insert(site.thread, is_in).unwrap_or(false);
            if was_in && !is_in {
                self.calls += 1;
                self.is_due |= self.calls.is_multiple_of(self.every);
            }
        }
    }

    pub(super) fn redefine(&mut self, stack: StackId) {
        self.has.remove(&stack);
    }

    pub(super) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }

    pub(super) fn counted(&self) -> String {
        format!("{} calls of {}", self.calls, self.function)
    }

    fn is_in(&mut self, stack: StackId, table: &StackTable) -> bool {
        if let Some(known) = self.has.get(&stack) {
            return *known;
        }
        let is_it = |name: &str| {
            name == self.function || name.rsplit('.').next() == Some(self.function.as_str())
        };
        let mut functions =
            table.frames(stack).filter_map(|frame| table.get_function(frame.function));
        let found = functions.any(|function| is_it(&function.name));
        self.has.insert(stack, found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        AllocationSite, CudaIndex, EventKind, Frame, Function, MemoryKind, Nanos, NativeFrames,
        SiteId, Thread,
    };

    fn site(table: &mut StackTable, thread: u64, functions: &[&str]) -> SiteId {
        let thread =
            table.thread(Thread { os_id: None, python_id: thread, name: None, main: false });
        let mut stack = None;
        for name in functions {
            let function = table.function(Function {
                name: (*name).into(),
                file: "train.py".into(),
                first_line: 1,
                last_line: 9,
                is_native: false,
            });
            let frame = table.frame(Frame { function, line: 3 });
            stack = Some(table.stack(stack, frame));
        }
        table.site(AllocationSite {
            thread,
            stack,
            source: StackSource::Own,
            truncated: false,
            node: None,
            forward: None,
            native: NativeFrames::NotTaken,
        })
    }

    fn events(sites: &[SiteId]) -> Vec<Event> {
        let change = EventKind::Allocated {
            memory_kind: MemoryKind::Torch(CudaIndex(0)),
            address: 512,
            size: 1,
            levels: None,
            block: None,
        };
        sites.iter().map(|site| Event { time: Nanos(1), change, site: Some(*site) }).collect()
    }

    #[test]
    fn a_call_ends_with_its_threads_next_outside_allocation() {
        let mut table = StackTable::new();
        let batch = site(&mut table, 1, &["main"]);
        let step = site(&mut table, 1, &["main", "Trainer.train_step"]);
        let inner = site(&mut table, 1, &["main", "Trainer.train_step", "forward"]);
        let other = site(&mut table, 2, &["work"]);
        let mut calls = CallCounter::new("train_step", 2);
        calls.on_events(&events(&[batch, step, other, inner, step, batch]), &table);
        assert!(!calls.take_due(), "{}", calls.counted());
        calls.on_events(&events(&[batch, step, inner]), &table);
        assert!(!calls.take_due(), "the second one goes on");
        calls.on_events(&events(&[batch]), &table);
        assert!(calls.take_due() && !calls.take_due());
        assert_eq!(calls.counted(), "2 calls of train_step");
        let alike = site(&mut table, 1, &["main", "my_train_step"]);
        calls.on_events(&events(&[alike, batch, alike, batch]), &table);
        assert!(!calls.take_due());
    }
}
