//! The BPF program: object, constants and maps.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf};
use aya::{Btf, Ebpf, EbpfLoader};
use aya_obj::Object;
use rustc_hash::FxHashMap;

use super::constants::BpfConstants;
use super::error::PlacementError;
use super::plan::{AttachPlan, NATIVE_RING_BYTES};
use super::ring_events::{ProgramTime, RingCounts};
use super::step_counter;
use super::syscall::{self, BPF_TRACE_UPROBE_MULTI};
use crate::abi::CounterAddresses;
use crate::model::ProbeBackend;

/// Compiled from cuda/probe.bpf.c, so that a build needs no clang; a test compiles it anew.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../cuda/probe.bpf.o");
/// Those of a few iterations of a large model.
const FORWARD_NODES: u32 = 262_144;
/// Distance between generations of keys: above the deaths of code objects missed while one begins.
const GENERATION: u64 = 1 << 12;

pub(super) struct BpfPrograms {
    maps: Ebpf,
    object: Object,
    types: OwnedFd,
    attach_type: u32,
    loaded: FxHashMap<&'static str, OwnedFd>,
}

impl BpfPrograms {
    pub(super) fn prepare(
        constants: &BpfConstants,
        plan: &AttachPlan,
        way: ProbeBackend,
    ) -> Result<BpfPrograms, PlacementError> {
        let kernel = Btf::from_sys_fs().map_err(PlacementError::unprepared)?;
        let mut loader = EbpfLoader::new();
        loader.btf(Some(&kernel)).map_max_entries("RING", plan.ring_bytes);
        // The kernel allocates it at once, so only if it is used.
        loader.map_max_entries("FORWARD", if plan.backward_lines { FORWARD_NODES } else { 1 });
        if plan.native_from.is_some() {
            loader.map_max_entries("NATIVE_RING", NATIVE_RING_BYTES);
        }
        for (name, bytes) in constants.iter() {
            loader.override_global(name, bytes, true);
        }
        let maps = loader.load(OBJECT).map_err(|error| PlacementError::Refused {
            action: "create the maps of the kernel program",
            source: std::io::Error::new(kind(&error), chain(&error)),
        })?;
        let (object, types) = relocate(&maps, &kernel)?;
        let attach_type = if way == ProbeBackend::UprobeMulti { BPF_TRACE_UPROBE_MULTI } else { 0 };
        Ok(BpfPrograms { maps, object, types, attach_type, loaded: FxHashMap::default() })
    }

