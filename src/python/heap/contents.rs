//! Contents of containers and instances.

use std::sync::Arc;

use super::super::dicts;
use super::super::objects::{DecodeError, small_int, text};
use super::c_type_fields::ReferenceArray;
use super::class::MemberSlot;
use super::{ClassKind, ObjectHeap, PyClass};
use crate::target::{Addr, Field, Memory};

const MAX_ITEMS: u64 = 1 << 26;
/// `tee` has 57 references.
const MAX_ROW: u64 = 1 << 12;
const MAX_RING: u64 = 1 << 20;
const MAX_EMPTY: u32 = 1 << 16;
/// `ob_size`, `ob_item`, `allocated`; `PySetObject.fill`, `mask`, `table` (3.8 to 3.15).
const SIZE: Field<u64> = Field::at(16);
const LIST_ITEMS: Field<Addr> = Field::at(24);
const LIST_ROOM: Field<u64> = Field::at(32);
const SET_FILL: Field<u64> = Field::at(16);
const SET_MASK: Field<u64> = Field::at(32);
const SET_TABLE: Field<Addr> = Field::at(40);
/// `leftblock`, `leftindex`, `maxlen` (-1: none). Each block: link, items, link.
const DEQUE_BLOCK: Field<Addr> = Field::at(24);
const DEQUE_INDEX: Field<u64> = Field::at(40);
const DEQUE_LIMIT: Field<u64> = Field::at(64);
const DEQUE_BLOCK_ITEMS: u64 = 64;

const MAX_NAME_LEN: usize = 64;
const MAX_NAMES: usize = 1 << 16;

const WORDS: usize = 512;
/// Of a container: more would take all memory from other objects.
const MAX_READ: u64 = 1 << 21;

fn each_word(
    memory: &dyn Memory,
    start: Addr,
    count: u64,
    take: &mut dyn FnMut(Addr) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    if count > 2 * MAX_ITEMS {
        return Err(DecodeError::Malformed);
    }
    let (mut buffer, mut done) = ([0; 8 * WORDS], 0);
    let most = count.min(MAX_READ);
    while done < most {
        let here = (most - done).min(WORDS as u64) as usize;
        let bytes = &mut buffer[..8 * here];
        memory.read(start + 8 * done, bytes)?;
        for word in bytes.chunks_exact(8) {
            take(Field::<Addr>::at(0).get(word).unwrap_or_default())?;
        }
        done += here as u64;
    }
    if most < count { Err(DecodeError::Malformed) } else { Ok(()) }
}

fn object_at(at: Addr) -> Result<Addr, DecodeError> {
    match at {
        Addr(0) => Ok(at),
        at if at.is_plausible() && at.0.is_multiple_of(8) => Ok(at),
        _ => Err(DecodeError::Malformed),
    }
}

