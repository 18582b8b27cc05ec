//! Classes, each read once.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::super::dicts::InstanceClass;
use super::ObjectHeap;
use super::c_type_fields::{self, ARRAY_BASE, ReferenceArray, TypeField};
use crate::python::layouts::ObjectLayout;
use crate::target::{Addr, Field, Memory};

/// `PyTypeObject` (Include/cpython/object.h, 3.8 to 3.15).
const NAME: Field<Addr> = Field::at(24);
const BASIC_SIZE: Field<u64> = Field::at(32);
const ITEM_SIZE: Field<u64> = Field::at(40);
const FLAGS: Field<u64> = Field::at(168);
const DICT: Field<Addr> = Field::at(264);
const DICT_OFFSET: Field<i64> = Field::at(288);
const MRO: Field<Addr> = Field::at(344);
const LAST: Field<Addr> = MRO;
const MAX_CLASS_DEPTH: u32 = 128;
const MAX_NAME_LEN: usize = 256;
/// Include/object.h; `MANAGED_DICT` since 3.11.
const HEAP_TYPE: u64 = 1 << 9;
const MANAGED_DICT: u64 = 1 << 4;
const LIST: u64 = 1 << 25;
const TUPLE: u64 = 1 << 26;
const TEXT: u64 = 1 << 28;
const MAPPING: u64 = 1 << 29;
const EXCEPTION: u64 = 1 << 30;
const TYPE: u64 = 1 << 31;
/// `PyMemberDescrObject.d_member`.
const MEMBER: Field<Addr> = Field::at(40);
/// `PyMemberDef`: name, type, offset, flags; the types that are references
/// (Include/structmember.h).
const MEMBER_LEN: usize = 28;
const REFERENCES: [i32; 2] = [6, 16];
const READ_ONLY: i32 = 1;

/// An attribute in an instance's C part: of `__slots__`, or a member of a class written in C.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemberSlot {
    pub(super) name: Arc<str>,
    pub(super) offset: u64,
    /// Setting it releases what it held (`PyMember_SetOne` in Python/structmember.c), so it counts.
    /// A read-only one may be borrowed, as the exceptions of a `sqlite3.Connection` are.
    pub(super) is_owned: bool,
}

/// Which references instances have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClassKind {
    /// `dict` and subclasses.
    Dict,
    /// `list` and subclasses.
    List,
    /// `tuple` and subclasses.
    Tuple,
    /// `str`.
    Text,
    /// `set`, `frozenset`.
    Set,
    /// `collections.deque`.
    Deque,
    /// A closure's variable.
    Cell,
    /// A Python function.
    Function,
    /// A bound method.
    Method,
    /// Generator, coroutine, asynchronous generator.
    Generator,
    /// A frame object.
    Frame,
    /// A module.
    Module,
    /// A wrapped C pointer.
    Capsule,
    /// A class.
    Type,
    /// Of a `class` statement: attributes and slots.
    Instance,
    /// Only its attributes are known.
    Other,
}

/// A class.
#[derive(Debug)]
pub struct PyClass {
    /// `id(class)`.
    pub at: Addr,
    /// `tp_name`; for C classes with module.
    pub name: Arc<str>,
    /// The kind of its instances.
    pub kind: ClassKind,
    /// `tp_mro`.
    pub bases: Vec<Addr>,
    /// Bytes of an instance without items.
    pub basic_size: u64,
    pub(super) item_size: u64,
    pub(super) flags: u64,
    pub(super) dict: Addr,
    pub(super) dict_offset: i64,
    pub(super) slots: OnceLock<Vec<MemberSlot>>,
    /// References in its instances' C part.
    pub(super) parts: Option<Cow<'static, [TypeField]>>,
    pub(super) row: Option<ReferenceArray>,
}

impl PyClass {
    /// Whether it is or derives from `base`.
    pub fn is_a(&self, base: Addr) -> bool {
        self.bases.contains(&base)
    }

    /// Whether its instances have no known references: numbers, strings, C objects without
    /// attributes.
    pub fn is_leaf(&self) -> bool {
        match self.kind {
            ClassKind::Text => true,
            ClassKind::Other => {
                self.parts.is_none() && self.dict_offset == 0 && self.flags & MANAGED_DICT == 0
            }
            _ => false,
        }
    }

