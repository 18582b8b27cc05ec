//! A synthetic training loop as probes see it: each allocation and free of a caching allocator.

use std::collections::{HashMap, VecDeque};

use memspy::model::{
    AddressSpace, AllocationSite, CounterCheck, CounterSnapshot, CudaIndex, Event, EventBatch,
    EventKind, ExactSettings, Frame, Function, MemoryKind, Nanos, Record, RecordSink, SiteId,
    StackSource, StackTable, Thread,
};

use super::Dice;

/// Sites of the main thread; the backward thread has as many.
const SITES: usize = 9;
/// Allocations of a forward pass, and of a backward pass.
const PASS: usize = 200;

/// How similar iterations are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Likeness {
    /// The same sizes in the same order, but two threads sometimes swap places.
    Training,
    /// Each iteration has its own sizes, as with sequences of any length.
    Varied,
    /// Sizes, addresses, sites and order are random, too.
    Random,
}

/// Allocates and frees as a job does.
pub struct Allocations {
    likeness: Likeness,
    dice: Dice,
    table: StackTable,
    sites: Vec<SiteId>,
    time: u64,
    levels: CounterSnapshot,
    /// Free blocks by size, the most recently freed last.
    cache: HashMap<u64, Vec<u64>>,
    fresh: u64,
    /// Address and real size, in allocation order.
    live: Vec<(u64, u64)>,
    events: Vec<Event>,
    ready: VecDeque<Event>,
}

