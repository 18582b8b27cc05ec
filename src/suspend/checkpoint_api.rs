//! The driver's checkpoint calls (CUDA driver API, "CUDA Checkpointing", driver 570 and newer).
//!
//! cudarc lacks them and looks for `libcuda.so` first, which may be a toolkit's stub.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::time::Duration;

use cudarc::driver::sys::{CUcheckpointLockArgs, CUprocessState, CUresult};
use libloading::Library;

/// Only the driver has this name.
const LIBRARY: &str = "libcuda.so.1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CudaState {
    Running,
    /// Memory is on the devices.
    Locked,
    /// Memory is on the host.
    Checkpointed,
    Failed,
    /// Between two states (newer drivers), or unknown: its number.
    Other(u32),
}

/// Why a checkpoint call failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CheckpointError {
    #[error("the CUDA driver ({LIBRARY}) cannot be loaded: {why}")]
    NoDriver { why: String },
    #[error("the CUDA driver has no {call}: it is older than 570")]
    TooOld { call: &'static str },
    #[error("the CUDA work of process {pid} did not finish within {} s", after.as_secs_f64())]
    TimedOut { pid: u32, after: Duration },
    #[error("the CUDA driver cannot {action} process {pid}: {name} ({code})")]
    Refused { action: &'static str, pid: u32, code: u32, name: String },
}

impl CheckpointError {
    fn is(&self, results: &[CUresult]) -> bool {
        let of = |code: u32| results.iter().any(|result| *result as u32 == code);
        matches!(self, CheckpointError::Refused { code, .. } if of(*code))
    }

    /// Whether rights are lacking.
    pub fn is_denied(&self) -> bool {
        self.is(&[
            CUresult::CUDA_ERROR_NOT_PERMITTED,
            CUresult::CUDA_ERROR_OPERATING_SYSTEM,
            CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
        ])
    }

    /// Whether the driver cannot checkpoint such a process.
    pub fn is_unsupported(&self) -> bool {
        self.is(&[CUresult::CUDA_ERROR_NOT_SUPPORTED])
    }

    /// Whether memory was insufficient.
    pub fn is_out_of_memory(&self) -> bool {
        self.is(&[CUresult::CUDA_ERROR_OUT_OF_MEMORY])
    }

    /// Whether the driver sees no CUDA in the process.
    pub fn is_no_cuda(&self) -> bool {
        self.is(&[
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_INVALID_CONTEXT,
            CUresult::CUDA_ERROR_NOT_FOUND,
        ])
    }
}

type InitFn = unsafe extern "C" fn(flags: c_uint) -> c_uint;
type NameFn = unsafe extern "C" fn(code: c_uint, name: *mut *const c_char) -> c_uint;
type StateFn = unsafe extern "C" fn(pid: c_int, state: *mut c_uint) -> c_uint;
type CheckpointFn = unsafe extern "C" fn(pid: c_int, args: *mut c_void) -> c_uint;

/// They create no CUDA context.
pub(super) struct CheckpointApi {
    error_name: NameFn,
    get_state: StateFn,
    lock: CheckpointFn,
    checkpoint: CheckpointFn,
    restore: CheckpointFn,
    unlock: CheckpointFn,
    _library: Library,
}

impl CheckpointApi {
    /// Initialises the driver, which takes seconds if GPUs sleep.
    pub(super) fn load() -> Result<CheckpointApi, CheckpointError> {
        // Safety: the driver's library may be loaded into any process.
        let library = unsafe { Library::new(LIBRARY) }
            .map_err(|e| CheckpointError::NoDriver { why: e.to_string() })?;
        // Safety: the types are those of cuda.h; cudarc has the same layouts of their arguments.
        let (init, calls) = unsafe {
            let init: InitFn = call(&library, "cuInit")?;
            let calls = CheckpointApi {
                error_name: call(&library, "cuGetErrorName")?,
                get_state: call(&library, "cuCheckpointProcessGetState")?,
                lock: call(&library, "cuCheckpointProcessLock")?,
                checkpoint: call(&library, "cuCheckpointProcessCheckpoint")?,
                restore: call(&library, "cuCheckpointProcessRestore")?,
                unlock: call(&library, "cuCheckpointProcessUnlock")?,
                _library: library,
            };
            (init, calls)
        };
        // Safety: cuInit(0) may be called at any time.
        let code = unsafe { init(0) };
        if code != CUresult::CUDA_SUCCESS as u32 {
            let why = format!("cuInit says {}", calls.name(code));
            return Err(CheckpointError::NoDriver { why });
        }
        Ok(calls)
    }

    pub(super) fn state(&self, pid: u32) -> Result<CudaState, CheckpointError> {
        let mut state = u32::MAX;
        // Safety: the driver writes one enumeration value of 4 bytes.
        let code = unsafe { (self.get_state)(pid as c_int, &mut state) };
        self.result("tell the state of", pid, code)?;
        let is = |known: CUprocessState| state == known as u32;
        Ok(if is(CUprocessState::CU_PROCESS_STATE_RUNNING) {
            CudaState::Running
        } else if is(CUprocessState::CU_PROCESS_STATE_LOCKED) {
            CudaState::Locked
        } else if is(CUprocessState::CU_PROCESS_STATE_CHECKPOINTED) {
            CudaState::Checkpointed
        } else if is(CUprocessState::CU_PROCESS_STATE_FAILED) {
            CudaState::Failed
        } else {
            CudaState::Other(state)
        })
    }

    /// Running → locked: new CUDA calls wait; current ones and kernels end first. If they take
    /// longer than `timeout` (whole milliseconds, at least one), the process runs on.
    pub(super) fn lock(&self, pid: u32, timeout: Duration) -> Result<(), CheckpointError> {
        let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        let mut args =
            CUcheckpointLockArgs { timeoutMs: milliseconds, reserved0: 0, reserved1: [0; 7] };
        // Safety: the arguments outlive the call.
        let code = unsafe { (self.lock)(pid as c_int, (&raw mut args).cast()) };
        if code == CUresult::CUDA_ERROR_NOT_READY as u32
            || code == CUresult::CUDA_ERROR_TIMEOUT as u32
        {
            return Err(CheckpointError::TimedOut { pid, after: timeout });
        }
        self.result("lock", pid, code)
    }

    /// Locked → checkpointed: device memory moves to the host.
    pub(super) fn checkpoint(&self, pid: u32) -> Result<(), CheckpointError> {
        self.step(self.checkpoint, "move to the host the device memory of", pid)
    }

    /// Checkpointed → locked: memory moves back, to the same devices and addresses.
    pub(super) fn restore(&self, pid: u32) -> Result<(), CheckpointError> {
        self.step(self.restore, "move back the device memory of", pid)
    }

    /// Locked → running.
    pub(super) fn unlock(&self, pid: u32) -> Result<(), CheckpointError> {
        self.step(self.unlock, "unlock", pid)
    }

    fn step(
        &self,
        call: CheckpointFn,
        action: &'static str,
        pid: u32,
    ) -> Result<(), CheckpointError> {
        // Safety: all arguments are optional, and their layout differs between CUDA versions.
        let code = unsafe { call(pid as c_int, std::ptr::null_mut()) };
        self.result(action, pid, code)
    }

    fn result(&self, action: &'static str, pid: u32, code: u32) -> Result<(), CheckpointError> {
        if code == CUresult::CUDA_SUCCESS as u32 {
            return Ok(());
        }
        Err(CheckpointError::Refused { action, pid, code, name: self.name(code) })
    }

    fn name(&self, code: u32) -> String {
        let mut name = std::ptr::null();
        // Safety: the driver writes a pointer to text that it keeps, or leaves NULL.
        let text = unsafe {
            (self.error_name)(code, &mut name);
            (!name.is_null()).then(|| CStr::from_ptr(name))
        };
        text.map_or_else(|| format!("error {code}"), |text| text.to_string_lossy().into_owned())
    }
}

/// # Safety
/// `F` must be the type of function `name`.
unsafe fn call<F: Copy>(library: &Library, name: &'static str) -> Result<F, CheckpointError> {
    // Safety: the caller's promise.
    let symbol = unsafe { library.get::<F>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|_| CheckpointError::TooOld { call: name })
}
