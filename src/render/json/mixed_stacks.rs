//! The JSON of stacks with frames of compiled code: `memspy dump --native --json`.

use serde::{Deserialize, Serialize};

/// What `--native` adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NativeJson {
    /// For how long the process was stopped while its stacks were copied, in seconds; `null` for a
    /// core file.
    pub stopped_seconds: Option<f64>,
    /// Why nothing is known of frames of compiled code; `null` where it is.
    pub unknown_because: Option<String>,
    /// The threads that run no Python.
    pub other_threads: Vec<NativeThreadJson>,
}

/// A thread without Python.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NativeThreadJson {
    /// Its thread id in the operating system.
    pub os_id: u64,
    /// The kernel's name of it; `null` where it is not known.
    pub name: Option<String>,
    /// Its stack.
    pub stack: MixedStackJson,
}

/// A stack with frames of compiled code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MixedStackJson {
    /// Its frames, from the innermost to the outermost.
    pub frames: Vec<MixedFrameJson>,
    /// Why Python's frames, which all stand behind the native ones then, are not in their places;
    /// `null` where they are.
    pub apart_because: Option<String>,
    /// Why native frames are missing at the outer end; `null` where none are.
    pub incomplete_because: Option<String>,
}

/// A frame of Python or of compiled code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MixedFrameJson {
    /// `python` or `native`.
    pub kind: String,
    /// The function; `null` where it is not known.
    pub function: Option<String>,
    /// Of Python: the path of its file.
    pub file: Option<String>,
    /// Of Python: the line.
    pub line: Option<u32>,
    /// Of compiled code: the name of the library's or program's file.
    pub module: Option<String>,
    /// Of compiled code: the address, by the addresses of that file.
    pub address: Option<u64>,
}
