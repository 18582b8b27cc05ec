//! Memory of a process in which words are others than they were: the walk over Python's heap,
//! tensors, graphs, the allocator and its history.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memspy::model::{CudaIndex, Nanos};
use memspy::python::{HeapListing, InterpreterReader, ObjectHeap};
use memspy::target::{
    Addr, AddressRange, Budget, LoadedObject, Memory, MemoryError, PageCache, Process, StopError,
    StoppedProcess,
};
use memspy::torch::{AllocatorReader, TensorReader};

use super::campaign::{self, Random};
use crate::support::target::Target;
use crate::support::{pythons, sim};

const PAGE: usize = 4096;

/// Pages of a process as they were at one moment.
pub struct Copied(BTreeMap<u64, Vec<u8>>);

impl Copied {
    /// Copies the pages with these numbers.
    pub fn of(memory: &dyn Memory, pages: &[u64]) -> Copied {
        let read = |page: &u64| {
            let bytes = memory.vec(Addr(page * PAGE as u64), PAGE).ok()?;
            Some((*page, bytes))
        };
        Copied(pages.iter().filter_map(read).collect())
    }

    /// The word at a random place, and where it is.
    pub fn word(&self, random: &mut Random, numbers: &[u64]) -> (u64, u64) {
        let page = *random.pick(numbers);
        let word = 8 * random.below(PAGE / 8);
        let bytes = self.0[&page][word..word + 8].try_into().unwrap();
        (page * PAGE as u64 + word as u64, u64::from_le_bytes(bytes))
    }

    pub fn numbers(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }
}

/// Another value for a word: an edge, a flipped bit, a little more or less, or the word of another
/// place, which makes cycles.
pub fn other(word: u64, elsewhere: u64, random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.edge(),
        1 => word ^ 1 << random.below(64),
        2 => word.wrapping_add(random.word() % 17).wrapping_sub(8),
        3 => word & 0xFFFF_FFFF | random.edge() << 32,
        _ => elsewhere,
    }
}

/// A process's memory with some words changed; what was copied is read from there.
struct Edited<M> {
    inner: M,
    copied: Arc<Copied>,
    words: BTreeMap<u64, [u8; 8]>,
    /// One read in so many fails.
    fails: u64,
}

