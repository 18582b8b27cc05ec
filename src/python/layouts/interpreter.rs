//! Finds CPython in a process: runtime, version, layout.

use crate::python::error::InterpreterError;
use crate::python::layouts::debug_offsets;
use crate::python::layouts::layout::{LayoutSource, PythonLayout};
use crate::python::layouts::layout_tables::{ROWS, row};
use crate::target::{
    Addr, LoadedObject, Mapping, Mappings, Memory, MemoryError, ObjectError, Process, ProcessError,
};

const MAX_OBJECTS: usize = 4096;
const MAX_SEARCHED_BYTES: usize = 8 << 20;

#[derive(Debug, Clone)]
pub(in crate::python) struct Interpreter {
    pub(in crate::python) runtime: Addr,
    pub(in crate::python) code_type: Option<Addr>,
    /// `3.12.1`, `3.14.4t` without a GIL; `3.9` if the patch release is unknown.
    pub(in crate::python) version: String,
    pub(in crate::python) layout: PythonLayout,
    pub(in crate::python) source: LayoutSource,
}

pub(in crate::python) fn find(
    process: &Process,
    memory: &dyn Memory,
) -> Result<Interpreter, InterpreterError> {
    let pid = process.pid();
    let mappings = process.mappings()?;
    let (object, runtime) = match runtime(process, memory, &mappings)? {
        Some(found) => found,
        None => return Err(without_runtime(process, memory, &mappings)),
    };
    let code_type = object.exported(memory, "PyCode_Type")?;

    let head = memory
        .vec(runtime, debug_offsets::LEN)
        .map_err(|e| InterpreterError::unreadable(pid, "_PyRuntime", runtime, e))?;
    let version = match version_hex(pid, memory, &object, &head)? {
        Some(0) => {
            return Err(InterpreterError::NotReady { pid, waiting_for: "its version is not set" });
        }
        Some(hex) => PythonVersion::from_hex(hex),
        None => PythonVersion::from_memory(memory, &mappings, &object)
            .or_else(|| PythonVersion::from_name(object.mapping().file_name()?))
            .ok_or_else(|| unknown("without a version".to_owned()))?,
    };
    let usual = match (version.major, row(version.minor, false)) {
        (3, Some(row)) => row,
        _ => return Err(unknown(version.text)),
    };
    let free_threaded = usual.debug_offsets.is_some_and(|at| {
        debug_offsets::version(&head).is_some() && debug_offsets::free_threaded(&head, &at)
    });
    let row = row(version.minor, free_threaded).ok_or_else(|| InterpreterError::Unsupported {
        version: version.text.clone(),
        what: "a free-threaded build",
    })?;
    let version = match free_threaded {
        true => PythonVersion { text: format!("{}t", version.text), ..version },
        false => version,
    };
    let (layout, source) = match row.debug_offsets {
        Some(at) if debug_offsets::version(&head).is_some() => {
            let layout = debug_offsets::overlay(row, &at, &head).map_err(|offset| {
                InterpreterError::LayoutMismatch {
                    version: version.text.clone(),
                    why: format!("_Py_DebugOffsets.{offset} cannot be right"),
                }
            })?;
            (layout, LayoutSource::DebugOffsets)
        }
        _ => (*row, LayoutSource::Row),
    };
    Ok(Interpreter { runtime, code_type, version: version.text, layout, source })
}

fn version_hex(
    pid: u32,
    memory: &dyn Memory,
    object: &LoadedObject,
    head: &[u8],
) -> Result<Option<u32>, InterpreterError> {
    if let Some(hex) = debug_offsets::version(head) {
        return Ok(Some(hex));
    }
    let Some(at) = object.exported(memory, "Py_Version")? else { return Ok(None) };
    let hex = memory.u32(at);
    hex.map(Some).map_err(|e| InterpreterError::unreadable(pid, "Py_Version", at, e))
}

pub(in crate::python) fn unknown(found: String) -> InterpreterError {
    let name = |row: &&PythonLayout| {
        format!("3.{}{}", row.minor, if row.free_threaded { "t" } else { "" })
    };
    let known: Vec<String> = ROWS.iter().map(name).collect();
    InterpreterError::UnknownVersion { found, known: known.join(", ") }
}

/// Any library may embed Python.
fn runtime(
    process: &Process,
    memory: &dyn Memory,
    mappings: &Mappings,
) -> Result<Option<(LoadedObject, Addr)>, InterpreterError> {
    let program = process.program().ok();
    let rank = |mapping: &Mapping| match mapping.file_name() {
        Some(name) if name.starts_with("libpython") => 0,
        _ if mapping.path == program => 1,
        _ => 2,
    };
    let mut objects: Vec<&Mapping> = mappings
        .iter()
        .filter(|m| m.offset == 0 && m.readable && m.path.is_some())
        .take(MAX_OBJECTS)
        .collect();
    objects.sort_by_key(|m| (rank(m), m.start));
    for mapping in objects {
        let object = match LoadedObject::read(memory, mapping) {
            Ok(object) => object,
            // Reading mappings needs fewer rights (CAP_PERFMON).
            Err(ObjectError::Memory { source: MemoryError::Denied, .. }) => {
                return Err(InterpreterError::Denied { pid: process.pid() });
            }
            // Many mapped files are not ELF objects.
            Err(_) => continue,
        };
        if let Ok(Some(addr)) = object.exported(memory, "_PyRuntime") {
            return Ok(Some((object, addr)));
        }
        // All files' symbol tables would take seconds.
        if rank(mapping) < 2
            && let Ok(addr) = object.symbol(process, memory, "_PyRuntime")
        {
            return Ok(Some((object, addr)));
        }
    }
    match process.is_alive() {
        true => Ok(None),
        false => Err(ProcessError::Exited { pid: process.pid() }.into()),
    }
}

