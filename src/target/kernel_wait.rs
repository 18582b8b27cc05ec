//! What a thread waits for, by the system call that the kernel says it is in.

/// `nanosleep`, `clock_nanosleep` (arch/x86/entry/syscalls/syscall_64.tbl).
#[cfg(target_arch = "x86_64")]
const SLEEPS: &[&str] = &["35", "230"];
/// `select`, `pselect6`: CPython before 3.11 sleeps in one that waits for no file.
#[cfg(target_arch = "x86_64")]
const SELECTS: &[&str] = &["23", "270"];
/// `read`, `poll`, `accept`, `recvfrom`, `recvmsg`, `wait4`, `epoll_wait`, `waitid`, `ppoll`, `epoll_pwait`, `accept4`.
#[cfg(target_arch = "x86_64")]
const OTHERS: &[&str] = &["0", "7", "43", "45", "47", "61", "232", "247", "271", "281", "288"];
/// `mmap`, `mprotect`, `munmap`, `brk`, `ioctl`, `mremap`, `madvise`: what `cudaMalloc` does in the kernel.
#[cfg(target_arch = "x86_64")]
const WORK: &[&str] = &["9", "10", "11", "12", "16", "25", "28"];

/// `nanosleep`, `clock_nanosleep` (include/uapi/asm-generic/unistd.h).
#[cfg(not(target_arch = "x86_64"))]
const SLEEPS: &[&str] = &["101", "115"];
/// `pselect6`.
#[cfg(not(target_arch = "x86_64"))]
const SELECTS: &[&str] = &["72"];
/// `epoll_pwait`, `read`, `ppoll`, `waitid`, `accept`, `recvfrom`, `recvmsg`, `accept4`, `wait4`.
#[cfg(not(target_arch = "x86_64"))]
const OTHERS: &[&str] = &["22", "63", "73", "95", "202", "207", "212", "242", "260"];
/// `ioctl`, `brk`, `munmap`, `mremap`, `mmap`, `mprotect`, `madvise`.
#[cfg(not(target_arch = "x86_64"))]
const WORK: &[&str] = &["29", "214", "215", "216", "222", "226", "233"];

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelWait {
    /// The end of a time that it chose itself (`time.sleep`).
    Sleep,
    /// Somebody else: a file, a socket, a process.
    Others,
    /// Something that may be its own work: a lock (the GIL is one), or threads that help it.
    MayWork,
    /// Nobody else: it runs, is about to, or is in a call that works for it.
    Working,
}

impl KernelWait {
    /// From the text of `/proc/PID/task/TID/syscall`; `None` where that is empty.
    pub(super) fn parse(text: &str) -> Option<KernelWait> {
        let mut words = text.split_whitespace();
        let call = words.next()?;
        let is_for_no_file = words.next() == Some("0x0");
        Some(match call {
            // Outside a system call it stands still for a page of memory at most.
            "running" | "-1" => KernelWait::Working,
            call if WORK.contains(&call) => KernelWait::Working,
            call if SLEEPS.contains(&call) => KernelWait::Sleep,
            call if SELECTS.contains(&call) && is_for_no_file => KernelWait::Sleep,
            call if SELECTS.contains(&call) || OTHERS.contains(&call) => KernelWait::Others,
            _ => KernelWait::MayWork,
        })
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::KernelWait;

    #[test]
    fn a_sleep_of_any_python_is_told_from_a_lock_and_from_work() {
        let wait = |text| KernelWait::parse(text);
        assert_eq!(wait("230 0x1 0x1 0x7f00 0x0 0x0 0x0 0x7ffe 0x7fcc"), Some(KernelWait::Sleep));
        assert_eq!(wait("23 0x0 0x0 0x0 0x0 0x7ffe 0x0 0x7ffe 0x7fcc"), Some(KernelWait::Sleep));
        assert_eq!(wait("23 0x4 0x7f00 0x0 0x0 0x0 0x0 0x7ffe 0x7fcc"), Some(KernelWait::Others));
        assert_eq!(wait("0 0x3 0x5634 0x2000 0x0 0x0 0x0 0x7ffe 0x7fcc"), Some(KernelWait::Others));
        assert_eq!(wait("202 0x7f00 0x189 0x0 0x0 0x0 0x0 0x7ffe 0x7f"), Some(KernelWait::MayWork));
        assert_eq!(
            wait("16 0x5 0xc030462b 0x7ffe 0x0 0x0 0x0 0x7ffe 0x7f"),
            Some(KernelWait::Working)
        );
        assert_eq!(wait("running"), Some(KernelWait::Working));
        assert_eq!(wait("-1 0x7ffd5b6c8f10 0x7f0e6a9b5c3d"), Some(KernelWait::Working));
        assert_eq!(wait(""), None);
    }
}
