//! System calls that crates lack.
//!
//! aya 0.14 cannot load a program for `BPF_TRACE_UPROBE_MULTI` or name the semaphore of a USDT
//! site.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use aya_obj::Function;
use aya_obj::generated::bpf_insn;
use nix::libc;

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_BTF_LOAD: libc::c_long = 18;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_PERF_EVENT: u32 = 41;
pub(super) const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;
const LOG: usize = 1 << 20;

/// `union bpf_attr` for BPF_PROG_LOAD, up to `attach_btf_id` (linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
    btf: u32,
    function_record: u32,
    functions: u64,
    function_count: u32,
    line_record: u32,
    lines: u64,
    line_count: u32,
    attach_btf_id: u32,
}

/// `union bpf_attr` for BPF_BTF_LOAD.
#[repr(C)]
#[derive(Default)]
struct BtfAttributes {
    btf: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    log_true_size: u32,
}

/// `union bpf_attr` for BPF_LINK_CREATE with uprobe_multi.
#[repr(C)]
#[derive(Default)]
struct MultiAttributes {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    semaphores: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    unused: u32,
}

/// `union bpf_attr` for BPF_LINK_CREATE with a perf event.
#[repr(C)]
#[derive(Default)]
struct PerfAttributes {
    program: u32,
    event: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
    unused: [u64; 4],
}

fn bpf<A>(command: libc::c_long, attributes: &A) -> io::Result<OwnedFd> {
    // SAFETY: `attributes` is a plain `repr(C)` structure of the size given; callers keep the
    // slices behind its pointers alive over the call; the kernel checks everything else.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<A>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn pointer<T>(slice: &[T]) -> u64 {
    slice.as_ptr() as u64
}

pub(super) fn load_btf(bytes: &[u8]) -> io::Result<OwnedFd> {
    let attributes =
        BtfAttributes { btf: pointer(bytes), size: bytes.len() as u32, ..Default::default() };
    bpf(BPF_BTF_LOAD, &attributes)
}

/// `attach_type` 0: perf events. An error has the end of the verifier's log.
pub(super) fn load_program(
    name: &str,
    function: &Function,
    license: &CStr,
    btf: BorrowedFd<'_>,
    attach_type: u32,
) -> Result<OwnedFd, (io::Error, String)> {
    let instructions: &[bpf_insn] = &function.instructions;
    let functions = function.func_info.func_info_bytes();
    let lines = function.line_info.line_info_bytes();
    let mut attributes = LoadAttributes {
        program_type: BPF_PROG_TYPE_KPROBE,
        instruction_count: instructions.len() as u32,
        instructions: pointer(instructions),
        license: license.as_ptr() as u64,
        attach_type,
        btf: btf.as_raw_fd() as u32,
        function_record: function.func_info_rec_size as u32,
        functions: pointer(&functions),
        function_count: function.func_info.len() as u32,
        line_record: function.line_info_rec_size as u32,
        lines: pointer(&lines),
        line_count: function.line_info.len() as u32,
        ..Default::default()
    };
    for (to, from) in attributes.name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    bpf(BPF_PROG_LOAD, &attributes).or_else(|_| {
        let mut log = vec![0u8; LOG];
        attributes.log_level = 1;
        attributes.log_size = log.len() as u32;
        attributes.log = log.as_mut_ptr() as u64;
        bpf(BPF_PROG_LOAD, &attributes).map_err(|again| {
            let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
            let text = String::from_utf8_lossy(&log[..end]);
            let last: Vec<&str> = text.lines().rev().take(6).collect();
            (again, last.into_iter().rev().collect::<Vec<_>>().join(" | "))
        })
    })
}

/// File offsets of the instruction and of the semaphore (0: none), and the program's cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProbePoint {
    pub(super) offset: u64,
    pub(super) semaphore: u64,
    pub(super) cookie: u64,
}

/// Links all threads of `pid`; with `at_return`, when the function that begins there returns. Lasts
/// as long as the descriptor.
pub(super) fn link_uprobes(
    program: BorrowedFd<'_>,
    path: &CStr,
    points: &[ProbePoint],
    pid: u32,
    at_return: bool,
) -> io::Result<OwnedFd> {
    let column = |of: fn(&ProbePoint) -> u64| points.iter().map(of).collect::<Vec<u64>>();
    let offsets = column(|p| p.offset);
    let semaphores = column(|p| p.semaphore);
    let cookies = column(|p| p.cookie);
    let switched = semaphores.iter().any(|&s| s != 0);
    bpf(
        BPF_LINK_CREATE,
        &MultiAttributes {
            program: program.as_raw_fd() as u32,
            attach_type: BPF_TRACE_UPROBE_MULTI,
            path: path.as_ptr() as u64,
            offsets: pointer(&offsets),
            semaphores: if switched { pointer(&semaphores) } else { 0 },
            cookies: pointer(&cookies),
            count: points.len() as u32,
            multi_flags: if at_return { BPF_F_UPROBE_MULTI_RETURN } else { 0 },
            pid,
            ..Default::default()
        },
    )
}

pub(super) fn link_perf_event(
    program: BorrowedFd<'_>,
    event: &impl AsRawFd,
    cookie: u64,
) -> io::Result<OwnedFd> {
    bpf(
        BPF_LINK_CREATE,
        &PerfAttributes {
            program: program.as_raw_fd() as u32,
            event: event.as_raw_fd() as u32,
            attach_type: BPF_PERF_EVENT,
            cookie,
            ..Default::default()
        },
    )
}

pub(super) fn owned(from: impl IntoRawFd) -> OwnedFd {
    // SAFETY: `into_raw_fd` hands over an open descriptor that nothing else owns any more.
    unsafe { OwnedFd::from_raw_fd(from.into_raw_fd()) }
}

pub(super) fn replace(of: &mut impl AsRawFd, event: OwnedFd) -> io::Result<()> {
    // SAFETY: both are open. The number of `of` stays its own and open; dup3 changes in one step
    // what it refers to.
    match unsafe { libc::dup3(event.as_raw_fd(), of.as_raw_fd(), libc::O_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Except the standard streams. Call it before opening anything.
pub(super) fn close_inherited() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: nothing in this program owns one of these descriptors yet. Before Linux 5.9 the call
    // is unknown, and they stay open.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
}