    /// Whether its instances are NumPy arrays.
    pub fn is_array(&self) -> bool {
        self.parts.as_deref().is_some_and(|parts| parts.iter().any(|part| part.1 == ARRAY_BASE))
    }

    pub(super) fn place(&self) -> InstanceClass {
        InstanceClass {
            at: self.at,
            flags: self.flags,
            dict_offset: self.dict_offset,
            basic_size: self.basic_size,
            item_size: self.item_size,
        }
    }

    pub(super) fn parts(
        &self,
        head: &ObjectLayout,
    ) -> impl Iterator<Item = (Field<Addr>, &'static str)> {
        let parts = self.parts.as_deref().unwrap_or_default().iter();
        parts.map(|(offset, name)| (head.shift(Field::at(*offset as usize)), *name))
    }

    pub(super) fn is_heap_type(&self) -> bool {
        self.flags & HEAP_TYPE != 0
    }
}

fn kind(name: &str, flags: u64) -> ClassKind {
    for (flag, kind) in [
        (MAPPING, ClassKind::Dict),
        (LIST, ClassKind::List),
        (TUPLE, ClassKind::Tuple),
        (TEXT, ClassKind::Text),
        (TYPE, ClassKind::Type),
    ] {
        if flags & flag != 0 {
            return kind;
        }
    }
    // A heap type since 3.12, with its old name.
    if name == "collections.deque" {
        return ClassKind::Deque;
    }
    if flags & HEAP_TYPE != 0 {
        return ClassKind::Instance;
    }
    match name {
        "set" | "frozenset" => ClassKind::Set,
        "cell" => ClassKind::Cell,
        "function" => ClassKind::Function,
        "method" => ClassKind::Method,
        "generator" | "coroutine" | "async_generator" => ClassKind::Generator,
        "frame" => ClassKind::Frame,
        "module" => ClassKind::Module,
        "PyCapsule" => ClassKind::Capsule,
        _ => ClassKind::Other,
    }
}

