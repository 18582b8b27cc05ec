//! Reads exact recordings back.

use std::path::Path;

use memspy::model::{
    AddressSpace, AllocationSite, CounterCheck, Event, EventKind, EventTotals, MemoryKind, Record,
    SiteId, StackId, StackTable,
};
use memspy::trace::TraceReader;

/// A recording read back.
#[derive(Default)]
pub struct Exact {
    pub table: StackTable,
    pub events: Vec<Event>,
    pub counter_check: Vec<CounterCheck>,
    /// The sums of the trailer.
    pub totals: Option<EventTotals>,
    /// Size of the trace.
    pub bytes: u64,
}

impl Exact {
    /// Reads a whole trace.
    pub fn read(trace: &Path) -> Exact {
        let mut records: Vec<Record> = Vec::new();
        TraceReader::open(trace).unwrap().replay(&mut records).unwrap();
        let mut read = Exact { bytes: std::fs::metadata(trace).unwrap().len(), ..Exact::default() };
        for record in records {
            match record {
                Record::Definition(definition) => assert!(read.table.define(definition)),
                Record::Events(batch) => read.events.extend(batch.events),
                Record::CounterCheck(counter_check) => read.counter_check.push(counter_check),
                Record::End(end) => read.totals = end.totals.exact,
                _ => {}
            }
        }
        read
    }

    /// PyTorch's allocations: address, size, event.
    pub fn allocated(&self) -> impl Iterator<Item = (u64, u64, &Event)> {
        self.events.iter().filter_map(|event| match event.change {
            EventKind::Allocated { memory_kind: MemoryKind::Torch(_), address, size, .. } => {
                Some((address, size, event))
            }
            _ => None,
        })
    }

    /// Number of freed PyTorch blocks.
    pub fn freed(&self) -> usize {
        let torch = |e: &&Event| {
            matches!(e.change, EventKind::Freed { memory_kind: AddressSpace::Torch, .. })
        };
        self.events.iter().filter(torch).count()
    }

    pub fn site(&self, id: Option<SiteId>) -> &AllocationSite {
        self.table.get_site(id.unwrap()).unwrap()
    }

    /// A stack as name, file and line, innermost first.
    pub fn frames(&self, stack: StackId) -> Vec<(String, String, u32)> {
        let named = |frame: memspy::model::Frame| {
            let function = self.table.get_function(frame.function).unwrap();
            (function.name.to_string(), function.file.to_string(), frame.line)
        };
        self.table.frames(stack).map(named).collect()
    }
}
