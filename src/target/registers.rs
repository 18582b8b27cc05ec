//! Registers of a thread that is stopped or in a core file.

use super::process::Process;

/// Index in x86-64 `struct user_regs_struct` (<sys/user.h>) by DWARF number (System V ABI, 3.6.2):
/// rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, instruction pointer.
const PLACES: [usize; DWARF_REGISTERS] = [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16];
/// For unwinding x86-64.
pub const DWARF_REGISTERS: usize = 17;

/// A thread's general registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadRegisters {
    /// In memspy's pid namespace; in a core file as the process saw it.
    pub thread: u32,
    /// By DWARF number: 7 stack pointer, 16 instruction pointer.
    pub values: [u64; DWARF_REGISTERS],
}

impl ThreadRegisters {
    fn of_words(thread: u32, words: &[u64]) -> Option<ThreadRegisters> {
        let mut values = [0; DWARF_REGISTERS];
        for (value, place) in values.iter_mut().zip(PLACES) {
            *value = *words.get(place)?;
        }
        Some(ThreadRegisters { thread, values })
    }

    /// The calling memspy thread must have stopped it.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of_stopped(thread: i32) -> Option<ThreadRegisters> {
        let it = nix::sys::ptrace::getregs(nix::unistd::Pid::from_raw(thread)).ok()?;
        let words = [
            it.r15,
            it.r14,
            it.r13,
            it.r12,
            it.rbp,
            it.rbx,
            it.r11,
            it.r10,
            it.r9,
            it.r8,
            it.rax,
            it.rcx,
            it.rdx,
            it.rsi,
            it.rdi,
            it.orig_rax,
            it.rip,
            it.cs,
            it.eflags,
            it.rsp,
        ];
        ThreadRegisters::of_words(thread as u32, &words)
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn of_stopped(_: i32) -> Option<ThreadRegisters> {
        None
    }
}

impl Process {
    /// Of a core file (x86-64).
    pub fn core_registers(&self) -> Vec<ThreadRegisters> {
        let threads = self.core().map(|core| core.threads()).unwrap_or_default();
        let of =
            |it: &super::core_file::CoreThread| ThreadRegisters::of_words(it.id, &it.registers);
        threads.iter().filter_map(of).collect()
    }
}
