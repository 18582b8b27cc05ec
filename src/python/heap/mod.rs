//! The objects of a CPython that stands still: what the garbage collector tracks, and what each object refers to.
//!
//! All reads go through one [`PageCache`], so that what is seen fits together; a target that runs on is seen torn, which the
//! lists show ([`HeapError::Changing`]). Start reading at [`PythonHeap`].

mod blocks;
mod c_type_fields;
mod class;
mod contents;
mod frames;
mod garbage;
mod hidden;
mod lists;
mod locals;
mod mimalloc;
mod object_arrays;
mod onward;
mod reference_graph;
mod reference_scan;
mod references;
mod threads;

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

use rustc_hash::FxHashMap;

pub use class::{ClassKind, PyClass};
use lists::TrackedObject;
pub use locals::LocalVariable;
pub(super) use locals::TAG;
pub use onward::OnwardReferences;
pub use reference_graph::{LeadingObjects, ReferenceGraph};
pub use references::ReferenceKind;

use crate::python::layouts::interpreter::Interpreter;
use crate::python::layouts::layout::PythonLayout;
use crate::target::{Addr, MemoryError, PageCache, Process};

/// Why the heap could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeapError {
    /// The garbage collector is at work and has taken its lists apart: try again a little later.
    #[error("Python's garbage collector is at work")]
    Collecting,
    /// A list changed while it was read: the target runs.
    #[error("Python's list of objects changed while it was read")]
    Changing,
    /// The collector's lists, or the heaps that take their place without a GIL, are not where they should be.
    #[error("the list of objects of this CPython ({version}) could not be found")]
    NoLists {
        /// The version of the target's CPython.
        version: String,
    },
    /// The reader in use knows nothing of objects.
    #[error("the objects of CPython {version} are not known to memspy")]
    Unsupported {
        /// The version of the target's CPython.
        version: String,
    },
    /// What has to be readable is not.
    #[error("cannot read {what} at {at}: {source}")]
    Unreadable {
        /// What was to be read.
        what: &'static str,
        /// Where.
        at: Addr,
        /// Why.
        source: MemoryError,
    },
}

impl HeapError {
    /// Whether another attempt may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, HeapError::Collecting | HeapError::Changing)
    }

    /// Whether it could not be read because of a limit ([`MemoryError::is_limit`]).
    pub fn is_limit(&self) -> bool {
        matches!(self, HeapError::Unreadable { source, .. } if source.is_limit())
    }

    fn unreadable(what: &'static str, at: Addr) -> impl FnOnce(MemoryError) -> HeapError {
        move |source| HeapError::Unreadable { what, at, source }
    }
}

/// An object that the garbage collector tracks.
#[derive(Debug, Clone)]
pub struct HeapObject {
    /// Its address: `id(object)`.
    pub at: Addr,
    /// Its class.
    pub class: Arc<PyClass>,
    /// Its reference count; negative for immortal objects (3.12+).
    pub references: i32,
}

/// Classes by address; `None` for those that could not be read.
type KnownClasses = FxHashMap<Addr, Option<Arc<PyClass>>>;

/// The heap of one CPython at one moment.
pub struct PythonHeap<'a> {
    memory: &'a PageCache,
    layout: PythonLayout,
    runtime: Addr,
    /// That look into its objects.
    threads: Cell<usize>,
    objects: Vec<HeapObject>,
    classes: RefCell<KnownClasses>,
    /// How many classes are being looked up, each for the one before.
    class_depth: Cell<u32>,
    texts: RefCell<FxHashMap<Addr, Box<str>>>,
    unreadable: Cell<u64>,
    context_values: OnceCell<hidden::ContextValues>,
}

/// How exactly the list of all objects has to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeapListing {
    /// Whole: anything that does not fit together is an error.
    Whole,
    /// As far as it can be followed while the process runs and changes it: to learn which pages it lies in.
    Rough,
    /// Only what was made last, as far as that can be told (without a GIL it cannot): a few thousand objects.
    Newest,
}

impl<'a> PythonHeap<'a> {
    /// Reads the collector's lists of all interpreters.
    pub(super) fn read(
        memory: &'a PageCache,
        interpreter: &Interpreter,
        process: Option<&Process>,
        listing: HeapListing,
    ) -> Result<PythonHeap<'a>, HeapError> {
        let mut heap = PythonHeap::unlisted(memory, interpreter);
        let tracked = match interpreter.layout.free_threaded {
            true if listing == HeapListing::Newest => Vec::new(),
            true => mimalloc::tracked(memory, interpreter, process, listing)?,
            false => lists::tracked(memory, interpreter, listing)?,
        };
        heap.objects.reserve(tracked.len());
        for TrackedObject { at, class, references } in tracked {
            match heap.class_at(class) {
                Some(class) => heap.objects.push(HeapObject { at, class, references }),
                None => heap.missed(),
            }
        }
        Ok(heap)
    }

    /// The heap without the list of its objects: for following references from known places.
    pub(super) fn unlisted(memory: &'a PageCache, interpreter: &Interpreter) -> PythonHeap<'a> {
        let (layout, runtime) = (interpreter.layout, interpreter.runtime);
        PythonHeap::over(layout, runtime, KnownClasses::default(), memory)
    }

    /// What is known of the heap, over another cache of the same memory.
    fn over<'b>(
        layout: PythonLayout,
        runtime: Addr,
        classes: KnownClasses,
        memory: &'b PageCache,
    ) -> PythonHeap<'b> {
        PythonHeap {
            memory,
            layout,
            runtime,
            threads: Cell::new(threads::most_threads()),
            objects: Vec::new(),
            classes: RefCell::new(classes),
            class_depth: Cell::new(0),
            texts: RefCell::default(),
            unreadable: Cell::new(0),
            context_values: OnceCell::new(),
        }
    }

    /// Everything tracked, as `gc.get_objects()` lists it, and what `gc.freeze()` took out of that.
    pub fn objects(&self) -> &[HeapObject] {
        &self.objects
    }

    /// The memory that it is read from.
    pub fn pages(&self) -> &'a PageCache {
        self.memory
    }

    /// How many objects could not be read (all of them or a part); what they refer to is missing.
    pub fn unreadable(&self) -> u64 {
        self.unreadable.get()
    }

    fn missed(&self) {
        self.unreadable.set(self.unreadable.get() + 1);
    }
}
