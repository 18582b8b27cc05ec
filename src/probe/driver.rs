//! The driver's allocating and freeing functions (cuda.h).

/// Index of each argument's register in `struct pt_regs`.
const ARGUMENTS: [u8; 5] = [14, 13, 12, 11, 9];
const NONE: u8 = 0xff;

/// `enum arena` and `enum mark` of cuda/probe.h.
const DRIVER: u8 = 1;
const PHYSICAL: u8 = 2;
const MAPPING: u8 = 3;
const MANAGED: u8 = 4;
const PINNED: u8 = 5;
const CONTEXT: u8 = 0;
const MODULE: u8 = 1;
const LIBRARY: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeRole {
    /// Notes arguments at entry, reports the result at return.
    Allocates,
    Frees,
    Marks,
}

#[derive(Debug)]
pub(super) struct DriverFunction {
    pub(super) names: &'static [&'static str],
    pub(super) role: ProbeRole,
    memory_kind: u8,
    /// Argument numbers, as in `struct call` of cuda/driver.bpf.h.
    out: Option<usize>,
    address: Option<usize>,
    size: Option<usize>,
    rows: Option<usize>,
    pitch: Option<usize>,
    property: Option<usize>,
    mark: u8,
}

const BLANK: DriverFunction = DriverFunction {
    names: &[],
    role: ProbeRole::Allocates,
    memory_kind: DRIVER,
    out: None,
    address: None,
    size: None,
    rows: None,
    pitch: None,
    property: None,
    mark: 0,
};
/// `f(address*, bytes, ...)`.
const ALLOCATES: DriverFunction = DriverFunction { out: Some(0), size: Some(1), ..BLANK };
/// `f(address, ...)`.
const FREES: DriverFunction = DriverFunction { role: ProbeRole::Frees, address: Some(0), ..BLANK };
const MARKS: DriverFunction = DriverFunction { role: ProbeRole::Marks, ..BLANK };

/// By exported name: `cuGetProcAddress` returns the same functions.
pub(super) static CALLS: &[DriverFunction] = &[
    DriverFunction { names: &["cuMemAlloc_v2"], ..ALLOCATES },
    DriverFunction {
        names: &["cuMemAllocPitch_v2"],
        pitch: Some(1),
        size: Some(2),
        rows: Some(3),
        ..ALLOCATES
    },
    DriverFunction { names: &["cuMemAllocManaged"], memory_kind: MANAGED, ..ALLOCATES },
    DriverFunction { names: &["cuMemAllocAsync", "cuMemAllocAsync_ptsz"], ..ALLOCATES },
    DriverFunction {
        names: &["cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"],
        ..ALLOCATES
    },
    DriverFunction {
        names: &["cuMemCreate"],
        memory_kind: PHYSICAL,
        property: Some(2),
        ..ALLOCATES
    },
    DriverFunction {
        names: &["cuMemMap"],
        memory_kind: MAPPING,
        address: Some(0),
        size: Some(1),
        ..BLANK
    },
    DriverFunction {
        names: &["cuMemHostAlloc", "cuMemAllocHost_v2"],
        memory_kind: PINNED,
        ..ALLOCATES
    },
    DriverFunction {
        names: &["cuMemHostRegister_v2"],
        memory_kind: PINNED,
        address: Some(0),
        size: Some(1),
        ..BLANK
    },
    DriverFunction { names: &["cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz"], ..FREES },
    DriverFunction { names: &["cuMemRelease"], memory_kind: PHYSICAL, ..FREES },
    DriverFunction { names: &["cuMemUnmap"], memory_kind: MAPPING, ..FREES },
    DriverFunction {
        names: &["cuMemFreeHost", "cuMemHostUnregister"],
        memory_kind: PINNED,
        ..FREES
    },
    DriverFunction {
        names: &["cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuDevicePrimaryCtxRetain"],
        mark: CONTEXT,
        ..MARKS
    },
    DriverFunction {
        names: &["cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary"],
        mark: MODULE,
        ..MARKS
    },
    DriverFunction {
        names: &["cuLibraryLoadData", "cuLibraryLoadFromFile"],
        mark: LIBRARY,
        ..MARKS
    },
];

const MAX_CALLS: usize = 64;

/// Index in `struct pt_regs`; invalid without register.
pub(super) fn register(argument: usize) -> u8 {
    ARGUMENTS.get(argument).copied().unwrap_or(NONE)
}

pub(super) fn table() -> Vec<u8> {
    let register =
        |argument: Option<usize>| argument.and_then(|n| ARGUMENTS.get(n)).copied().unwrap_or(NONE);
    let mut bytes: Vec<u8> = CALLS
        .iter()
        .flat_map(|call| {
            [
                call.memory_kind,
                register(call.out),
                register(call.address),
                register(call.size),
                register(call.rows),
                register(call.pitch),
                register(call.property),
                call.mark | u8::from(call.role == ProbeRole::Marks) << 4,
            ]
        })
        .collect();
    bytes.resize(8 * MAX_CALLS, 0);
    bytes
}