fn without_runtime(
    process: &Process,
    memory: &dyn Memory,
    mappings: &Mappings,
) -> InterpreterError {
    let pid = process.pid();
    let program = process.program().map(|p| p.display().to_string()).unwrap_or_default();
    let library = mappings
        .object(|name| name.starts_with("libpython"))
        .and_then(|m| Some((m, PythonVersion::from_name(m.file_name()?)?)));
    if let Some((mapping, version)) = library
        && LoadedObject::read(memory, mapping).is_ok()
    {
        return unknown(version.text);
    }
    let name = program.rsplit('/').next().unwrap_or_default();
    if name.starts_with("python") {
        return InterpreterError::NotReady { pid, waiting_for: "its library is not loaded" };
    }
    InterpreterError::NotPython { pid, program }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PythonVersion {
    major: u8,
    minor: u8,
    text: String,
}

impl PythonVersion {
    /// `PY_VERSION_HEX` (Include/patchlevel.h).
    fn from_hex(hex: u32) -> PythonVersion {
        let [stage, micro, minor, major] = hex.to_le_bytes();
        let mut text = format!("{major}.{minor}.{micro}");
        match stage >> 4 {
            0xa => text.push_str(&format!("a{}", stage & 15)),
            0xb => text.push_str(&format!("b{}", stage & 15)),
            0xc => text.push_str(&format!("rc{}", stage & 15)),
            _ => {}
        }
        PythonVersion { major, minor, text }
    }

    /// `libpython3.9.so.1.0`, `python3.9`.
    fn from_name(name: &str) -> Option<PythonVersion> {
        let rest = &name[name.find("python")? + "python".len()..];
        let (major, rest) = rest.split_once('.')?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (major, minor) = (major.parse().ok()?, rest[..digits].parse().ok()?);
        Some(PythonVersion { major, minor, text: format!("{major}.{minor}") })
    }

    /// The text of `Py_GetVersion` (Python/getversion.c).
    fn from_memory(
        memory: &dyn Memory,
        mappings: &Mappings,
        object: &LoadedObject,
    ) -> Option<PythonVersion> {
        mappings.iter().filter(|m| m.writable && m.readable && object.contains(m.start)).find_map(
            |m| {
                let len = ((m.end.0 - m.start.0) as usize).min(MAX_SEARCHED_BYTES);
                PythonVersion::in_bytes(&memory.vec(m.start, len).ok()?)
            },
        )
    }

    /// A text like `3.9.18 (main, Aug 24 2023, …`.
    fn in_bytes(bytes: &[u8]) -> Option<PythonVersion> {
        bytes.windows(2).enumerate().filter(|(_, pair)| *pair == b"3.").find_map(|(at, _)| {
            let end = bytes.len().min(at + 24);
            let text = bytes.get(at..end)?;
            let text = &text[..text.windows(2).position(|pair| pair == b" (")?];
            let text = std::str::from_utf8(text).ok()?;
            let (minor, patch) = text.strip_prefix("3.")?.split_once('.')?;
            let minor = minor.parse().ok()?;
            patch.starts_with(|c: char| c.is_ascii_digit()).then(|| PythonVersion {
                major: 3,
                minor,
                text: text.trim_end_matches('+').to_owned(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_numbers_names_and_memory() {
        assert_eq!(PythonVersion::from_hex(0x030c_01f0).text, "3.12.1");
        assert_eq!(PythonVersion::from_hex(0x030e_00b2).text, "3.14.0b2");
        let from_name = |name| PythonVersion::from_name(name).map(|v| v.text);
        assert_eq!(from_name("libpython3.10.so.1.0").as_deref(), Some("3.10"));
        assert_eq!(from_name("python3.9").as_deref(), Some("3.9"));
        assert_eq!(from_name("python3"), None);
        let found =
            PythonVersion::in_bytes(b"\0\x003.1 (x) 3.9.18 (main, Aug 24 2023, 13:18:16) \0");
        assert_eq!(found.unwrap().text, "3.9.18");
        assert_eq!(PythonVersion::in_bytes(b"3.9.18"), None);
    }

    #[test]
    fn a_program_without_python_is_named() {
        let own = Process::open(std::process::id()).unwrap();
        match find(&own, &own.memory()) {
            Err(InterpreterError::NotPython { program, .. }) => assert!(program.contains("memspy")),
            other => panic!("{other:?}"),
        }
    }
}
