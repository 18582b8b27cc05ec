//! Turns addresses, keys and ids into allocation sites.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::merge::{PythonPart, merge};
use super::native_stacks::{NativeOutcome, NativeStacks};
use super::sampled::SampledStacks;
use crate::abi::BpfFrame;
use crate::model::{
    AllocationSite, Frame, FunctionId, NativeFrames, SiteId, StackId, StackNode, StackSource,
    StackTable, Thread, ThreadId, ThreadSample,
};
use crate::native::UnwoundStack;
use crate::probe::{NativeCopy, RawEvent, RawNode, RingRecord, StackKey};
use crate::python::StackSymbolizer;
use crate::target::Process;
use crate::torch::ClassNames;

/// Above this, the cache restarts.
const MAX_KNOWN: usize = 1 << 18;
/// Above this, numbers restart: the death of a code object changes the keys of all its stacks.
const MAX_KEYS: usize = 1 << 17;
/// Above this, unused code objects are forgotten.
const MAX_CODES: usize = 1 << 14;
/// Nanoseconds. An event this soon after one with the same stack needs no description.
const UNDER_WAY: u64 = 200_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SiteKey {
    os_thread: u32,
    python_id: u64,
    stack: StackKey,
    source: StackSource,
    truncated: bool,
    node: Option<RawNode>,
    native: NativeKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum NativeKey {
    NotTaken,
    Lost,
    Stack(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SiteStack {
    Named(StackId),
    Unknown,
}

#[derive(Debug, Clone)]
struct DescribedStack {
    stack: SiteStack,
    /// Frames in each call of the interpreter; empty if native frames are off.
    calls: Box<[u32]>,
    /// When it was last used (CLOCK_MONOTONIC, nanoseconds).
    used: u64,
}

#[derive(Debug, Clone, Copy)]
struct KnownSite {
    site: SiteId,
    source: StackSource,
    used: u64,
}

pub(super) struct SiteTable {
    process: Arc<Process>,
    python: Option<StackSymbolizer>,
    classes: Option<ClassNames>,
    stacks: FxHashMap<StackKey, DescribedStack>,
    threads: FxHashMap<(u32, u64), ThreadId>,
    known: FxHashMap<SiteKey, KnownSite>,
    now: u64,
    sampled: SampledStacks,
    native: Option<NativeStacks>,
}

impl SiteTable {
    pub(super) fn new(
        process: Arc<Process>,
        python: Option<StackSymbolizer>,
        classes: Option<ClassNames>,
        native: Option<NativeStacks>,
    ) -> SiteTable {
        SiteTable {
            process,
            python,
            classes,
            stacks: FxHashMap::default(),
            threads: FxHashMap::default(),
            known: FxHashMap::default(),
            now: 0,
            sampled: SampledStacks::default(),
            native,
        }
    }

    pub(super) fn native(&mut self) -> Option<&mut NativeStacks> {
        self.native.as_mut()
    }

    pub(super) fn on_sample(&mut self, time: u64, threads: &[ThreadSample]) {
        self.sampled.on_sample(time, threads);
    }

    pub(super) fn describe(
        &mut self,
        raw: RingRecord<'_>,
        table: &mut StackTable,
    ) -> Option<RawEvent> {
        match raw {
            RingRecord::Event(event) => return Some(event),
            RingRecord::Code { code, spans } => {
                if let Some(python) = &mut self.python {
                    python.add_code(code, spans);
                }
            }
            RingRecord::Stack { key, frames, .. } => self.name(key, frames, table),
            // A new code object at this address starts with a copy.
            RingRecord::CodeFreed { .. } => {}
            RingRecord::NativeStack { number, registers, stack, is_cut } => {
                if let Some(native) = &mut self.native {
                    native.push(number, registers, stack, is_cut);
                }
            }
            RingRecord::Step(_) => {}
        }
        None
    }

    fn name(&mut self, key: StackKey, frames: &[BpfFrame], table: &mut StackTable) {
        let named = self.python.as_mut().and_then(|python| python.stack(frames, table));
        let stack = named.map_or(SiteStack::Unknown, SiteStack::Named);
        let calls = match (&self.native, &self.python) {
            (Some(_), Some(python)) => python.frames_by_call(frames).into(),
            _ => Box::default(),
        };
        self.stacks.insert(key, DescribedStack { stack, calls, used: self.now });
    }

    pub(super) fn is_full(&self) -> bool {
        self.stacks.len() > MAX_KEYS
    }

    /// The kernel program has to describe these code objects again.
    pub(super) fn idle_codes(&mut self) -> Vec<u64> {
        self.python.as_mut().map_or(Vec::new(), |python| python.idle_codes(MAX_CODES))
    }

    pub(super) fn forget_codes(&mut self, codes: &[u64]) {
        if let Some(python) = &mut self.python {
            python.forget_codes(codes);
        }
    }

    /// Keeps the newest stacks, up to `most` numbers, and those in `waiting` or just used. Returns
    /// whether all were kept: the kernel program describes a stack again only under a new key.
    pub(super) fn renumber(
        &mut self,
        old: &StackTable,
        new: &mut StackTable,
        most: usize,
        waiting: &FxHashSet<StackKey>,
    ) -> bool {
        for (key, known) in self.known.drain() {
            for stack in [key.stack, key.node.map_or(0, |node| node.forward)] {
                if let Some(described) = self.stacks.get_mut(&stack) {
                    described.used = described.used.max(known.used);
                }
            }
        }
        self.threads.clear();
        self.sampled = SampledStacks::default();
        if let Some(python) = &mut self.python {
            python.forget_numbers();
        }
        let mut stacks: Vec<(StackKey, DescribedStack)> = self.stacks.drain().collect();
        stacks.sort_unstable_by_key(|(_, described)| std::cmp::Reverse(described.used));
        let under_way = self.now.saturating_sub(UNDER_WAY);
        let all = stacks.len();
        for (key, described) in stacks {
            let has_room = new.size() < most && self.stacks.len() < MAX_KEYS / 2;
            if !has_room && described.used < under_way && !waiting.contains(&key) {
                continue;
            }
            let stack = match described.stack {
                SiteStack::Named(id) => {
                    renumbered(id, old, new).map_or(SiteStack::Unknown, SiteStack::Named)
                }
                SiteStack::Unknown => SiteStack::Unknown,
            };
            self.stacks.insert(key, DescribedStack { stack, ..described });
        }
        self.stacks.len() == all
    }

    pub(super) fn forget_stacks(&mut self) {
        self.stacks.clear();
        self.known.clear();
    }

    pub(super) fn is_described(&self, event: &RawEvent) -> bool {
        let known = |key: StackKey| key == 0 || self.stacks.contains_key(&key);
        known(event.stack) && event.node.is_none_or(|node| known(node.forward))
    }

    pub(super) fn is_unwound(&self, event: &RawEvent) -> bool {
        match (event.native, &self.native) {
            (NativeCopy::Number(number), Some(native)) => {
                !matches!(native.outcome(number), NativeOutcome::Waiting)
            }
            _ => true,
        }
    }

    fn take_native(&mut self, event: &RawEvent) -> (NativeKey, Option<Arc<UnwoundStack>>) {
        let outcome = match (event.native, &mut self.native) {
            (NativeCopy::NotTaken, _) => return (NativeKey::NotTaken, None),
            (NativeCopy::Number(number), Some(native)) => native.take(number),
            _ => NativeOutcome::Lost,
        };
        match outcome {
            NativeOutcome::Unwound(stack) => (NativeKey::Stack(stack.number), Some(stack)),
            NativeOutcome::Lost | NativeOutcome::Waiting => (NativeKey::Lost, None),
        }
    }

    fn native_frames(
        &self,
        event: &RawEvent,
        native: (NativeKey, Option<Arc<UnwoundStack>>),
        python: Option<StackId>,
        source: StackSource,
        table: &mut StackTable,
    ) -> NativeFrames {
        let unwound = match native {
            (NativeKey::NotTaken, _) => return NativeFrames::NotTaken,
            (_, None) => return NativeFrames::Lost,
            (_, Some(unwound)) => unwound,
        };
        // Otherwise the stack belongs to another thread.
        let own = python.filter(|_| source == StackSource::Own);
        let frames: Vec<Frame> = own.map(|own| table.frames(own).collect()).unwrap_or_default();
        let described = self.stacks.get(&event.stack);
        let calls = described.map(|it| &it.calls[..]).unwrap_or_default();
        let python = PythonPart { frames: &frames, calls, truncated: event.truncated };
        merge(&unwound, Some(python), table).map_or(NativeFrames::Lost, NativeFrames::Stack)
    }

    pub(super) fn site(
        &mut self,
        event: &RawEvent,
        table: &mut StackTable,
    ) -> (SiteId, StackSource) {
        if event.source == StackSource::Sampled {
            return self.sampled_site(event, table);
        }
        let native = self.take_native(event);
        let key = SiteKey {
            native: native.0,
            os_thread: event.os_thread,
            python_id: event.python_id,
            stack: event.stack,
            source: event.source,
            truncated: event.truncated,
            node: event.node,
        };
        self.now = self.now.max(event.time);
        if let Some(known) = self.known.get_mut(&key) {
            known.used = event.time;
            return (known.site, known.source);
        }
        if self.known.len() == MAX_KNOWN {
            self.known.clear();
        }
        let thread = self.thread(event, table);
        let described = self.stacks.get_mut(&event.stack).map(|described| {
            described.used = event.time;
            described.stack
        });
        let (stack, source) = match described {
            Some(SiteStack::Named(stack)) => (Some(stack), event.source),
            Some(SiteStack::Unknown) => (None, StackSource::Unknown),
            None if event.stack != 0 => (None, StackSource::Unknown),
            None => (None, event.source),
        };
        let named = |key: StackKey| match self.stacks.get(&key)?.stack {
            SiteStack::Named(stack) => Some(stack),
            SiteStack::Unknown => None,
        };
        let forward = event.node.and_then(|node| named(node.forward));
        let node = event.node.and_then(|node| self.class(node));
        let native = self.native_frames(event, native, stack, source, table);
        let site = table.site(AllocationSite {
            thread,
            stack,
            source,
            truncated: event.truncated,
            node,
            forward,
            native,
        });
        self.known.insert(key, KnownSite { site, source, used: event.time });
        (site, source)
    }

    /// The last sample of the thread, else of the main thread.
    fn sampled_site(&mut self, event: &RawEvent, table: &mut StackTable) -> (SiteId, StackSource) {
        let os_id = u64::from(event.os_thread);
        let main = event.os_thread == self.process.pid();
        let known = table.find_os_thread(os_id, main);
        let thread = known.unwrap_or_else(|| self.thread(event, table));
        let of_main = || {
            let main = table.main_thread().filter(|&it| it != thread)?;
            self.sampled.last(main, event.time).flatten()
        };
        let (stack, source) = match (self.sampled.last(thread, event.time), of_main()) {
            (Some(Some(stack)), _) => (Some(stack), StackSource::Sampled),
            // It woke and allocated before the next sample.
            (Some(None), _) => (None, StackSource::Unknown),
            (None, Some(stack)) => (Some(stack), StackSource::Borrowed),
            (None, None) if known.is_some() => (None, StackSource::Unknown),
            (None, None) => (None, StackSource::NoPython),
        };
        let site = AllocationSite {
            thread,
            stack,
            source,
            truncated: false,
            node: None,
            forward: None,
            native: Default::default(),
        };
        (table.site(site), source)
    }

    fn class(&mut self, node: RawNode) -> Option<Arc<str>> {
        let memory = self.process.memory();
        self.classes.as_mut()?.name(&memory, node.vtable, node.python_type)
    }

    pub(super) fn find_module_calls(&mut self) {
        if let Some(python) = &mut self.python {
            python.find_module_calls();
        }
    }

    /// Code objects that call modules, if one was copied since the last call.
    pub(super) fn new_module_calls(&mut self) -> Option<[u64; 2]> {
        self.python.as_mut()?.new_module_calls()
    }

    pub(super) fn py_node(&self) -> Option<u64> {
        self.classes.as_ref()?.py_node()
    }

    /// Python's name if it lists the thread, else the kernel's.
    fn thread(&mut self, event: &RawEvent, table: &mut StackTable) -> ThreadId {
        let key = (event.os_thread, event.python_id);
        if let Some(&known) = self.threads.get(&key) {
            return known;
        }
        let found = self.process.thread(event.os_thread);
        // A thread that has ended keeps the probe's id.
        let os_id = found.as_ref().map_or(event.os_thread, |thread| thread.id_in_target);
        let os_id = Some(u64::from(os_id));
        let known = table.find_thread(event.python_id, os_id).and_then(|id| table.get_thread(id));
        let thread = match known {
            // Python before 3.11 does not have the OS id.
            Some(known) => Thread { os_id, ..known.clone() },
            None => {
                let name = found.map(|thread| thread.name.into());
                let main = event.os_thread == self.process.pid();
                Thread { os_id, python_id: event.python_id, name, main }
            }
        };
        let id = table.thread(thread);
        self.threads.insert(key, id);
        id
    }
}

fn renumbered(id: StackId, old: &StackTable, new: &mut StackTable) -> Option<StackId> {
    let mut nodes: Vec<StackNode> = old.callers(id).filter_map(|at| old.get_stack(at)).collect();
    nodes.reverse();
    nodes.into_iter().try_fold(None, |parent, node| {
        let frame = old.get_frame(node.frame)?;
        let mut function = |known: FunctionId| Some(new.function(old.get_function(known)?.clone()));
        let module = node.module.and_then(&mut function);
        let function = function(frame.function)?;
        let frame = new.frame(Frame { function, ..frame });
        Some(Some(new.node(StackNode { parent, frame, module })))
    })?
}
