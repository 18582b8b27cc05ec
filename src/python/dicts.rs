//! Dictionaries and instance attributes.

use super::objects::{DecodeError, text};
use crate::python::layouts::{AttributeLayout, DictSize, PythonLayout};
use crate::target::{Addr, Field, Memory};

const MAX_ENTRIES: u64 = 1 << 24;
const ENTRIES_AT_ONCE: usize = 64;
const MAX_HEAD_LEN: usize = 64;
/// Objects/moduleobject.c.
const MODULE_DICT: Field<Addr> = Field::at(16);

/// `tp_itemsize`, `PyVarObject.ob_size` (3.8 to 3.15).
const ITEM_SIZE: Field<u64> = Field::at(40);
const VAR_SIZE: Field<u64> = Field::at(16);
/// `Py_TPFLAGS_MANAGED_DICT` (3.11+), `Py_TPFLAGS_INLINE_VALUES` (3.13+).
const MANAGED_DICT: u64 = 1 << 4;
const INLINE_VALUES: u64 = 1 << 2;
/// In `PyDictValues` (3.13+).
const VALUES_EMBEDDED: u64 = 2;
const VALUES_VALID: u64 = 3;

const MAX_INTERPRETERS: usize = 64;

/// The main `PyInterpreterState`: the last one in the list.
pub(super) fn main_interpreter(
    memory: &dyn Memory,
    layout: &PythonLayout,
    runtime: Addr,
) -> Option<Addr> {
    let head = layout.runtime.interpreters_head.in_target(runtime);
    let mut main = memory.pointer(head).ok()?;
    for _ in 0..MAX_INTERPRETERS {
        match memory.pointer(layout.interpreter.next.in_target(main)).ok()? {
            Addr(0) => break,
            next => main = next,
        }
    }
    Some(main)
}

/// The dictionary of a module in an interpreter's `sys.modules`; `None`: not imported.
pub(super) fn of_imported(
    memory: &dyn Memory,
    layout: &PythonLayout,
    interpreter: Addr,
    name: &str,
) -> Result<Option<Addr>, DecodeError> {
    let modules = memory.pointer(layout.interpreter.modules.in_target(interpreter))?;
    let modules = entries(memory, layout, modules)?;
    get(memory, layout, &modules, name).map(|module| of_module(memory, layout, module)).transpose()
}

pub(super) fn of_module(
    memory: &dyn Memory,
    layout: &PythonLayout,
    module: Addr,
) -> Result<Addr, DecodeError> {
    Ok(memory.pointer(layout.object.shift(MODULE_DICT).in_target(plausible(module)?))?)
}

pub(super) fn entries(
    memory: &dyn Memory,
    layout: &PythonLayout,
    dict: Addr,
) -> Result<Vec<(Addr, Addr)>, DecodeError> {
    entries_by_keys(memory, layout, dict).map(|entries| entries.entries)
}

#[derive(Debug, Default)]
pub(super) struct DictEntries {
    pub(super) entries: Vec<(Addr, Addr)>,
    pub(super) has_texts_only: bool,
}