impl Allocations {
    pub fn new(likeness: Likeness, seed: u64) -> Self {
        Allocations {
            likeness,
            dice: Dice(seed),
            table: StackTable::new(),
            sites: Vec::new(),
            time: 2_000_000,
            levels: CounterSnapshot::default(),
            cache: HashMap::new(),
            fresh: 0x7F3A_4000_0000,
            live: Vec::new(),
            events: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// The records before the first event.
    pub fn opening(&mut self, sink: &mut dyn RecordSink) {
        let exact = Record::ExactSettings(ExactSettings {
            time: Nanos(self.time),
            backward_lines: true,
            knows_backward: true,
            probes: vec!["pytorch:malloc".into(), "pytorch:free".into()],
            ..ExactSettings::default()
        });
        self.define(2 * SITES);
        for definition in self.table.take_definitions() {
            sink.record(&Record::Definition(definition)).unwrap();
        }
        sink.record(&exact).unwrap();
    }

    /// Defines sites up to `count`, alternating between two threads.
    fn define(&mut self, count: usize) {
        let threads = [("MainThread", true), ("pt_autograd_0", false)].map(|(name, main)| {
            self.table.thread(Thread {
                os_id: Some(if main { 4242 } else { 4299 }),
                python_id: if main { 0x7F00_0000_0000 } else { 0x7F00_0010_0000 },
                name: Some(name.into()),
                main,
            })
        });
        for n in self.sites.len()..count {
            let function = self.table.function(Function {
                name: format!("Block{n}.forward").into(),
                file: "/srv/model.py".into(),
                first_line: n as u32 * 10,
                last_line: n as u32 * 10 + 8,
                is_native: false,
            });
            let frame = self.table.frame(Frame { function, line: n as u32 * 10 + 3 });
            let stack = self.table.stack(None, frame);
            let backward = n >= SITES;
            let site = self.table.site(AllocationSite {
                thread: threads[usize::from(backward)],
                stack: Some(stack),
                source: if backward { StackSource::Backward } else { StackSource::Own },
                truncated: n == 3,
                node: backward.then(|| "AddmmBackward0".into()),
                forward: None,
                native: Default::default(),
            });
            self.sites.push(site);
        }
    }

    /// Adds a site; its definitions go to `sink`.
    pub fn another_site(&mut self, sink: &mut dyn RecordSink) {
        self.define(self.sites.len() + 1);
        for definition in self.table.take_definitions() {
            sink.record(&Record::Definition(definition)).unwrap();
        }
    }

    /// The next record of `count` events.
    pub fn batch(&mut self, count: usize) -> Record {
        while self.ready.len() < count {
            self.iteration();
        }
        Record::Events(EventBatch { events: self.ready.drain(..count).collect() })
    }

    pub fn counter_check(&self) -> Record {
        Record::CounterCheck(CounterCheck {
            time: self.ready.front().map_or(Nanos(self.time), |event| event.time),
            device: CudaIndex(0),
            allocations: 0,
            frees: Some(0),
            requested: -512,
        })
    }

    fn iteration(&mut self) {
        let scale = match self.likeness {
            Likeness::Training => 64,
            _ => 32 + self.dice.roll(64),
        };
        // Activations live from the forward pass until the backward pass frees them in reverse.
        let mut activations = Vec::new();
        for n in 0..PASS {
            let block = self.allocate(n, scale, n % SITES);
            match n % 3 {
                0 => self.free(block),
                _ => activations.push(block),
            }
        }
        let mut gradients = Vec::new();
        for n in 0..PASS {
            let block = self.allocate(PASS + n, scale, SITES + n % SITES);
            match n % 4 {
                0 => gradients.push(block),
                _ => self.free(block),
            }
            if n % 3 != 0
                && let Some(block) = activations.pop()
            {
                self.free(block);
            }
        }
        for block in activations.into_iter().chain(gradients) {
            self.free(block);
        }
        self.swap_neighbours();
        self.ready.extend(self.events.drain(..));
    }

    /// Two threads vary in order. Times stay sorted.
    fn swap_neighbours(&mut self) {
        for at in 1..self.events.len() {
            let free = |event: &Event| matches!(event.change, EventKind::Freed { .. });
            if free(&self.events[at]) && free(&self.events[at - 1]) && self.dice.roll(20) == 0 {
                let (before, after) = self.events.split_at_mut(at);
                std::mem::swap(&mut before[at - 1].change, &mut after[0].change);
            }
        }
    }

    fn allocate(&mut self, n: usize, scale: u64, site: usize) -> (u64, u64) {
        let random = self.likeness == Likeness::Random;
        let size = match random {
            true => 1 + (self.dice.roll(1 << 30) >> self.dice.roll(30)),
            false => [4, 4096, 1536, 768, 100_000, 33][n % 6] * scale * (1 + n as u64 % 2),
        };
        let real = (size + 511) & !511;
        let cached = self.cache.get_mut(&real).and_then(Vec::pop).filter(|_| !random);
        let address = cached.unwrap_or_else(|| {
            let room = if random { 512 * self.dice.roll(1 << 20) } else { 0 };
            let address = self.fresh + room;
            self.fresh = (address + real) & ((1 << 47) - 1);
            self.levels.reserved += real as i64;
            address
        });
        self.levels.allocated += real as i64;
        self.levels.active = self.levels.allocated;
        self.levels.peak = self.levels.peak.max(self.levels.allocated);
        let site = match random {
            true => self.dice.roll(self.sites.len() as u64) as usize,
            false => site % self.sites.len(),
        };
        self.happen(
            EventKind::Allocated {
                memory_kind: MemoryKind::Torch(CudaIndex(0)),
                address,
                size,
                levels: Some(self.levels),
                block: None,
            },
            Some(self.sites[site]),
        );
        (address, real)
    }

    fn free(&mut self, block: (u64, u64)) {
        let block = match self.likeness {
            Likeness::Random => {
                self.live.push(block);
                let at = self.dice.roll(self.live.len() as u64) as usize;
                self.live.swap_remove(at)
            }
            _ => block,
        };
        self.happen(
            EventKind::Freed {
                memory_kind: AddressSpace::Torch,
                address: block.0,
                in_backward: block.0 & 1024 != 0,
            },
            None,
        );
        self.levels.allocated -= block.1 as i64;
        self.levels.active = self.levels.allocated;
        self.cache.entry(block.1).or_default().push(block.0);
    }

    fn happen(&mut self, change: EventKind, site: Option<SiteId>) {
        self.time += 1000 + self.dice.roll(59_000);
        self.events.push(Event { time: Nanos(self.time), change, site });
    }

    /// A whole recording: `batches` records of `each` events, and other records between them.
    pub fn story(likeness: Likeness, seed: u64, batches: usize, each: usize) -> Vec<Record> {
        let mut it = Allocations::new(likeness, seed);
        let mut records = vec![super::Loop::start()];
        it.opening(&mut records);
        for n in 0..batches {
            if n % 5 == 4 && n < 50 {
                it.another_site(&mut records);
            }
            records.push(it.batch(each));
            if n % 10 == 9 {
                records.push(it.counter_check());
            }
        }
        records
    }
}

pub fn count(records: &[Record]) -> u64 {
    let events = |record: &Record| match record {
        Record::Events(batch) => batch.events.len() as u64,
        _ => 0,
    };
    records.iter().map(events).sum()
}
