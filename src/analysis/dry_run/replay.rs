//! Live blocks of a device, event by event.

use std::collections::BTreeMap;

use crate::model::{DeviceHistory, HistoryAction, block_size};

/// Levels this close to the peak count as it.
const EQUAL: f64 = 0.9995;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HistoryBlock {
    pub(super) size: u64,
    /// Index of its allocation in the history.
    pub(super) event: usize,
    /// Its allocation's number, from 1, over the whole run.
    pub(super) ordinal: u64,
    pub(super) stack: Option<u32>,
}

pub(super) struct HistoryReplay<'a> {
    device: &'a DeviceHistory,
    /// By event: allocations up to it, also those before the history.
    ordinals: Vec<u64>,
    /// By address: blocks that are live at the end, with their true sizes.
    sizes: BTreeMap<u64, u64>,
}

impl<'a> HistoryReplay<'a> {
    pub(super) fn of(device: &'a DeviceHistory, counted: u64) -> HistoryReplay<'a> {
        let mut seen = super::lost_before(device, counted);
        let ordinals = device.events.iter().map(|event| {
            seen += u64::from(event.action == HistoryAction::Alloc);
            seen
        });
        let blocks = device.snapshot.iter().flat_map(|snapshot| snapshot.blocks());
        HistoryReplay {
            device,
            ordinals: ordinals.collect(),
            sizes: blocks.map(|(_, block)| (block.address, block.size)).collect(),
        }
    }

    /// Allocations up to this event.
    pub(super) fn ordinal(&self, event: usize) -> u64 {
        self.ordinals.get(event).copied().unwrap_or(0)
    }

    /// The number of events up to the last highest level.
    pub(super) fn peak(&self) -> Option<usize> {
        let levels = self.levels();
        let top = levels.iter().copied().max().filter(|top| *top > 0)?;
        let is_peak = |level: &u64| *level as f64 >= top as f64 * EQUAL;
        // The highest one after which it falls, in the last rise to the peak.
        let last = levels.iter().rposition(is_peak)?;
        let first =
            levels[..=last].iter().rposition(|level| !is_peak(level)).map_or(0, |at| at + 1);
        let highest = (first..=last).max_by_key(|at| levels[*at])?;
        Some(highest + 1)
    }

    /// The number of events up to the last refusal.
    pub(super) fn out_of_memory(&self) -> Option<usize> {
        let is_refusal = |event: &crate::model::HistoryEvent| event.action == HistoryAction::Oom;
        Some(self.device.events.iter().rposition(is_refusal)? + 1)
    }

    fn levels(&self) -> Vec<u64> {
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let mut level = 0;
        let events = self.device.events.iter();
        events
            .map(|event| {
                match event.action {
                    HistoryAction::Alloc => {
                        let size = block_size(event.size);
                        level += size;
                        level -= live.insert(event.address, size).unwrap_or(0);
                    }
                    HistoryAction::FreeRequested => {
                        level -= live.remove(&event.address).unwrap_or(0);
                    }
                    _ => {}
                }
                level
            })
            .collect()
    }

    /// Blocks by address after that many events.
    pub(super) fn live_at(&self, events: usize) -> BTreeMap<u64, HistoryBlock> {
        let mut live = BTreeMap::new();
        for (at, event) in self.device.events.iter().take(events).enumerate() {
            match event.action {
                HistoryAction::Alloc => {
                    let block = HistoryBlock {
                        size: block_size(event.size),
                        event: at,
                        ordinal: self.ordinal(at),
                        stack: event.stack,
                    };
                    live.insert(event.address, block);
                }
                HistoryAction::FreeRequested => {
                    live.remove(&event.address);
                }
                _ => {}
            }
        }
        if events == self.device.events.len() {
            for (address, block) in &mut live {
                block.size = self.sizes.get(address).copied().unwrap_or(block.size);
            }
        }
        live
    }
}