pub(super) fn entries_by_keys(
    memory: &dyn Memory,
    layout: &PythonLayout,
    dict: Addr,
) -> Result<DictEntries, DecodeError> {
    let dict = plausible(dict)?;
    let keys = memory.pointer(layout.dict.keys.in_target(dict))?;
    let values = memory.pointer(layout.dict.values.in_target(dict))?;
    let values = (values != Addr(0)).then(|| values + layout.dict.values_start as u64);
    keyed(memory, layout, keys, values)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ValueSlot {
    /// If it changes, the slot is invalid.
    pub(super) table_at: Addr,
    pub(super) table: Addr,
    pub(super) value_at: Addr,
}

pub(super) fn value_slot(
    memory: &dyn Memory,
    layout: &PythonLayout,
    dict: Addr,
    key: Addr,
) -> Result<Option<ValueSlot>, DecodeError> {
    let table_at = layout.dict.keys.in_target(plausible(dict)?);
    let table = memory.pointer(table_at)?;
    if memory.pointer(layout.dict.values.in_target(dict))? != Addr(0) {
        return Ok(None);
    }
    let entries = KeyTable::read(memory, layout, table)?;
    let bytes = memory.vec(entries.start, entries.count * entries.len())?;
    let known = |entry: &[u8]| Field::<Addr>::at(entries.hash).get(entry) == Some(key);
    let index = bytes.chunks_exact(entries.len()).position(known);
    Ok(index.map(|index| ValueSlot {
        table_at,
        table,
        value_at: entries.start + (index * entries.len() + entries.hash + 8) as u64,
    }))
}

struct KeyTable {
    start: Addr,
    count: usize,
    hash: usize,
}

impl KeyTable {
    fn len(&self) -> usize {
        self.hash + 16
    }

    fn read(
        memory: &dyn Memory,
        layout: &PythonLayout,
        keys: Addr,
    ) -> Result<KeyTable, DecodeError> {
        let dict = &layout.dict;
        let mut head = [0; MAX_HEAD_LEN];
        let head = head.get_mut(..dict.indices).ok_or(DecodeError::Malformed)?;
        memory.read(plausible(keys)?, head)?;
        let head = &*head;
        let index_bytes = match dict.size {
            DictSize::IndexBytes(field) => {
                1u64 << field.get(head).ok_or(DecodeError::Malformed)?.min(40)
            }
            DictSize::Slots(field) => {
                let slots = field.get(head).ok_or(DecodeError::Malformed)?.min(1 << 40);
                slots
                    * if slots <= 0xff {
                        1
                    } else if slots <= 0xffff {
                        2
                    } else {
                        4
                    }
            }
        };
        let count = dict.entry_count.get(head).ok_or(DecodeError::Malformed)?;
        if count > MAX_ENTRIES || index_bytes > MAX_ENTRIES * 8 || count > index_bytes {
            return Err(DecodeError::Malformed);
        }
        // General entries begin with the hash, string-only ones do not.
        let hash = match dict.kind.map(|kind| kind.get(head)) {
            None | Some(Some(0)) => 8,
            Some(Some(1 | 2)) => 0,
            Some(_) => return Err(DecodeError::Malformed),
        };
        let start = keys + dict.indices as u64 + index_bytes;
        Ok(KeyTable { start, count: count as usize, hash })
    }
}

fn keyed(
    memory: &dyn Memory,
    layout: &PythonLayout,
    keys: Addr,
    values: Option<Addr>,
) -> Result<DictEntries, DecodeError> {
    let entries = KeyTable::read(memory, layout, keys)?;
    let (hash, len) = (entries.hash, entries.len());
    let values = values.map(plausible).transpose()?;
    let mut found = Vec::with_capacity(entries.count.min(ENTRIES_AT_ONCE));
    let mut done = 0;
    // In pieces, to notice damage before much is copied.
    while done < entries.count {
        let here = (entries.count - done).min(ENTRIES_AT_ONCE);
        let (mut table, mut beside) = ([0; 24 * ENTRIES_AT_ONCE], [0; 8 * ENTRIES_AT_ONCE]);
        let table = &mut table[..here * len];
        memory.read(entries.start + (done * len) as u64, table)?;
        let values = match values {
            Some(at) => {
                let beside = &mut beside[..8 * here];
                memory.read(at + 8 * done as u64, beside)?;
                Some(&*beside)
            }
            None => None,
        };
        for (n, bytes) in table.chunks_exact(len).enumerate() {
            let key = Field::<Addr>::at(hash).get(bytes).unwrap_or_default();
            let value = match values {
                Some(values) => Field::<Addr>::at(n * 8).get(values),
                None => Field::<Addr>::at(hash + 8).get(bytes),
            };
            let value = value.unwrap_or_default();
            if key != Addr(0) && value != Addr(0) {
                found.push((object(key)?, object(value)?));
            }
        }
        done += here;
    }
    Ok(DictEntries { entries: found, has_texts_only: hash == 0 })
}

fn object(at: Addr) -> Result<Addr, DecodeError> {
    if at.0.is_multiple_of(8) { plausible(at) } else { Err(DecodeError::Malformed) }
}

pub(super) fn get(
    memory: &dyn Memory,
    layout: &PythonLayout,
    entries: &[(Addr, Addr)],
    name: &str,
) -> Option<Addr> {
    let named = |key: Addr| text(memory, &layout.object, key).is_ok_and(|text| text.text == name);
    entries.iter().find(|&&(key, _)| named(key)).map(|&(_, value)| value)
}

pub(super) fn attributes(
    memory: &dyn Memory,
    layout: &PythonLayout,
    at: Addr,
) -> Result<Vec<(Addr, Addr)>, DecodeError> {
    let instance = &layout.instance;
    let class = plausible(memory.pointer(layout.object.type_of.in_target(plausible(at)?))?)?;
    let class = InstanceClass {
        at: class,
        flags: memory.u64(instance.type_flags.in_target(class))?,
        dict_offset: memory.u64(class + instance.dict_offset.offset as u64)? as i64,
        basic_size: memory.u64(instance.basic_size.in_target(class))?,
        item_size: memory.u64(layout.object.shift(ITEM_SIZE).in_target(class))?,
    };
    instance_entries(memory, layout, at, &class)
}

#[derive(Debug, Clone, Copy)]
pub(super) struct InstanceClass {
    pub(super) at: Addr,
    pub(super) flags: u64,
    /// `tp_dictoffset`.
    pub(super) dict_offset: i64,
    pub(super) basic_size: u64,
    pub(super) item_size: u64,
}

pub(super) fn instance_entries(
    memory: &dyn Memory,
    layout: &PythonLayout,
    at: Addr,
    class: &InstanceClass,
) -> Result<Vec<(Addr, Addr)>, DecodeError> {
    let places = places(memory, layout, at, class)?;
    match (places.dict, places.values) {
        (Some(dict), _) => entries(memory, layout, dict),
        (None, Some(values)) => {
            let cached = memory.pointer(layout.instance.cached_keys.in_target(class.at))?;
            keyed(memory, layout, cached, Some(values)).map(|entries| entries.entries)
        }
        (None, None) => Ok(Vec::new()),
    }
}

/// 3.13+ may have both.
#[derive(Debug, Clone, Copy, Default)]
struct AttributeStorage {
    dict: Option<Addr>,
    values: Option<Addr>,
}

fn places(
    memory: &dyn Memory,
    layout: &PythonLayout,
    at: Addr,
    class: &InstanceClass,
) -> Result<AttributeStorage, DecodeError> {
    let some = |at: Addr| (at != Addr(0)).then_some(at);
    let before = |offset: i64| memory.pointer(Addr(at.0.wrapping_add_signed(offset)));
    let start = layout.dict.values_start as u64;
    let managed = class.flags & MANAGED_DICT != 0;
    Ok(match layout.instance.attributes {
        AttributeLayout::Split { dict, values } if managed => AttributeStorage {
            dict: some(before(dict)?),
            values: some(before(values)?).map(|values| values + start),
        },
        AttributeLayout::Tagged { word } if managed => match before(word)? {
            Addr(values) if values & 1 == 1 => {
                AttributeStorage { dict: None, values: Some(Addr(values + 1 + start)) }
            }
            dict => AttributeStorage { dict: some(dict), values: None },
        },
        AttributeLayout::Inline { dict } if managed => {
            let own = at + class.basic_size;
            let valid =
                class.flags & INLINE_VALUES != 0 && memory.bytes::<1>(own + VALUES_VALID)?[0] != 0;
            AttributeStorage { dict: some(before(dict)?), values: valid.then_some(own + start) }
        }
        _ => match class.dict_offset {
            0 => AttributeStorage::default(),
            offset @ 1.. => AttributeStorage { dict: some(before(offset)?), values: None },
            // Counted from the end of an object with items (`_PyObject_GetDictPtr`).
            offset => {
                let count = (memory.u64(layout.object.shift(VAR_SIZE).in_target(at))? as i64)
                    .unsigned_abs();
                let items = count.min(MAX_ENTRIES).saturating_mul(class.item_size);
                let size = class.basic_size.saturating_add(items);
                let size = size.checked_next_multiple_of(8).unwrap_or(size);
                AttributeStorage {
                    dict: some(before((size as i64).saturating_add(offset))?),
                    values: None,
                }
            }
        },
    })
}

#[derive(Debug, Clone, Default)]
pub(super) struct InstanceAttributes {
    pub(super) dict: Option<Addr>,
    pub(super) values: Vec<Addr>,
}

/// Both in 3.13+ (`PyObject_VisitManagedDict`, Objects/dictobject.c).
pub(super) fn owned_by_instance(
    memory: &dyn Memory,
    layout: &PythonLayout,
    at: Addr,
    class: &InstanceClass,
) -> Result<InstanceAttributes, DecodeError> {
    let places = places(memory, layout, at, class)?;
    let values = match (places.dict, places.values, layout.instance.attributes) {
        // Before 3.13 a new dictionary takes over the values.
        (Some(_), _, AttributeLayout::Split { .. } | AttributeLayout::Tagged { .. }) => None,
        (_, values, _) => values,
    };
    let values = match values {
        Some(values) => {
            let cached = memory.pointer(layout.instance.cached_keys.in_target(class.at))?;
            let entries = keyed(memory, layout, cached, Some(values))?.entries;
            entries.into_iter().map(|(_, value)| value).collect()
        }
        None => Vec::new(),
    };
    Ok(InstanceAttributes { dict: places.dict, values })
}

pub(super) fn owned_entries(
    memory: &dyn Memory,
    layout: &PythonLayout,
    dict: Addr,
) -> Result<Vec<(Addr, Addr)>, DecodeError> {
    if matches!(layout.instance.attributes, AttributeLayout::Inline { .. }) {
        let values = memory.pointer(layout.dict.values.in_target(plausible(dict)?))?;
        if values != Addr(0) && memory.bytes::<1>(values + VALUES_EMBEDDED)?[0] != 0 {
            return Ok(Vec::new());
        }
    }
    entries(memory, layout, dict)
}

fn plausible(at: Addr) -> Result<Addr, DecodeError> {
    if at.is_plausible() { Ok(at) } else { Err(DecodeError::Malformed) }
}