impl ObjectHeap<'_> {
    pub(super) fn memory(&self) -> &dyn Memory {
        self.memory
    }

    /// `None` unless a `str`.
    pub fn text(&self, at: Addr) -> Option<String> {
        self.with_text(at, str::to_owned)
    }

    fn with_text<T>(&self, at: Addr, of: impl FnOnce(&str) -> T) -> Option<T> {
        // Modules share a few dozen attribute names.
        if let Some(known) = self.texts.borrow().get(&at) {
            return Some(of(known));
        }
        if self.class_of(at)?.kind != ClassKind::Text {
            return None;
        }
        let text = text(self.memory(), &self.layout.object, at).ok()?.text;
        let result = of(&text);
        let mut texts = self.texts.borrow_mut();
        if text.len() <= MAX_NAME_LEN && texts.len() < MAX_NAMES {
            texts.insert(at, text.into());
        }
        Some(result)
    }

    /// `None` unless a small non-negative `int`.
    pub fn integer(&self, at: Addr) -> Option<u64> {
        if &*self.class_of(at)?.name != "int" {
            return None;
        }
        small_int(self.memory(), &self.layout.object, at).ok()
    }

    /// Whether it is `True`.
    pub fn is_true(&self, at: Addr) -> bool {
        self.class_of(at).is_some_and(|class| &*class.name == "bool")
            && small_int(self.memory(), &self.layout.object, at) == Ok(1)
    }

    /// A dictionary's keys and values.
    pub fn entries(&self, dict: Addr) -> Vec<(Addr, Addr)> {
        self.entries_by_keys(dict).entries
    }

    pub(super) fn entries_by_keys(&self, dict: Addr) -> dicts::DictEntries {
        dicts::entries_by_keys(self.memory(), &self.layout, dict).unwrap_or_else(|_| {
            self.missed();
            dicts::DictEntries::default()
        })
    }

    /// `None` unless a dictionary.
    pub fn entries_if_dict(&self, at: Addr) -> Option<Vec<(Addr, Addr)>> {
        (self.class_of(at)?.kind == ClassKind::Dict).then(|| self.entries(at))
    }

    /// The entries with string keys.
    pub fn named_entries(&self, dict: Addr) -> Vec<(String, Addr)> {
        let named = |(key, value): (Addr, Addr)| Some((self.text(key)?, value));
        self.entries(dict).into_iter().filter_map(named).collect()
    }

    /// Reads only the keys before it.
    pub fn named_value(&self, dict: Addr, name: &str) -> Option<Addr> {
        let is_it = |(key, _): &(Addr, Addr)| self.text(*key).is_some_and(|key| key == name);
        self.entries(dict).into_iter().find(is_it).map(|(_, value)| value)
    }

    /// Of a list, tuple, deque or set; else empty.
    pub fn items(&self, at: Addr) -> Vec<Addr> {
        let mut items = Vec::new();
        self.each_item(at, &mut |item| items.push(item));
        items
    }

    fn each_item(&self, at: Addr, take: &mut dyn FnMut(Addr)) {
        let Some(class) = self.class_of(at) else { return };
        self.each_item_of(at, class.kind, take);
    }

    pub(super) fn each_item_of(&self, at: Addr, kind: ClassKind, take: &mut dyn FnMut(Addr)) {
        if self.each_item_at(at, kind, take).is_err() {
            self.missed();
        }
    }

    pub(super) fn items_at(&self, at: Addr, kind: ClassKind) -> Result<Vec<Addr>, DecodeError> {
        let mut items = Vec::new();
        self.each_item_at(at, kind, &mut |item| items.push(item))?;
        Ok(items)
    }

    /// Stops at the first word that is no object's address.
    fn each_item_at(
        &self,
        at: Addr,
        kind: ClassKind,
        take: &mut dyn FnMut(Addr),
    ) -> Result<(), DecodeError> {
        let (memory, object) = (self.memory(), &self.layout.object);
        match kind {
            ClassKind::Tuple => {
                let count = memory.u64(object.shift(SIZE).in_target(at))?;
                let items = at + self.layout.heap.tuple_items as u64;
                each_word(memory, items, count, &mut |item| object_at(item).map(&mut *take))
            }
            ClassKind::List => {
                let count = memory.u64(object.shift(SIZE).in_target(at))?;
                match memory.pointer(object.shift(LIST_ITEMS).in_target(at))? {
                    Addr(0) => Ok(()),
                    _ if count > memory.u64(object.shift(LIST_ROOM).in_target(at))? => {
                        Err(DecodeError::Malformed)
                    }
                    items => {
                        let mut empty = 0;
                        each_word(memory, items, count, &mut |item| {
                            empty = if item == Addr(0) { empty + 1 } else { 0 };
                            match empty {
                                ..=MAX_EMPTY => object_at(item).map(&mut *take),
                                _ => Err(DecodeError::Malformed),
                            }
                        })
                    }
                }
            }
            ClassKind::Set => {
                let fill = memory.u64(object.shift(SET_FILL).in_target(at))?;
                let mask = memory.u64(object.shift(SET_MASK).in_target(at))?;
                let table = memory.pointer(object.shift(SET_TABLE).in_target(at))?;
                if mask >= MAX_ITEMS || mask & (mask + 1) != 0 || fill > mask + 1 {
                    return Err(DecodeError::Malformed);
                }
                let mut key = None;
                each_word(memory, table, 2 * (mask + 1), &mut |word| match key.take() {
                    None => {
                        key = Some(word);
                        Ok(())
                    }
                    // A removed key leaves a dummy with hash -1.
                    Some(key) if key.0 == 0 || word.0 == u64::MAX => Ok(()),
                    Some(key) => object_at(key).map(&mut *take),
                })
            }
            ClassKind::Deque => self.each_item_of_deque(at, take),
            _ => Ok(()),
        }
    }

    /// Items and `maxlen` of a deque; `None` without a limit.
    pub fn limit_of_deque(&self, at: Addr) -> Option<(u64, u64)> {
        let (memory, object) = (self.memory(), &self.layout.object);
        let limit = memory.u64(object.shift(DEQUE_LIMIT).in_target(at)).ok()?;
        let items = memory.u64(object.shift(SIZE).in_target(at)).ok()?;
        (limit <= i64::MAX as u64 && items <= limit).then_some((items, limit))
    }

    /// A chain of blocks (Modules/_collectionsmodule.c).
    fn each_item_of_deque(&self, at: Addr, take: &mut dyn FnMut(Addr)) -> Result<(), DecodeError> {
        let (memory, object) = (self.memory(), &self.layout.object);
        let count = memory.u64(object.shift(SIZE).in_target(at))?.min(MAX_ITEMS);
        let mut block = memory.pointer(object.shift(DEQUE_BLOCK).in_target(at))?;
        let mut index = memory.u64(object.shift(DEQUE_INDEX).in_target(at))?;
        let mut left = count;
        while left > 0 && block.is_plausible() && index < DEQUE_BLOCK_ITEMS {
            let here = (DEQUE_BLOCK_ITEMS - index).min(left);
            let first = block + 8 + 8 * index;
            each_word(memory, first, here, &mut |item| object_at(item).map(&mut *take))?;
            left -= here;
            block = memory.pointer(block + 8 + 8 * DEQUE_BLOCK_ITEMS)?;
            index = 0;
        }
        Ok(())
    }

    /// Slots and `__dict__`.
    pub fn attributes(&self, at: Addr) -> Vec<(String, Addr)> {
        let Some(class) = self.class_of(at) else { return Vec::new() };
        let slots = self.slots_of(at, &class).into_iter();
        let mut attributes: Vec<_> = slots.map(|(name, to)| (name.to_string(), to)).collect();
        let entries = self.instance_entries(at, &class).into_iter();
        attributes.extend(entries.filter_map(|(key, value)| Some((self.text(key)?, value))));
        attributes
    }

    pub(super) fn row_of(&self, at: Addr, class: &PyClass) -> Vec<(usize, Addr)> {
        let (memory, object) = (self.memory(), &self.layout.object);
        let Some(row) = class.row else { return Vec::new() };
        let references = || match row {
            ReferenceArray::Inside { count, first } => {
                let count = memory.u32(object.shift(count).in_target(at))? as u64;
                let first = object.shift(Field::<Addr>::at(first as usize)).in_target(at);
                memory.vec(first, 8 * count.min(MAX_ROW) as usize)
            }
            ReferenceArray::Ring { items, room, first, count } => {
                let items = memory.pointer(object.shift(items).in_target(at))?;
                let number = |field: Field<u64>| memory.u64(object.shift(field).in_target(at));
                let room = number(room)?.min(MAX_RING);
                let (first, count) = (number(first)?.min(room), number(count)?.min(room));
                let till_end = count.min(room - first);
                let mut bytes = memory.vec(items + 8 * first, 8 * till_end as usize)?;
                bytes.extend(memory.vec(items, 8 * (count - till_end) as usize)?);
                Ok(bytes)
            }
        };
        let Ok(bytes) = references() else {
            self.missed();
            return Vec::new();
        };
        let all = bytes.chunks_exact(8).map(|word| Field::<Addr>::at(0).get(word)).enumerate();
        all.filter_map(|(index, to)| Some((index, to.filter(|to| to.is_plausible())?))).collect()
    }

    /// The attributes with these names.
    pub fn attributes_called<const N: usize>(
        &self,
        at: Addr,
        names: [&str; N],
    ) -> [Option<Addr>; N] {
        let mut values = [None; N];
        let Some(class) = self.class_of(at) else { return values };
        let place = |name: &str| names.iter().position(|known| *known == name);
        for (name, value) in self.slots_of(at, &class) {
            if let Some(place) = place(&name) {
                values[place] = Some(value);
            }
        }
        for (key, value) in self.instance_entries(at, &class) {
            if let Some(place) = self.with_text(key, place).flatten() {
                values[place] = Some(value);
            }
        }
        values
    }

    pub(super) fn slots_of(&self, at: Addr, class: &PyClass) -> Vec<(Arc<str>, Addr)> {
        let slots = self.slots(class);
        slots.iter().filter_map(|slot| Some((slot.name.clone(), self.in_slot(at, slot)?))).collect()
    }

    pub(super) fn owned_by_slots(&self, at: Addr, class: &PyClass) -> Vec<Addr> {
        let slots = self.slots(class);
        let owned = slots.iter().filter(|slot| slot.is_owned);
        owned.filter_map(|slot| self.in_slot(at, slot)).collect()
    }

    fn in_slot(&self, at: Addr, slot: &MemberSlot) -> Option<Addr> {
        self.memory().pointer(at + slot.offset).ok().filter(|value| *value != Addr(0))
    }

    pub(super) fn instance_entries(&self, at: Addr, class: &PyClass) -> Vec<(Addr, Addr)> {
        dicts::instance_entries(self.memory(), &self.layout, at, &class.place()).unwrap_or_else(
            |_| {
                self.missed();
                Vec::new()
            },
        )
    }

    /// `__dict__`; `None` if not yet created.
    pub fn dict_of_instance(&self, at: Addr, class: &PyClass) -> Option<Addr> {
        dicts::owned_by_instance(self.memory(), &self.layout, at, &class.place()).ok()?.dict
    }

    /// One attribute's value.
    pub fn attribute(&self, at: Addr, name: &str) -> Option<Addr> {
        self.attributes(at).into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Names and dictionaries of the main interpreter's `sys.modules`.
    pub fn modules(&self) -> Vec<(String, Addr)> {
        let memory = self.memory();
        let main = dicts::main_interpreter(memory, &self.layout, self.runtime);
        let modules = |main| memory.pointer(self.layout.interpreter.modules.in_target(main)).ok();
        let Some(modules) = main.and_then(modules) else { return Vec::new() };
        let dict = |(name, module): (String, Addr)| {
            if self.class_of(module)?.kind != ClassKind::Module {
                return None;
            }
            Some((name, dicts::of_module(memory, &self.layout, module).ok()?))
        };
        self.named_entries(modules).into_iter().filter_map(dict).collect()
    }
}
