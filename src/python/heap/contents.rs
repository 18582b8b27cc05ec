//! What containers contain: dictionaries, lists, tuples, sets, instances.

use std::sync::Arc;

use super::super::dicts;
use super::super::objects::{small_int, text};
use super::{Class, Heap, Kind};
use crate::target::{Addr, Field, Memory, MemoryError};

/// More items than any container that is looked at has; a longer one is damage.
const MOST_ITEMS: u64 = 1 << 26;
/// No object of C has more references one behind the other (a `hamt` node; `tee` has 57).
const MAX_ROW: u64 = 1 << 12;
/// `PyVarObject.ob_size`, `PyListObject.ob_item`, `PySetObject.mask` and `.table`: the same from 3.8 to 3.15, but for the
/// length of the head.
const SIZE: Field<u64> = Field::at(16);
const LIST_ITEMS: Field<Addr> = Field::at(24);
const SET_MASK: Field<u64> = Field::at(32);
const SET_TABLE: Field<Addr> = Field::at(40);
/// `dequeobject`: `leftblock`, `leftindex`; a block is a link, its items, a link.
const DEQUE_BLOCK: Field<Addr> = Field::at(24);
const DEQUE_INDEX: Field<u64> = Field::at(40);
const DEQUE_BLOCK_ITEMS: u64 = 64;
/// `setentry`: key, hash.
const SET_ENTRY: usize = 16;

