//! From what a probe knows of an event (addresses, a stack's key, thread ids) to its site.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::sampled::SampledStacks;
use crate::model::{
    Frame, ProbedFrame, Site, SiteId, StackId, StackSource, StackTable, Thread, ThreadId,
    ThreadSample,
};
use crate::probe::{Raw, RawEvent, RawNode, StackKey};
use crate::python::ProbedStacks;
use crate::target::Process;
use crate::torch::ClassNames;

/// Sites known by what the probe says; beyond, the memory of them starts anew.
const MOST_KNOWN: usize = 1 << 18;

/// All that tells one site from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    os_thread: u32,
    python_id: u64,
    stack: StackKey,
    source: StackSource,
    truncated: bool,
    node: Option<RawNode>,
}

/// What became of a stack's description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stack {
    Named(StackId),
    /// One of its code objects could not be named.
    Unknown,
}

/// Names sites.
pub(super) struct Sites {
    process: Arc<Process>,
    python: Option<ProbedStacks>,
    classes: Option<ClassNames>,
    stacks: FxHashMap<StackKey, Stack>,
    threads: FxHashMap<(u32, u64), ThreadId>,
    known: FxHashMap<Key, (SiteId, StackSource)>,
    sampled: SampledStacks,
}

impl Sites {
    pub(super) fn new(
        process: Arc<Process>,
        python: Option<ProbedStacks>,
        classes: Option<ClassNames>,
    ) -> Sites {
        Sites {
            process,
            python,
            classes,
            stacks: FxHashMap::default(),
            threads: FxHashMap::default(),
            known: FxHashMap::default(),
            sampled: SampledStacks::default(),
        }
    }

    /// Takes a look at the stacks, for events whose own are not known.
    pub(super) fn saw_stacks(&mut self, time: u64, threads: &[ThreadSample]) {
        self.sampled.saw(time, threads);
    }

    /// Takes a description out of the ring; an event is given back.
    pub(super) fn describe(&mut self, raw: Raw<'_>, table: &mut StackTable) -> Option<RawEvent> {
        match raw {
            Raw::Event(event) => return Some(event),
            Raw::Code { code, spans } => {
                if let Some(python) = &mut self.python {
                    python.saw_code(code, spans);
                }
            }
            Raw::Stack { key, frames, .. } => self.name(key, frames, table),
            // Its next life begins with a copy; whatever was named with this one stays right.
            Raw::CodeFreed { .. } => {}
            // Names nothing.
            Raw::Step(_) => {}
        }
        None
    }

    fn name(&mut self, key: StackKey, frames: &[ProbedFrame], table: &mut StackTable) {
        let named = self.python.as_mut().and_then(|python| python.stack(frames, table));
        let stack = named.map_or(Stack::Unknown, Stack::Named);
        self.stacks.insert(key, stack);
    }

    /// All numbers of `old` begin anew in `new`. Stacks that the kernel has described it does not describe again.
    pub(super) fn renumber(&mut self, old: &StackTable, new: &mut StackTable) {
        self.threads.clear();
        self.known.clear();
        self.sampled = SampledStacks::default();
        if let Some(python) = &mut self.python {
            python.forget_numbers();
        }
        for stack in self.stacks.values_mut() {
            let Stack::Named(id) = stack else { continue };
            let mut frames: Vec<Frame> = old.frames(*id).collect();
            frames.reverse();
            let renumbered = frames.into_iter().try_fold(None, |parent, frame| {
                let function = new.function(old.get_function(frame.function)?.clone());
                let frame = new.frame(Frame { function, ..frame });
                Some(Some(new.stack(parent, frame)))
            });
            *stack = renumbered.flatten().map_or(Stack::Unknown, Stack::Named);
        }
    }

    /// Forgets stacks and sites: other probes number them anew.
    pub(super) fn forget_stacks(&mut self) {
        self.stacks.clear();
        self.known.clear();
    }

