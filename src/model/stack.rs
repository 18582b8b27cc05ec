//! Functions, frames, stacks and threads, numbered.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::events::{AllocationSite, SiteId};
use super::owner_paths::OwnerPaths;
use super::source_file::is_library;

/// Number of a [`Function`] in a [`StackTable`], from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(pub u32);

/// Number of a [`Frame`] in a [`StackTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// Number of a stack: its innermost node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

/// Number of a [`Thread`] in a [`StackTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId(pub u32);

/// Stands for the file in the name of a `torch.nn.Module`.
const MODULE: &str = "[module]";

/// A Python function (by source) or native one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Function {
    /// `co_qualname` (CPython 3.11+), else `co_name`.
    pub name: Arc<str>,
    /// `co_filename`, unchanged.
    pub file: Arc<str>,
    /// `co_firstlineno`; 0: unknown.
    pub first_line: u32,
    /// Last in its line table; 0: unknown.
    pub last_line: u32,
    /// It is C, C++ or Rust, without lines: `file` is its library.
    pub is_native: bool,
}

impl Function {
    /// A native function in `library`.
    pub fn native(name: Arc<str>, library: Arc<str>) -> Function {
        Function { name, file: library, first_line: 0, last_line: 0, is_native: true }
    }

    /// In `a.py`, from line 1.
    #[cfg(test)]
    pub(crate) fn of_test(name: &str, last_line: u32) -> Function {
        let (name, file) = (name.into(), "a.py".into());
        Function { name, file, first_line: 1, last_line, is_native: false }
    }
}

impl Function {
    /// Whether a library contains or generated it, such as a dataclass's `__init__`.
    pub fn is_of_library(&self) -> bool {
        let is_made_by_dataclasses =
            &*self.file == "<string>" && self.name.starts_with("__create_fn__.");
        is_made_by_dataclasses || is_library(&self.file)
    }
}

/// A function and its current line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// The function executing.
    pub function: FunctionId,
    /// From 1; 0: the instruction has none.
    pub line: u32,
}

/// A stack: its innermost frame and its caller's stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct StackNode {
    pub parent: Option<StackId>,
    pub frame: FrameId,
    /// A function named as the `torch.nn.Module` that the frame calls; `None`: it calls none, or
    /// an unknown one.
    pub module: Option<FunctionId>,
}

/// A thread that has run Python.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Thread {
    /// Kernel id in the target's namespace; `None`: not stored (before CPython 3.11) and not
    /// matched.
    pub os_id: Option<u64>,
    /// `PyThreadState.thread_id`: `pthread_self()`.
    pub python_id: u64,
    /// `threading.Thread.name`, else the kernel's, if known.
    pub name: Option<Arc<str>>,
    /// It is the main thread.
    pub main: bool,
}

/// A thread's activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThreadActivity {
    /// Running, runnable, or waiting where it may allocate.
    Active,
    /// Waiting where it allocates nothing (lock, sleep, poll).
    Idle,
    /// Not determined.
    Unknown,
}

/// A definition, before the first use of its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Definition {
    /// Its number.
    Function(FunctionId, Function),
    /// Its number.
    Frame(FrameId, Frame),
    /// Its number.
    Stack(StackId, StackNode),
    /// Its number, or its new name.
    Thread(ThreadId, Thread),
    /// Its number.
    Site(SiteId, AllocationSite),
    /// Resets all ids, to bound a long recording. Only for sinks in memory, which renumber; never
    /// in a trace.
    Reset,
}

/// Functions, frames, stacks and threads, each once.
///
/// Numbers are dense and never reused, so definitions rebuild it.
#[derive(Debug, Default, Clone)]
pub struct StackTable {
    functions: Vec<Function>,
    frames: Vec<Frame>,
    stacks: Vec<StackNode>,
    threads: Vec<Thread>,
    sites: Vec<AllocationSite>,
    function_ids: FxHashMap<Function, FunctionId>,
    frame_ids: FxHashMap<Frame, FrameId>,
    stack_ids: FxHashMap<StackNode, StackId>,
    thread_ids: FxHashMap<u64, ThreadId>,
    site_ids: FxHashMap<AllocationSite, SiteId>,
    undelivered: Vec<Definition>,
    /// Owners of memory without a stack: numbered where found, not delivered.
    pub owners: OwnerPaths,
}

