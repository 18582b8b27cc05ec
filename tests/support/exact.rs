//! Exact recordings, read back.

use std::path::Path;

use memspy::model::{
    Arena, Change, Event, EventTotals, FreedArena, Reconciled, Record, Site, SiteId, StackId,
    StackTable,
};
use memspy::trace::Reader;

/// A recording read back.
#[derive(Default)]
pub struct Exact {
    pub table: StackTable,
    pub events: Vec<Event>,
    pub reconciled: Vec<Reconciled>,
    /// The sums of the trailer.
    pub totals: Option<EventTotals>,
    /// Length of the trace.
    pub bytes: u64,
}

impl Exact {
    /// Reads a whole trace.
    pub fn read(trace: &Path) -> Exact {
        let mut records: Vec<Record> = Vec::new();
        Reader::open(trace).unwrap().replay(&mut records).unwrap();
        let mut read = Exact { bytes: std::fs::metadata(trace).unwrap().len(), ..Exact::default() };
        for record in records {
            match record {
                Record::Definition(definition) => assert!(read.table.define(definition)),
                Record::Events(batch) => read.events.extend(batch.events),
                Record::Reconciled(reconciled) => read.reconciled.push(reconciled),
                Record::End(end) => read.totals = end.totals.exact,
                _ => {}
            }
        }
        read
    }

    /// PyTorch's allocations: address, size, event.
    pub fn allocated(&self) -> impl Iterator<Item = (u64, u64, &Event)> {
        self.events.iter().filter_map(|event| match event.change {
            Change::Allocated { arena: Arena::Torch(_), address, size, .. } => {
                Some((address, size, event))
            }
            _ => None,
        })
    }

    /// How many of PyTorch's blocks were freed.
    pub fn freed(&self) -> usize {
        let torch = |e: &&Event| matches!(e.change, Change::Freed { arena: FreedArena::Torch, .. });
        self.events.iter().filter(torch).count()
    }

    /// The site of an event.
    pub fn site(&self, id: Option<SiteId>) -> &Site {
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