    /// Whether all that `event` refers to has been described.
    pub(super) fn is_described(&self, event: &RawEvent) -> bool {
        let known = |key: StackKey| key == 0 || self.stacks.contains_key(&key);
        known(event.stack) && event.node.is_none_or(|node| known(node.forward))
    }

    /// The site of `event`, and how its stack was come by in the end.
    pub(super) fn site(
        &mut self,
        event: &RawEvent,
        table: &mut StackTable,
    ) -> (SiteId, StackSource) {
        if event.source == StackSource::Sampled {
            return self.sampled_site(event, table);
        }
        let key = Key {
            os_thread: event.os_thread,
            python_id: event.python_id,
            stack: event.stack,
            source: event.source,
            truncated: event.truncated,
            node: event.node,
        };
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        if self.known.len() == MOST_KNOWN {
            self.known.clear();
        }
        let thread = self.thread(event, table);
        let (stack, source) = match self.stacks.get(&event.stack) {
            Some(Stack::Named(stack)) => (Some(*stack), event.source),
            Some(Stack::Unknown) => (None, StackSource::Unknown),
            None if event.stack != 0 => (None, StackSource::Unknown),
            None => (None, event.source),
        };
        let named = |key: StackKey| match self.stacks.get(&key) {
            Some(Stack::Named(stack)) => Some(*stack),
            _ => None,
        };
        let forward = event.node.and_then(|node| named(node.forward));
        let node = event.node.and_then(|node| self.class(node));
        let site =
            table.site(Site { thread, stack, source, truncated: event.truncated, node, forward });
        self.known.insert(key, (site, source));
        (site, source)
    }

    /// The site of an event that came without stack: with the stack that sampling saw last, on its thread, or
    /// else on the main thread, which as a rule waits for what others do.
    fn sampled_site(&mut self, event: &RawEvent, table: &mut StackTable) -> (SiteId, StackSource) {
        let os_id = u64::from(event.os_thread);
        let main = event.os_thread == self.process.pid();
        let known = table.find_os_thread(os_id, main);
        let thread = known.unwrap_or_else(|| self.thread(event, table));
        let of_main = || {
            let main = table.main_thread().filter(|&it| it != thread)?;
            self.sampled.last(main, event.time)
        };
        let (stack, source) = match (self.sampled.last(thread, event.time), of_main()) {
            (Some(stack), _) => (Some(stack), StackSource::Sampled),
            (None, Some(stack)) => (Some(stack), StackSource::Borrowed),
            (None, None) if known.is_some() => (None, StackSource::Unknown),
            (None, None) => (None, StackSource::NoPython),
        };
        let site = Site { thread, stack, source, truncated: false, node: None, forward: None };
        (table.site(site), source)
    }

    fn class(&mut self, node: RawNode) -> Option<Arc<str>> {
        let memory = self.process.memory();
        self.classes.as_mut()?.name(&memory, node.vtable, node.python_type)
    }

    /// The vtable of nodes written in Python, once one was met.
    pub(super) fn py_node(&self) -> Option<u64> {
        self.classes.as_ref()?.py_node()
    }

    /// The thread of an event. Those that run Python are known by their `pthread_self()` as Python's reader
    /// lists them, with their names; others get the kernel's.
    fn thread(&mut self, event: &RawEvent, table: &mut StackTable) -> ThreadId {
        let key = (event.os_thread, event.python_id);
        if let Some(&known) = self.threads.get(&key) {
            return known;
        }
        let found = self.process.thread(event.os_thread);
        // A thread that has ended meanwhile keeps the id that the probe saw.
        let os_id = found.as_ref().map_or(event.os_thread, |thread| thread.id_in_target);
        let os_id = Some(u64::from(os_id));
        let known = table.find_thread(event.python_id, os_id).and_then(|id| table.get_thread(id));
        let thread = match known {
            // Python before 3.11 does not tell the OS id.
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
