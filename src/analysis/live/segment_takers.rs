//! Stacks whose allocation took memory from the driver.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::model::{CudaIndex, Event, EventKind, MemoryKind, StackId, StackTable};

const MAX_STACKS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct SegmentTakers {
    reserved: BTreeMap<CudaIndex, i64>,
    taken: FxHashMap<(CudaIndex, StackId), u64>,
}

impl SegmentTakers {
    pub(super) fn on_counters(&mut self, device: CudaIndex, reserved: i64) {
        self.reserved.insert(device, reserved);
    }

    /// Its levels are those after the event.
    pub(super) fn on_event(&mut self, event: &Event, stacks: &StackTable) {
        let EventKind::Allocated {
            memory_kind: MemoryKind::Torch(device),
            levels: Some(levels),
            ..
        } = event.change
        else {
            return;
        };
        let before = self.reserved.insert(device, levels.reserved);
        let grown = before.map_or(0, |before| levels.reserved.saturating_sub(before));
        let site = event.site.and_then(|site| stacks.get_site(site));
        let Some(stack) = site.and_then(|site| site.stack).filter(|_| grown > 0) else { return };
        if self.taken.len() < MAX_STACKS || self.taken.contains_key(&(device, stack)) {
            *self.taken.entry((device, stack)).or_default() += grown as u64;
        }
    }

    /// Unordered.
    pub(super) fn taken(&self, device: CudaIndex) -> impl Iterator<Item = (StackId, u64)> + '_ {
        let of_device = self.taken.iter().filter(move |((of, _), _)| *of == device);
        of_device.map(|((_, stack), bytes)| (*stack, *bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        AllocationSite, CounterSnapshot, Definition, Frame, FrameId, Function, FunctionId, Nanos,
        NativeFrames, SiteId, StackNode, StackSource, Thread, ThreadId,
    };

    #[test]
    fn stack_that_grows_reserved_memory_is_the_taker() {
        let mut stacks = StackTable::new();
        let function = Function {
            name: "f".into(),
            file: "a.py".into(),
            first_line: 1,
            last_line: 9,
            is_native: false,
        };
        stacks.define(Definition::Function(FunctionId(0), function));
        let thread = Thread { os_id: None, python_id: 0, name: None, main: true };
        stacks.define(Definition::Thread(ThreadId(0), thread));
        for line in 0..2 {
            let frame = Frame { function: FunctionId(0), line: line + 1 };
            stacks.define(Definition::Frame(FrameId(line), frame));
            let node = StackNode { parent: None, frame: FrameId(line), module: None };
            stacks.define(Definition::Stack(StackId(line), node));
            let site = AllocationSite {
                thread: ThreadId(0),
                stack: Some(StackId(line)),
                source: StackSource::Own,
                truncated: false,
                node: None,
                forward: None,
                native: NativeFrames::default(),
            };
            stacks.define(Definition::Site(SiteId(line), site));
        }
        let mut takers = SegmentTakers::default();
        let allocates = |takers: &mut SegmentTakers, site: u32, reserved: i64| {
            let levels = Some(CounterSnapshot { reserved, ..CounterSnapshot::default() });
            let memory_kind = MemoryKind::Torch(CudaIndex(0));
            let change =
                EventKind::Allocated { memory_kind, address: 1, size: 1, levels, block: None };
            let site = Some(SiteId(site));
            takers.on_event(&Event { time: Nanos(1), site, change }, &stacks);
        };
        allocates(&mut takers, 0, 50);
        allocates(&mut takers, 1, 70);
        allocates(&mut takers, 0, 70);
        takers.on_counters(CudaIndex(0), 40);
        allocates(&mut takers, 0, 42);
        allocates(&mut takers, 1, 62);
        let mut taken: Vec<_> = takers.taken(CudaIndex(0)).collect();
        taken.sort_unstable();
        assert_eq!(taken, [(StackId(0), 2), (StackId(1), 40)]);
        assert_eq!(takers.taken(CudaIndex(1)).count(), 0);
    }
}
