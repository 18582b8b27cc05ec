//! Names of autograd nodes.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::abi::ObjectHeader;
use crate::target::{Addr, Memory};

const MAX_NAME_LEN: usize = 512;
/// `PyTypeObject.tp_name` (Include/cpython/object.h).
const TYPE_NAME: usize = 24;
const PY_NODE: &str = "N5torch8autograd6PyNodeE";

/// Names of node classes, each read once.
#[derive(Debug, Default)]
pub struct ClassNames {
    head: ObjectHeader,
    by_vtable: FxHashMap<u64, Option<Arc<str>>>,
    by_type: FxHashMap<u64, (Addr, Arc<str>)>,
    py_node: Option<u64>,
}

impl ClassNames {
    /// Python objects begin with `head`.
    pub fn new(head: ObjectHeader) -> ClassNames {
        ClassNames { head, ..ClassNames::default() }
    }

    /// Such as `AddmmBackward0`. `python_type`: that of the node's `THPFunction`, else 0.
    pub fn name(&mut self, memory: &dyn Memory, vtable: u64, python_type: u64) -> Option<Arc<str>> {
        if python_type != 0
            && let Some(name) = self.python_name(memory, python_type)
        {
            return Some(name);
        }
        if let Some(known) = self.by_vtable.get(&vtable) {
            return known.clone();
        }
        let mangled = mangled(memory, vtable);
        if mangled.as_deref() == Some(PY_NODE) {
            self.py_node = Some(vtable);
        }
        let name = mangled.as_deref().and_then(last_component).map(Arc::from);
        self.by_vtable.insert(vtable, name.clone());
        name
    }

    /// vtable of Python nodes, once seen.
    pub fn py_node(&self) -> Option<u64> {
        self.py_node
    }

    /// A new type may reuse a freed one's address; the address of its name differs.
    fn python_name(&mut self, memory: &dyn Memory, class: u64) -> Option<Arc<str>> {
        let at = memory.pointer(Addr(class) + self.head.shift(TYPE_NAME) as u64).ok()?;
        if let Some((known, name)) = self.by_type.get(&class)
            && *known == at
        {
            return Some(name.clone());
        }
        let name: Arc<str> = memory.c_string(at, MAX_NAME_LEN).ok()?.into();
        self.by_type.insert(class, (at, name.clone()));
        Some(name)
    }
}

pub(super) fn class_of_vtable(memory: &dyn Memory, vtable: u64) -> Option<String> {
    last_component(&mangled(memory, vtable)?).map(str::to_owned)
}

/// The `type_info` before a vtable has the name (Itanium C++ ABI). A vector's buffer may look
/// alike, so the vtable must have a function, and the `type_info` a vtable.
fn mangled(memory: &dyn Memory, vtable: u64) -> Option<String> {
    let vtable = Addr(vtable);
    if !vtable.is_plausible() || !vtable.0.is_multiple_of(8) {
        return None;
    }
    let info = memory.pointer(vtable - 8).ok().filter(|info| info.is_plausible())?;
    let name = memory.pointer(info + 8).ok().filter(|name| name.is_plausible())?;
    let leads_on = |at: Addr| memory.pointer(at).is_ok_and(Addr::is_plausible);
    if !leads_on(vtable) || !leads_on(info) {
        return None;
    }
    memory.c_string(name, MAX_NAME_LEN).ok()
}

/// `N5torch8autograd9generated14AddmmBackward0E` → `AddmmBackward0`.
fn last_component(mangled: &str) -> Option<&str> {
    let mut rest = mangled.trim_start_matches('*').trim_start_matches('N');
    let mut last = None;
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return last;
        }
        let (length, after) = rest.split_at(digits);
        last = Some(after.get(..length.parse().ok()?)?);
        rest = after.get(length.parse().ok()?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::LiveMemory;

    #[test]
    fn data_that_resembles_a_vtable_is_refused() {
        let at = |thing: &[u64]| thing.as_ptr() as u64;
        let name = c"N5torch4NodeE";
        let class_info = [at(&[0; 1]), name.as_ptr() as u64];
        let no_info = [3, name.as_ptr() as u64];
        let memory = LiveMemory::new(std::process::id());
        let class = |info: &[u64], function: u64| {
            let table = [0, at(info), function];
            class_of_vtable(&memory, at(&table) + 16)
        };
        assert_eq!(class(&class_info, at(&class_info)).as_deref(), Some("Node"));
        assert_eq!(class(&class_info, 16), None);
        assert_eq!(class(&no_info, at(&class_info)), None);
    }

    #[test]
    fn the_class_is_the_last_component() {
        for (mangled, class) in [
            ("N5torch8autograd9generated14AddmmBackward0E", Some("AddmmBackward0")),
            ("N5torch8autograd14AccumulateGradE", Some("AccumulateGrad")),
            ("6Simple", Some("Simple")),
            ("i", None),
            ("99short", None),
        ] {
            assert_eq!(last_component(mangled), class, "{mangled}");
        }
    }
}