impl ObjectHeap<'_> {
    /// `None` if unreadable.
    pub fn class_at(&self, at: Addr) -> Option<Arc<PyClass>> {
        if let Some(known) = self.classes.borrow().get(&at) {
            return known.clone();
        }
        // Damaged classes may be each other's bases; a re-entry finds nothing.
        let depth = self.class_depth.get();
        if depth >= MAX_CLASS_DEPTH {
            return None;
        }
        self.classes.borrow_mut().insert(at, None);
        self.class_depth.set(depth + 1);
        let refused = self.memory.refused();
        let class = self.read_class(at).map(Arc::new);
        self.class_depth.set(depth);
        let mut classes = self.classes.borrow_mut();
        match self.memory.refused() == refused {
            true => _ = classes.insert(at, class.clone()),
            false => _ = classes.remove(&at),
        }
        class
    }

    /// An object's class.
    pub fn class_of(&self, at: Addr) -> Option<Arc<PyClass>> {
        self.class_at(self.class_address(at)?)
    }

    fn class_address(&self, at: Addr) -> Option<Addr> {
        if !at.is_plausible() || !at.0.is_multiple_of(8) {
            return None;
        }
        self.memory.reader().pointer(self.layout.object.type_of.in_target(at)).ok()
    }

    /// Without known references, or unreadable.
    pub fn is_leaf(&self, at: Addr) -> bool {
        let Some(class) = self.class_address(at) else { return true };
        if let Some(known) = self.classes.borrow().get(&class) {
            return known.as_ref().is_none_or(|class| class.is_leaf());
        }
        self.class_at(class).is_none_or(|class| class.is_leaf())
    }

    fn read_class(&self, at: Addr) -> Option<PyClass> {
        if !at.is_plausible() || !at.0.is_multiple_of(8) {
            return None;
        }
        let (memory, head): (&dyn Memory, _) = (self.memory, &self.layout.object);
        let bytes = memory.vec(at, head.shift(LAST).end()).ok()?;
        let name = memory.c_string(head.shift(NAME).get(&bytes)?, MAX_NAME_LEN).ok()?;
        let flags = head.shift(FLAGS).get(&bytes)?;
        let bases =
            self.items_at(head.shift(MRO).get(&bytes)?, ClassKind::Tuple).unwrap_or_default();
        // A Python class may have a C class's name, without module.
        let is_of_c = flags & HEAP_TYPE == 0 || name.contains('.');
        let own = match flags & EXCEPTION {
            0 => c_type_fields::of_type(&name)
                .map(Cow::Borrowed)
                .or_else(|| c_type_fields::of_version(&self.layout, &name).map(Cow::Owned)),
            _ => c_type_fields::of_exception(&self.layout, &name).map(Cow::Owned),
        };
        let parts = own.filter(|_| is_of_c).or_else(|| self.parts_of_base(at, &bases));
        Some(PyClass {
            at,
            kind: kind(&name, flags),
            row: c_type_fields::row_of(&self.layout, &name).filter(|_| is_of_c),
            name: name.into(),
            bases,
            parts,
            basic_size: head.shift(BASIC_SIZE).get(&bytes)?,
            item_size: head.shift(ITEM_SIZE).get(&bytes)?,
            flags,
            dict: head.shift(DICT).get(&bytes)?,
            dict_offset: head.shift(DICT_OFFSET).get(&bytes)?,
            slots: OnceLock::new(),
        })
    }

    fn parts_of_base(&self, class: Addr, bases: &[Addr]) -> Option<Cow<'static, [TypeField]>> {
        let others = bases.iter().filter(|base| **base != class);
        others.filter_map(|base| self.class_at(*base)).find_map(|base| base.parts.clone())
    }

    /// `__module__`.
    pub fn module_of(&self, class: &PyClass) -> Option<String> {
        if !class.is_heap_type() {
            return class.name.rsplit_once('.').map(|(module, _)| module.to_owned());
        }
        let entries = self.named_entries(class.dict);
        let (_, module) = entries.into_iter().find(|(name, _)| name == "__module__")?;
        self.text(module)
    }

    /// From its own namespace, without bases.
    pub fn class_attribute(&self, class: &PyClass, name: &str) -> Option<Addr> {
        if !class.is_heap_type() {
            return None;
        }
        self.named_value(class.dict, name)
    }

    pub(super) fn slots<'c>(&self, class: &'c PyClass) -> Cow<'c, [MemberSlot]> {
        if let Some(known) = class.slots.get() {
            return Cow::Borrowed(known);
        }
        let refused = self.memory.refused();
        let of_base = |base: &Addr| {
            let base = self.class_at(*base).filter(|base| base.is_heap_type())?;
            Some(self.own_slots(&base))
        };
        let slots = class.bases.iter().filter_map(of_base).flatten();
        let is_part = |offset: u64| {
            class.parts(&self.layout.object).any(|(part, _)| part.offset as u64 == offset)
        };
        let slots: Vec<_> = slots.filter(|slot| !is_part(slot.offset)).collect();
        match self.memory.refused() == refused {
            true => Cow::Borrowed(class.slots.get_or_init(|| slots)),
            false => Cow::Owned(slots),
        }
    }

    fn own_slots(&self, class: &PyClass) -> Vec<MemberSlot> {
        let memory: &dyn Memory = self.memory;
        let slot = |(name, value): (String, Addr)| {
            if &*self.class_of(value)?.name != "member_descriptor" {
                return None;
            }
            let member = memory.pointer(self.layout.object.shift(MEMBER).in_target(value)).ok()?;
            let bytes = memory.vec(member, MEMBER_LEN).ok()?;
            let is_reference = REFERENCES.contains(&Field::<i32>::at(8).get(&bytes)?);
            let offset = Field::<u64>::at(16).get(&bytes)?;
            let is_owned = Field::<i32>::at(24).get(&bytes)? & READ_ONLY == 0;
            (is_reference && offset < class.basic_size).then(|| MemberSlot {
                name: Arc::from(name),
                offset,
                is_owned,
            })
        };
        self.named_entries(class.dict).into_iter().filter_map(slot).collect()
    }
}