impl Heap<'_> {
    pub(super) fn memory(&self) -> &dyn Memory {
        self.memory
    }

    /// The text of a `str`; `None` when it is none.
    pub fn text(&self, at: Addr) -> Option<String> {
        if self.class_of(at)?.kind != Kind::Text {
            return None;
        }
        text(self.memory(), &self.layout.object, at).ok().map(|text| text.text)
    }

    /// The value of a small non-negative `int`; `None` for anything else.
    pub fn integer(&self, at: Addr) -> Option<u64> {
        if &*self.class_of(at)?.name != "int" {
            return None;
        }
        small_int(self.memory(), &self.layout.object, at).ok()
    }

    /// Whether something is `True`.
    pub fn is_true(&self, at: Addr) -> bool {
        self.class_of(at).is_some_and(|class| &*class.name == "bool")
            && small_int(self.memory(), &self.layout.object, at) == Ok(1)
    }

    /// Keys and values of a dictionary.
    pub fn entries(&self, dict: Addr) -> Vec<(Addr, Addr)> {
        dicts::entries(self.memory(), &self.layout, dict).unwrap_or_else(|_| {
            self.missed();
            Vec::new()
        })
    }

    /// The same; `None` for what is no dictionary.
    pub fn entries_if_dict(&self, at: Addr) -> Option<Vec<(Addr, Addr)>> {
        (self.class_of(at)?.kind == Kind::Dict).then(|| self.entries(at))
    }

    /// The entries of a dictionary whose keys are strings.
    pub fn named_entries(&self, dict: Addr) -> Vec<(String, Addr)> {
        let named = |(key, value): (Addr, Addr)| Some((self.text(key)?, value));
        self.entries(dict).into_iter().filter_map(named).collect()
    }

    /// The value of one key of such a dictionary: only the keys before it are read.
    pub fn named_value(&self, dict: Addr, name: &str) -> Option<Addr> {
        let is_it = |(key, _): &(Addr, Addr)| self.text(*key).is_some_and(|key| key == name);
        self.entries(dict).into_iter().find(is_it).map(|(_, value)| value)
    }

    /// The items of a list, a tuple, a deque or a set; nothing for anything else.
    pub fn items(&self, at: Addr) -> Vec<Addr> {
        let Some(class) = self.class_of(at) else { return Vec::new() };
        self.items_at(at, class.kind).unwrap_or_else(|_| {
            self.missed();
            Vec::new()
        })
    }

    pub(super) fn items_at(&self, at: Addr, kind: Kind) -> Result<Vec<Addr>, MemoryError> {
        let (memory, object) = (self.memory(), &self.layout.object);
        let pointers = |start: Addr, count: u64| {
            let bytes = memory.vec(start, (count.min(MOST_ITEMS) * 8) as usize)?;
            Ok(bytes.chunks_exact(8).filter_map(|b| Field::<Addr>::at(0).of(b)).collect())
        };
        match kind {
            Kind::Tuple => {
                let count = memory.u64(object.past(SIZE).in_target(at))?;
                pointers(at + self.layout.heap.tuple_items as u64, count)
            }
            Kind::List => {
                let count = memory.u64(object.past(SIZE).in_target(at))?;
                match memory.pointer(object.past(LIST_ITEMS).in_target(at))? {
                    Addr(0) => Ok(Vec::new()),
                    items => pointers(items, count),
                }
            }
            Kind::Set => {
                let mask = object.past(SET_MASK).in_target(at);
                let slots = memory.u64(mask)?.min(MOST_ITEMS) + 1;
                let table = memory.pointer(object.past(SET_TABLE).in_target(at))?;
                let bytes = memory.vec(table, slots as usize * SET_ENTRY)?;
                let key = |entry: &[u8]| {
                    // A removed key leaves a dummy with hash -1.
                    let hash = Field::<u64>::at(8).of(entry)?;
                    Field::<Addr>::at(0).of(entry).filter(|key| key.0 != 0 && hash != u64::MAX)
                };
                Ok(bytes.chunks_exact(SET_ENTRY).filter_map(key).collect())
            }
            Kind::Deque => self.items_of_deque(at),
            _ => Ok(Vec::new()),
        }
    }

    /// Modules/_collectionsmodule.c: a chain of blocks, of which the first and the last are filled in part.
    fn items_of_deque(&self, at: Addr) -> Result<Vec<Addr>, MemoryError> {
        let (memory, object) = (self.memory(), &self.layout.object);
        let count = memory.u64(object.past(SIZE).in_target(at))?.min(MOST_ITEMS) as usize;
        let mut block = memory.pointer(object.past(DEQUE_BLOCK).in_target(at))?;
        let mut index = memory.u64(object.past(DEQUE_INDEX).in_target(at))?;
        let mut items = Vec::new();
        while items.len() < count && block.is_plausible() && index < DEQUE_BLOCK_ITEMS {
            let here = (DEQUE_BLOCK_ITEMS - index).min((count - items.len()) as u64);
            let bytes = memory.vec(block + 8 + 8 * index, 8 * here as usize)?;
            items.extend(bytes.chunks_exact(8).filter_map(|item| Field::<Addr>::at(0).of(item)));
            block = memory.pointer(block + 8 + 8 * DEQUE_BLOCK_ITEMS)?;
            index = 0;
        }
        Ok(items)
    }

    /// The attributes of an object: its slots and its `__dict__`.
    pub fn attributes(&self, at: Addr) -> Vec<(String, Addr)> {
        let Some(class) = self.class_of(at) else { return Vec::new() };
        let slots = self.slots_of(at, &class).into_iter();
        let mut attributes: Vec<_> = slots.map(|(name, to)| (name.to_string(), to)).collect();
        let entries = self.instance_entries(at, &class).into_iter();
        attributes.extend(entries.filter_map(|(key, value)| Some((self.text(key)?, value))));
        attributes
    }

    /// The references of an instance that lie one behind the other, with their numbers; those that are not set are left out.
    pub(super) fn row_of(&self, at: Addr, class: &Class) -> Vec<(usize, Addr)> {
        let (memory, object) = (self.memory(), &self.layout.object);
        let Some(row) = class.row else { return Vec::new() };
        let references = || {
            let count = memory.u32(object.past(row.count).in_target(at))? as u64;
            let first = object.past(Field::<Addr>::at(row.first as usize)).in_target(at);
            memory.vec(first, 8 * count.min(MAX_ROW) as usize)
        };
        let Ok(bytes) = references() else {
            self.missed();
            return Vec::new();
        };
        let all = bytes.chunks_exact(8).map(|word| Field::<Addr>::at(0).of(word)).enumerate();
        all.filter_map(|(index, to)| Some((index, to.filter(|to| to.is_plausible())?))).collect()
    }

    /// The slots that are set.
    pub(super) fn slots_of(&self, at: Addr, class: &Class) -> Vec<(Arc<str>, Addr)> {
        let memory = self.memory();
        let set = |(name, offset): &(Arc<str>, u64)| {
            let value = memory.pointer(at + *offset).ok().filter(|value| *value != Addr(0))?;
            Some((name.clone(), value))
        };
        self.slots(class).iter().filter_map(set).collect()
    }

    /// Keys and values of the instance's `__dict__`.
    pub(super) fn instance_entries(&self, at: Addr, class: &Class) -> Vec<(Addr, Addr)> {
        dicts::instance_entries(self.memory(), &self.layout, at, &class.place()).unwrap_or_else(
            |_| {
                self.missed();
                Vec::new()
            },
        )
    }

    /// The dictionary that is the instance's `__dict__`; `None` where it has none yet.
    pub fn dict_of_instance(&self, at: Addr, class: &Class) -> Option<Addr> {
        dicts::owned_by_instance(self.memory(), &self.layout, at, &class.place()).ok()?.dict
    }

    /// The value of one attribute.
    pub fn attribute(&self, at: Addr, name: &str) -> Option<Addr> {
        self.attributes(at).into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Name and dictionary of every module that is imported (`sys.modules` of the main interpreter).
    pub fn modules(&self) -> Vec<(String, Addr)> {
        let memory = self.memory();
        let (runtime, interpreter) = (&self.layout.runtime, &self.layout.interpreter);
        let modules = (|| {
            let first = memory.pointer(runtime.interpreters_head.in_target(self.runtime)).ok()?;
            // The main interpreter is the oldest: the last one of the list.
            let mut main = first;
            for _ in 0..64 {
                match memory.pointer(interpreter.next.in_target(main)).ok()? {
                    Addr(0) => break,
                    next => main = next,
                }
            }
            memory.pointer(interpreter.modules.in_target(main)).ok()
        })();
        let Some(modules) = modules else { return Vec::new() };
        let dict = |(name, module): (String, Addr)| {
            if self.class_of(module)?.kind != Kind::Module {
                return None;
            }
            Some((name, dicts::of_module(memory, &self.layout, module).ok()?))
        };
        self.named_entries(modules).into_iter().filter_map(dict).collect()
    }
}