impl<M: Memory> Memory for Edited<M> {
    fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
        let mut done = 0;
        for (index, span) in spans.iter().enumerate() {
            let out = &mut out[done..done + span.len];
            done += span.len;
            let (page, offset) = (span.addr.0 / PAGE as u64, span.addr.0 as usize % PAGE);
            if self.fails > 0 && page.wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.fails == 1 {
                return Err(MemoryError::Fault { span: *span, index });
            }
            match self.copied.0.get(&page) {
                Some(bytes) if offset + span.len <= PAGE => {
                    out.copy_from_slice(&bytes[offset..offset + span.len]);
                }
                _ => self.inner.read_spans(&[*span], out)?,
            }
            let end = span.addr.0.saturating_add(span.len as u64);
            for (at, word) in self.words.range(span.addr.0.saturating_sub(7)..end) {
                for (n, byte) in word.iter().enumerate() {
                    if let Some(place) = (at + n as u64).checked_sub(span.addr.0)
                        && let Some(out) = out.get_mut(place as usize)
                    {
                        *out = *byte;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Edits of up to `most` words of what was copied.
fn edited(process: &Process, copied: &Arc<Copied>, most: usize, random: &mut Random) -> PageCache {
    let numbers = copied.numbers();
    let words = (0..random.few(most))
        .map(|_| {
            let (at, word) = copied.word(random, &numbers);
            let (_, elsewhere) = copied.word(random, &numbers);
            (at, other(word, elsewhere, random).to_le_bytes())
        })
        .collect();
    let fails = if random.below(4) == 0 { 200 } else { 0 };
    let memory = Edited { inner: process.memory(), copied: copied.clone(), words, fails };
    PageCache::within(Box::new(memory), Budget::new(Duration::from_secs(20), 512 << 20))
}

/// Everything that is read of a heap.
fn walk(heap: &ObjectHeap<'_>) {
    for object in heap.objects() {
        let mut found = 0;
        heap.references(object, &mut |_, _| found += 1);
        heap.hidden_references(object, &mut |_, _| found += 1);
        heap.attributes(object.at);
        if found % 7 == 1 {
            let _ = (heap.text(object.at), heap.integer(object.at), heap.items(object.at));
            heap.entries_if_dict(object.at);
        }
    }
    let _ = (heap.locals(), heap.modules(), heap.reference_graph().garbage(&[]));
    heap.set_threads(4);
    let all: Vec<Addr> = heap.objects().iter().map(|object| object.at).collect();
    let _ = (
        heap.reference_graph().garbage(&[]),
        heap.onward_references(&all, &|_| true, &|_, _, _| true),
    );
}

/// On a busy machine a thread may not come to stand in time; then it is tried once more, as a look
/// of memspy's is.
fn stop(process: &Process) -> StoppedProcess {
    let tries = (0..20).map(|_| StoppedProcess::stop(process));
    let stopped = tries.filter(|it| !matches!(it, Err(StopError::Stubborn { .. })));
    stopped.map(Result::unwrap).next().expect("no thread that never stops")
}

#[test]
fn heaps_with_other_words_are_walked_of_every_python() {
    let mut versions = pythons::one_per_version();
    if !campaign::is_long() {
        // What is quick: the oldest and the newest. tests/live/python_heap_trouble.rs damages the
        // heaps of all.
        versions = vec![versions.swap_remove(0), pythons::newest_here()];
    }
    let targets: Vec<(Target, InterpreterReader, Process, Arc<Copied>)> = versions
        .iter()
        .map(|python| {
            let target = Target::start(python.target("heap_truth.py"));
            let process = Process::open(target.pid()).unwrap();
            let reader = InterpreterReader::attach_own(&process).unwrap();
            let pause = stop(&process);
            let memory = PageCache::new(Box::new(process.memory()));
            walk(&reader.heap(&memory).unwrap());
            let copied = Arc::new(Copied::of(&process.memory(), &memory.pages()));
            drop(pause);
            (target, reader, process, copied)
        })
        .collect();
    campaign::run("heap", 4, &mut |random: &mut Random| {
        let (_, reader, process, copied) = random.pick(&targets);
        let memory = edited(process, copied, 4000, random);
        let listing = if random.below(2) == 0 { HeapListing::Whole } else { HeapListing::Rough };
        match reader.heap_listed(&memory, listing) {
            Ok(heap) => walk(&heap),
            Err(error) if error.to_string().lines().count() == 1 => {}
            Err(error) => return Err(format!("{error}")),
        }
        Ok(64 << 20)
    });
}

#[test]
fn tensors_and_graphs_with_other_words_are_read() {
    let target = sim::start("tensors_truth.py", &["--device", "cuda"]);
    let process = Process::open(target.pid()).unwrap();
    let python = InterpreterReader::attach_own(&process).unwrap();
    let reader = TensorReader::attach(&process).unwrap().unwrap();
    let pause = stop(&process);
    let memory = PageCache::new(Box::new(process.memory()));
    let heap = python.heap(&memory).unwrap();
    drop(pause);
    let head = python.object_head();
    let types = reader.types(&memory, head).unwrap().unwrap();
    let places: Vec<Addr> =
        heap.objects().iter().filter(|o| o.class.is_a(types.base)).map(|o| o.at).collect();
    assert!(places.len() > 100);
    let read = |memory: &PageCache| {
        let Ok(tensors) = reader.tensors(memory, head, &places) else { return 0 };
        let read: Vec<_> = places
            .iter()
            .filter_map(|at| {
                tensors.hooks_of(*at);
                tensors.tensor(tensors.impl_of(*at)?)
            })
            .collect();
        let graph = tensors.graph(read.iter().filter_map(|tensor| tensor.grad_fn).map(Addr));
        for saved in graph.nodes.iter().flat_map(|node| &node.saved) {
            tensors.tensor(saved.tensor);
        }
        read.len()
    };
    // What is read of tensors alone, and not the pages of the whole heap.
    let memory = PageCache::new(Box::new(process.memory()));
    assert_eq!(read(&memory), places.len());
    let copied = Arc::new(Copied::of(&process.memory(), &memory.pages()));
    campaign::run("tensors", 10, &mut |random: &mut Random| {
        read(&edited(&process, &copied, 2000, random));
        Ok(64 << 20)
    });
}

#[test]
fn an_allocator_and_its_history_with_other_words_are_read() {
    let target = sim::start("recorded_history.py", &["ring"]);
    let process = Process::open(target.pid()).unwrap();
    let live = process.memory();
    let library =
        LoadedObject::find(&live, &process.mappings().unwrap(), |n| n.starts_with("libc10_cuda"));
    let symbol = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
    let variable = library.unwrap().unwrap().exported(&live, symbol).unwrap().unwrap();
    let pages = Arc::new(PageCache::new(Box::new(live)));
    struct Shared(Arc<PageCache>);
    impl Memory for Shared {
        fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
            self.0.read_spans(spans, out)
        }
    }
    let mut reader =
        AllocatorReader::with_memory(Box::new(Shared(pages.clone())), variable, None).unwrap();
    let (_, history) = reader.history(CudaIndex(0), &mut |_| ()).unwrap();
    assert!(!history.events.is_empty());
    let copied = Arc::new(Copied::of(&process.memory(), &pages.pages()));
    campaign::run("history", 40, &mut |random: &mut Random| {
        let memory = edited(&process, &copied, 300, random);
        let Ok(mut reader) = AllocatorReader::with_memory(Box::new(memory), variable, None) else {
            return Ok(0);
        };
        let _ = (reader.counters(&mut Vec::new()), reader.blocks(CudaIndex(0), &|| Nanos(0)));
        if let Err(error) = reader.history(CudaIndex(0), &mut |_| ())
            && error.to_string().lines().count() != 1
        {
            return Err(error.to_string());
        }
        Ok(64 << 20)
    });
}