    pub(super) fn load(&mut self, name: &'static str) -> Result<BorrowedFd<'_>, PlacementError> {
        if !self.loaded.contains_key(name) {
            let missing = || PlacementError::unprepared(format!("there is no program {name}"));
            let program = self.object.programs.get(name).ok_or_else(missing)?;
            let function =
                self.object.functions.get(&program.function_key()).ok_or_else(missing)?;
            let fd = syscall::load_program(
                name,
                function,
                &program.license,
                self.types.as_fd(),
                self.attach_type,
            )
            .map_err(|(source, log)| PlacementError::Rejected {
                program: name.to_owned(),
                source,
                log,
            })?;
            self.loaded.insert(name, fd);
        }
        Ok(self.loaded[name].as_fd())
    }

    pub(super) fn take_ring(
        &mut self,
        name: &'static str,
    ) -> Result<RingBuf<MapData>, PlacementError> {
        let map = self.maps.take_map(name).ok_or_else(|| PlacementError::unprepared("no ring"))?;
        RingBuf::try_from(map).map_err(PlacementError::unprepared)
    }

    pub(super) fn counts(&self) -> RingCounts {
        let count = |index: u32| {
            let map = self.maps.map("COUNT")?;
            Array::<_, u64>::try_from(map).ok()?.get(&index, 0).ok()
        };
        RingCounts {
            lost: count(0).unwrap_or_default(),
            lost_descriptions: count(1).unwrap_or_default(),
        }
    }

    /// `None` where the kernel does not say.
    pub(super) fn time(&self) -> Option<ProgramTime> {
        let times = PerCpuArray::<_, [u64; 3]>::try_from(self.maps.map("PROGRAM_TIME")?).ok()?;
        let mut sum = ProgramTime::default();
        for [runs, timed, nanos] in times.get(&0, 0).ok()?.iter() {
            sum.runs += runs;
            sum.timed += timed;
            sum.nanos += nanos;
        }
        Some(sum)
    }

    pub(super) fn set_levels(
        &mut self,
        device: u32,
        at: CounterAddresses,
    ) -> Result<(), PlacementError> {
        let mut bytes = [0u8; 24];
        bytes[..8].copy_from_slice(&at.allocated.to_le_bytes());
        bytes[8..12].copy_from_slice(&at.reserved.to_le_bytes());
        bytes[12..16].copy_from_slice(&at.active.to_le_bytes());
        bytes[16..].copy_from_slice(&at.blocks.unwrap_or(0).to_le_bytes());
        let map =
            self.maps.map_mut("LEVELS").ok_or_else(|| PlacementError::unprepared("no levels"))?;
        let mut levels = Array::<_, [u8; 24]>::try_from(map).map_err(PlacementError::unprepared)?;
        levels.set(device, bytes, 0).map_err(PlacementError::unprepared)
    }

    /// `half` is the unused set of words.
    pub(super) fn watch(
        &mut self,
        half: u32,
        bytes: [u8; step_counter::LEN],
    ) -> Result<(), PlacementError> {
        let no_map = || PlacementError::unprepared("nothing can be watched");
        let map = self.maps.map_mut("WATCHING").ok_or_else(no_map)?;
        let mut places = Array::<_, [u8; step_counter::LEN]>::try_from(map)
            .map_err(PlacementError::unprepared)?;
        places.set(half, bytes, 0).map_err(PlacementError::unprepared)?;
        let map = self.maps.map_mut("WATCHING_NOW").ok_or_else(no_map)?;
        let mut now = Array::<_, u32>::try_from(map).map_err(PlacementError::unprepared)?;
        now.set(0, half, 0).map_err(PlacementError::unprepared)
    }

    pub(super) fn renew_keys(&mut self) -> Result<(), PlacementError> {
        let no_map = || PlacementError::unprepared("no generation of keys");
        let map = self.maps.map_mut("GENERATION").ok_or_else(no_map)?;
        let mut generation = Array::<_, u64>::try_from(map).map_err(PlacementError::unprepared)?;
        let now = generation.get(&0, 0).map_err(PlacementError::unprepared)?;
        // The program counts deaths of code objects here; the distance covers one during the call.
        generation.set(0, now + GENERATION, 0).map_err(PlacementError::unprepared)
    }

    pub(super) fn forget_codes(&mut self, codes: &[u64]) -> Result<(), PlacementError> {
        let map =
            self.maps.map_mut("CODES").ok_or_else(|| PlacementError::unprepared("no codes"))?;
        let mut known = HashMap::<_, u64, u8>::try_from(map).map_err(PlacementError::unprepared)?;
        for code in codes {
            // A dead one was removed already.
            let _ = known.remove(code);
        }
        Ok(())
    }

    pub(super) fn set_py_node(&mut self, vtable: u64) -> Result<(), PlacementError> {
        let map =
            self.maps.map_mut("PY_NODE").ok_or_else(|| PlacementError::unprepared("no node"))?;
        let mut known = Array::<_, u64>::try_from(map).map_err(PlacementError::unprepared)?;
        known.set(0, vtable, 0).map_err(PlacementError::unprepared)
    }

    pub(super) fn set_module_calls(&mut self, codes: [u64; 2]) -> Result<(), PlacementError> {
        let no_map = || PlacementError::unprepared("no calls of modules");
        let map = self.maps.map_mut("CALLS_MODULE").ok_or_else(no_map)?;
        let mut known = Array::<_, [u64; 2]>::try_from(map).map_err(PlacementError::unprepared)?;
        // No code object is at 1.
        let codes = codes.map(|code| code.max(1));
        known.set(0, codes, 0).map_err(PlacementError::unprepared)
    }
}

/// A second object with the first one's maps: aya loads programs without the attach type of
/// uprobe_multi.
fn relocate(maps: &Ebpf, kernel: &Btf) -> Result<(Object, OwnedFd), PlacementError> {
    let mut object = Object::parse(OBJECT).map_err(PlacementError::unprepared)?;
    let features = aya::features().btf();
    let features = features
        .ok_or_else(|| PlacementError::unprepared("this kernel takes no type information"))?;
    let types = object
        .fixup_and_sanitize_btf(features)
        .map_err(PlacementError::unprepared)?
        .ok_or_else(|| PlacementError::unprepared("it has no type information"))?
        .to_bytes();
    let types =
        syscall::load_btf(&types).map_err(PlacementError::refused("take type information"))?;
    object.relocate_btf(kernel).map_err(PlacementError::unprepared)?;
    let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let wanted = std::mem::take(&mut object.maps);
    let mut bound = Vec::new();
    for (name, map) in &wanted {
        let created = maps.maps().find(|(known, _)| known == name).and_then(|(_, map)| fd(map));
        let created = created
            .ok_or_else(|| PlacementError::unprepared(format!("its map {name} was not created")))?;
        bound.push((name.as_str(), created, map));
    }
    object.relocate_maps(bound.into_iter(), &text).map_err(PlacementError::unprepared)?;
    object.relocate_calls(&text).map_err(PlacementError::unprepared)?;
    Ok((object, types))
}

fn fd(map: &Map) -> Option<i32> {
    match map {
        Map::Array(m)
        | Map::HashMap(m)
        | Map::LruHashMap(m)
        | Map::PerCpuArray(m)
        | Map::RingBuf(m) => Some(m.fd().as_fd().as_raw_fd()),
        _ => None,
    }
}

fn kind(error: &(dyn std::error::Error + 'static)) -> std::io::ErrorKind {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(system) = error.downcast_ref::<std::io::Error>() {
            return system.kind();
        }
        cause = error.source();
    }
    std::io::ErrorKind::Other
}

/// With all causes, unlike aya's own text.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            // `failed to create map X: not permitted` includes `failed to create map X`.
            match text.rfind(": ").filter(|at| said.starts_with(&text[at + 2..])) {
                Some(at) => text.truncate(at + 2),
                None => text.push_str(": "),
            }
            text.push_str(&said);
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("map error: failed to create map `FORWARD`")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("failed to create map `FORWARD`: {0}")]
    struct Inner(#[source] io::Error);

    #[test]
    fn a_cause_is_printed_once() {
        let denied = io::Error::from_raw_os_error(1);
        let text = chain(&Outer(Inner(denied)));
        assert_eq!(
            text,
            "map error: failed to create map `FORWARD`: Operation not permitted (os error 1)"
        );
    }
}
