//! What the kernel says of one thread, asked often: the files stay open.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::Process;
use crate::target::kernel_wait::KernelWait;

/// Longer than what either file holds.
const MAX_TEXT: usize = 256;

/// How long a thread has run, has waited for a processor, and how often it was given one (`schedstat`).
///
/// The last of these grows whenever it comes back to a processor. So a thread that was off the processor at some moment behind
/// one reading has not run between that moment and a second reading that says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadTurns([u64; 3]);

/// One thread of a process.
#[derive(Debug)]
pub struct ThreadWatch {
    turns: File,
    call: File,
}

impl ThreadWatch {
    /// Of thread `id` of `process`, counted in memspy's pid namespace. `None` when there is no such thread (any more), or the kernel
    /// does not tell.
    pub fn open(process: &Process, id: u32) -> Option<ThreadWatch> {
        process.live()?;
        let open = |name| File::open(format!("/proc/{}/task/{id}/{name}", process.pid)).ok();
        Some(ThreadWatch { turns: open("schedstat")?, call: open("syscall")? })
    }

    /// How often it has run so far.
    pub fn turns(&self) -> Option<ThreadTurns> {
        let mut text = [0; MAX_TEXT];
        let mut numbers = read(&self.turns, &mut text)?.split_ascii_whitespace();
        let mut next = || numbers.next()?.parse().ok();
        let turns = [next()?, next()?, next()?];
        // A kernel that does not count says 0.
        (turns[2] > 0).then_some(ThreadTurns(turns))
    }

    /// What it waits for. The kernel tells of a system call only where the thread is off the processor all the while it looks.
    pub fn wait(&self) -> Option<KernelWait> {
        let mut text = [0; MAX_TEXT];
        KernelWait::parse(read(&self.call, &mut text)?)
    }
}

fn read<'t>(file: &File, text: &'t mut [u8]) -> Option<&'t str> {
    let len = file.read_at(text, 0).ok()?;
    std::str::from_utf8(text.get(..len)?).ok()
}