impl StackTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its number, added if new.
    pub fn function(&mut self, function: Function) -> FunctionId {
        if let Some(&id) = self.function_ids.get(&function) {
            return id;
        }
        let id = FunctionId(self.functions.len() as u32);
        self.functions.push(function.clone());
        self.function_ids.insert(function.clone(), id);
        self.undelivered.push(Definition::Function(id, function));
        id
    }

    /// Its number, added if new.
    pub fn frame(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.frame_ids.get(&frame) {
            return id;
        }
        let id = FrameId(self.frames.len() as u32);
        self.frames.push(frame);
        self.frame_ids.insert(frame, id);
        self.undelivered.push(Definition::Frame(id, frame));
        id
    }

    /// The stack of `frame` called from `parent`, added if new.
    pub fn stack(&mut self, parent: Option<StackId>, frame: FrameId) -> StackId {
        self.node(StackNode { parent, frame, module: None })
    }

    /// Its number, added if new.
    pub fn node(&mut self, node: StackNode) -> StackId {
        if let Some(&id) = self.stack_ids.get(&node) {
            return id;
        }
        let id = StackId(self.stacks.len() as u32);
        self.stacks.push(node);
        self.stack_ids.insert(node, id);
        self.undelivered.push(Definition::Stack(id, node));
        id
    }

    /// The thread with `thread.python_id`, added if new. A changed name, OS id or role is
    /// delivered. Another OS id is a new thread with a reused `pthread_t`.
    pub fn thread(&mut self, mut thread: Thread) -> ThreadId {
        if let Some(&id) = self.thread_ids.get(&thread.python_id) {
            let known = &mut self.threads[id.0 as usize];
            thread.os_id = thread.os_id.or(known.os_id);
            let reused = matches!((known.os_id, thread.os_id), (Some(a), Some(b)) if a != b);
            if !reused {
                if *known != thread {
                    *known = thread.clone();
                    self.undelivered.push(Definition::Thread(id, thread));
                }
                return id;
            }
        }
        let id = ThreadId(self.threads.len() as u32);
        self.thread_ids.insert(thread.python_id, id);
        self.threads.push(thread.clone());
        self.undelivered.push(Definition::Thread(id, thread));
        id
    }

    /// The stack of `frame` called from `parent`, if known.
    pub fn find_stack(&self, parent: Option<StackId>, frame: Frame) -> Option<StackId> {
        let frame = *self.frame_ids.get(&frame)?;
        self.stack_ids.get(&StackNode { parent, frame, module: None }).copied()
    }

    /// The thread with this `pthread_self()`, unless its OS id differs.
    pub fn find_thread(&self, python_id: u64, os_id: Option<u64>) -> Option<ThreadId> {
        let &id = self.thread_ids.get(&python_id)?;
        let known = self.get_thread(id)?.os_id;
        let reused = matches!((known, os_id), (Some(a), Some(b)) if a != b);
        (!reused).then_some(id)
    }

    /// The thread with this OS id, or the main one if `main`: CPython before 3.11 stores no ids.
    pub fn find_os_thread(&self, os_id: u64, main: bool) -> Option<ThreadId> {
        let is_it = |thread: &Thread| {
            thread.python_id != 0 && (thread.os_id == Some(os_id) || main && thread.main)
        };
        let found = self.threads.iter().rposition(is_it)?;
        Some(ThreadId(found as u32))
    }

    /// The main thread.
    pub fn main_thread(&self) -> Option<ThreadId> {
        let found = self.threads.iter().rposition(|thread| thread.main)?;
        Some(ThreadId(found as u32))
    }

    /// Its number, added if new.
    pub fn site(&mut self, site: AllocationSite) -> SiteId {
        if let Some(&id) = self.site_ids.get(&site) {
            return id;
        }
        let id = SiteId(self.sites.len() as u32);
        self.sites.push(site.clone());
        self.site_ids.insert(site.clone(), id);
        self.undelivered.push(Definition::Site(id, site));
        id
    }

    /// Definitions since the last call, each after those it uses.
    pub fn take_definitions(&mut self) -> Vec<Definition> {
        std::mem::take(&mut self.undelivered)
    }

    /// Whether some are not taken yet.
    pub fn has_definitions(&self) -> bool {
        !self.undelivered.is_empty()
    }

    /// Replays a trace's definition. `false`, without change, if it uses an undefined number, or
    /// its own is not the next (but threads may be redefined).
    pub fn define(&mut self, definition: Definition) -> bool {
        match definition {
            Definition::Function(id, function) => {
                if id.0 as usize != self.functions.len() {
                    return false;
                }
                self.function_ids.insert(function.clone(), id);
                self.functions.push(function);
            }
            Definition::Frame(id, frame) => {
                if id.0 as usize != self.frames.len()
                    || frame.function.0 as usize >= self.functions.len()
                {
                    return false;
                }
                self.frame_ids.insert(frame, id);
                self.frames.push(frame);
            }
            Definition::Stack(id, node) => {
                if id.0 as usize != self.stacks.len()
                    || node.frame.0 as usize >= self.frames.len()
                    || node.parent.is_some_and(|p| p.0 >= id.0)
                    || node.module.is_some_and(|m| m.0 as usize >= self.functions.len())
                {
                    return false;
                }
                self.stack_ids.insert(node, id);
                self.stacks.push(node);
            }
            Definition::Thread(id, thread) => {
                let next = self.threads.len();
                match (id.0 as usize).cmp(&next) {
                    std::cmp::Ordering::Less => self.threads[id.0 as usize] = thread.clone(),
                    std::cmp::Ordering::Equal => self.threads.push(thread.clone()),
                    std::cmp::Ordering::Greater => return false,
                }
                self.thread_ids.insert(thread.python_id, id);
            }
            Definition::Site(id, site) => {
                let known = |stack: Option<StackId>| {
                    stack.is_none_or(|stack| (stack.0 as usize) < self.stacks.len())
                };
                if id.0 as usize != self.sites.len()
                    || site.thread.0 as usize >= self.threads.len()
                    || !known(site.stack)
                    || !known(site.forward)
                    || !known(site.native.stack())
                {
                    return false;
                }
                self.site_ids.insert(site.clone(), id);
                self.sites.push(site);
            }
            // A reset would break numbers in use.
            Definition::Reset => return false,
        }
        true
    }

    /// Number of definitions.
    pub fn definitions(&self) -> u64 {
        let named = self.functions.len() + self.threads.len() + self.sites.len();
        (named + self.frames.len() + self.stacks.len()) as u64
    }

    /// Definitions in the largest part.
    pub fn size(&self) -> usize {
        self.stacks.len().max(self.sites.len()).max(self.frames.len()).max(self.threads.len())
    }

    /// The site with this number.
    pub fn get_site(&self, id: SiteId) -> Option<&AllocationSite> {
        self.sites.get(id.0 as usize)
    }

    /// The function with this number.
    pub fn get_function(&self, id: FunctionId) -> Option<&Function> {
        self.functions.get(id.0 as usize)
    }

    /// The frame with this number.
    pub fn get_frame(&self, id: FrameId) -> Option<Frame> {
        self.frames.get(id.0 as usize).copied()
    }

    /// The stack node with this number.
    pub fn get_stack(&self, id: StackId) -> Option<StackNode> {
        self.stacks.get(id.0 as usize).copied()
    }

    /// The thread with this number.
    pub fn get_thread(&self, id: ThreadId) -> Option<&Thread> {
        self.threads.get(id.0 as usize)
    }

    /// By number.
    pub fn threads(&self) -> impl Iterator<Item = (ThreadId, &Thread)> {
        self.threads.iter().enumerate().map(|(i, t)| (ThreadId(i as u32), t))
    }

    /// A stack and those it extends, innermost first.
    pub fn callers(&self, stack: StackId) -> impl Iterator<Item = StackId> + '_ {
        std::iter::successors(Some(stack), |at| self.get_stack(*at)?.parent)
    }

    /// The module that its innermost call of one calls: `None` if it calls none, `Some(None)` if
    /// that one is not known.
    pub fn module(&self, stack: StackId) -> Option<Option<FunctionId>> {
        let calls = |node: &StackNode| {
            let function = self.get_frame(node.frame)?.function;
            self.get_function(function)?.calls_module().then_some(node.module)
        };
        self.callers(stack).find_map(|at| calls(&self.get_stack(at)?))
    }

    /// The number of a module's name, added if new.
    pub fn module_name(&mut self, name: &str) -> FunctionId {
        let file = MODULE.into();
        let name = name.into();
        self.function(Function { name, file, first_line: 0, last_line: 0, is_native: false })
    }

    /// Innermost first.
    pub fn frames(&self, stack: StackId) -> impl Iterator<Item = Frame> + '_ {
        let mut next = Some(stack);
        std::iter::from_fn(move || {
            let node = self.get_stack(next?)?;
            next = node.parent;
            self.get_frame(node.frame)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Function {
        Function {
            name: name.into(),
            file: "a.py".into(),
            first_line: 1,
            last_line: 9,
            is_native: false,
        }
    }

    #[test]
    fn definitions_alone_rebuild_the_table() {
        let mut table = StackTable::new();
        let f = table.function(function("f"));
        let g = table.function(function("g"));
        let outer = table.frame(Frame { function: f, line: 3 });
        let inner = table.frame(Frame { function: g, line: 7 });
        let root = table.stack(None, outer);
        let leaf = table.stack(Some(root), inner);
        assert_eq!(table.stack(Some(root), inner), leaf, "a stack is stored once");
        let found = |parent, line| table.find_stack(parent, Frame { function: g, line });
        assert_eq!(
            (found(Some(root), 7), found(Some(root), 8), found(None, 7)),
            (Some(leaf), None, None)
        );

        let mut copy = StackTable::new();
        for definition in table.take_definitions() {
            assert!(copy.define(definition));
        }
        let lines: Vec<u32> = copy.frames(leaf).map(|f| f.line).collect();
        assert_eq!(lines, [7, 3]);
        assert!(table.take_definitions().is_empty(), "each definition is delivered once");
    }

    #[test]
    fn a_definition_out_of_order_is_refused() {
        let mut table = StackTable::new();
        assert!(!table.define(Definition::Function(FunctionId(1), function("f"))));
        assert!(!table.define(Definition::Stack(
            StackId(0),
            StackNode { parent: None, frame: FrameId(0), module: None }
        )));
    }

    #[test]
    fn a_reused_pthread_with_another_os_id_is_new() {
        let mut table = StackTable::new();
        let thread =
            |os_id| Thread { os_id: Some(os_id), python_id: 0x7000, name: None, main: false };
        let first = table.thread(thread(10));
        assert_eq!(table.thread(thread(10)), first);
        assert_ne!(table.thread(thread(11)), first);
    }
}
