//! Temporary memory of the backward pass: blocks allocated and freed while autograd nodes run.
//!
//! Gradients of parameters do not count; only their free (`zero_grad()`) shows which they are.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::model::{
    AddressSpace, CudaIndex, Event, EventKind, ExactSettings, MemoryKind, StackSource, StackTable,
};

/// Per iteration and device; with more, the peak is unknown.
const MAX_BLOCKS: usize = 1 << 20;

#[derive(Debug, Clone, Copy)]
struct BackwardBlock {
    bytes: u64,
    /// In events, as `freed_at`.
    allocated_at: u64,
    freed_at: Option<u64>,
}

#[derive(Debug, Default)]
pub(in crate::analysis) struct BackwardBlocks {
    blocks: BTreeMap<CudaIndex, Vec<BackwardBlock>>,
    /// By address: device and index.
    live: FxHashMap<u64, (CudaIndex, usize)>,
    events: u64,
    /// Events know the backward pass.
    is_known: bool,
    is_lost: bool,
}

impl BackwardBlocks {
    pub(in crate::analysis) fn memory(&self) -> u64 {
        let blocks: usize = self.blocks.values().map(|blocks| blocks.capacity()).sum();
        (blocks * size_of::<BackwardBlock>() + self.live.len() * 48) as u64
    }

    pub(in crate::analysis) fn begin(&mut self, exact: &ExactSettings) {
        self.forget();
        self.is_known = exact.knows_backward;
    }

    pub(in crate::analysis) fn on_event(&mut self, event: &Event, stacks: &StackTable) {
        if !self.is_known {
            return;
        }
        self.events += 1;
        match event.change {
            EventKind::Allocated {
                memory_kind: MemoryKind::Torch(device), address, size, ..
            } => {
                self.live.remove(&address);
                let site = event.site.and_then(|site| stacks.get_site(site));
                let in_node = |source| source == StackSource::Backward;
                if site.is_some_and(|site| site.node.is_some() || in_node(site.source)) {
                    let blocks = self.blocks.entry(device).or_default();
                    if blocks.len() < MAX_BLOCKS {
                        self.live.insert(address, (device, blocks.len()));
                    }
                    blocks.push(BackwardBlock {
                        bytes: size,
                        allocated_at: self.events,
                        freed_at: None,
                    });
                    blocks.truncate(MAX_BLOCKS + 1);
                }
            }
            EventKind::Freed { memory_kind: AddressSpace::Torch, address, in_backward } => {
                let Some((device, index)) = self.live.remove(&address) else { return };
                if in_backward
                    && let Some(block) =
                        self.blocks.get_mut(&device).and_then(|blocks| blocks.get_mut(index))
                {
                    block.freed_at = Some(self.events);
                }
            }
            _ => {}
        }
    }

    /// In bytes; `None` without a backward pass.
    pub(in crate::analysis) fn peak(&self, device: CudaIndex) -> Option<u64> {
        let blocks = self.blocks.get(&device)?;
        if self.is_lost || blocks.len() > MAX_BLOCKS {
            return None;
        }
        let mut edits: Vec<(u64, i64)> = Vec::new();
        for block in blocks {
            let Some(died) = block.freed_at else { continue };
            edits.push((block.allocated_at, block.bytes as i64));
            edits.push((died, -(block.bytes as i64)));
        }
        edits.sort_unstable();
        let mut held = 0;
        let levels = edits.into_iter().map(|(_, bytes)| {
            held += bytes;
            held
        });
        Some(levels.max().unwrap_or(0).unsigned_abs())
    }

    pub(in crate::analysis) fn mark_lost(&mut self) {
        self.is_lost = true;
    }

    pub(in crate::analysis) fn forget(&mut self) {
        self.is_lost = false;
        self.live.clear();
        self.blocks.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AllocationSite, Nanos, SiteId, Thread};

    /// Sites: 0 outside of a node, 1 in one.
    fn table() -> StackTable {
        let mut table = StackTable::new();
        let thread = table.thread(Thread { os_id: None, python_id: 1, name: None, main: false });
        for node in [None, Some("AddBackward0")] {
            let (stack, source) = (None, StackSource::NoPython);
            let node = node.map(Into::into);
            table.site(AllocationSite {
                thread,
                stack,
                source,
                truncated: false,
                node,
                forward: None,
                native: Default::default(),
            });
        }
        table
    }

    fn known(knows_backward: bool) -> BackwardBlocks {
        let mut blocks = BackwardBlocks::default();
        blocks.begin(&ExactSettings { knows_backward, ..ExactSettings::default() });
        blocks
    }

    fn malloc(address: u64, size: u64, site: u32) -> Event {
        let memory_kind = MemoryKind::Torch(CudaIndex(0));
        let change = EventKind::Allocated { memory_kind, address, size, levels: None, block: None };
        Event { time: Nanos(0), change, site: Some(SiteId(site)) }
    }

    fn free(address: u64, in_backward: bool) -> Event {
        let change = EventKind::Freed { memory_kind: AddressSpace::Torch, address, in_backward };
        Event { time: Nanos(0), change, site: None }
    }

    fn most(events: &[Event]) -> Option<u64> {
        let (mut blocks, table) = (known(true), table());
        events.iter().for_each(|event| blocks.on_event(event, &table));
        blocks.peak(CudaIndex(0))
    }

    #[test]
    fn blocks_of_the_backward_pass_count_while_live() {
        let events = [
            malloc(1, 1000, 0), // Saved by forward, freed by backward.
            malloc(2, 10, 1),
            malloc(3, 20, 1),
            free(2, true),
            free(1, true),
            malloc(2, 5, 1),   // At an address used again.
            malloc(4, 400, 1), // A parameter's gradient: the program frees it.
            free(3, true),
            free(2, true),
            free(4, false),
        ];
        assert_eq!(most(&events), Some(30));
        assert_eq!(most(&events[..4]), Some(10));
    }

    #[test]
    fn without_a_backward_pass_the_peak_is_unknown() {
        assert_eq!(most(&[malloc(1, 10, 0), free(1, false)]), None);
        let (mut blocks, table) = (known(false), table());
        blocks.on_event(&malloc(1, 10, 1), &table);
        blocks.on_event(&free(1, true), &table);
        assert_eq!(blocks.peak(CudaIndex(0)), None);
    }
}
