//! What a thread waits for, from its system call.

use super::memory::AddressRange;

/// `nanosleep`, `clock_nanosleep` (arch/x86/entry/syscalls/syscall_64.tbl).
#[cfg(target_arch = "x86_64")]
const SLEEPS: &[&str] = &["35", "230"];
/// `select`, `pselect6`: CPython before 3.11 sleeps in one that waits for no file.
#[cfg(target_arch = "x86_64")]
const SELECTS: &[&str] = &["23", "270"];
/// `futex`, `futex_wait`; the first argument is the lock's address.
#[cfg(target_arch = "x86_64")]
const LOCKS: &[&str] = &["202", "455"];
/// `read`, `write`, `poll`, `readv`, `writev`, `pause`, `connect`, `accept`, `sendto`, `recvfrom`,
/// `sendmsg`, `recvmsg`, `wait4`, `semop`, `msgrcv`, `flock`, `rt_sigtimedwait`, `rt_sigsuspend`,
/// `io_getevents`, `semtimedop`, `epoll_wait`, `mq_timedreceive`, `waitid`, `ppoll`, `epoll_pwait`,
/// `accept4`, `recvmmsg`, `io_uring_enter`, `epoll_pwait2`.
#[cfg(target_arch = "x86_64")]
const OTHERS: &[&str] = &[
    "0", "1", "7", "19", "20", "34", "42", "43", "44", "45", "46", "47", "61", "65", "70", "73",
    "128", "130", "208", "220", "232", "243", "247", "271", "281", "288", "299", "426", "441",
];
/// System calls of `cudaMalloc`: `mmap`, `mprotect`, `munmap`, `brk`, `ioctl`, `mremap`, `madvise`.
#[cfg(target_arch = "x86_64")]
const WORK: &[&str] = &["9", "10", "11", "12", "16", "25", "28"];

/// `nanosleep`, `clock_nanosleep` (include/uapi/asm-generic/unistd.h).
#[cfg(not(target_arch = "x86_64"))]
const SLEEPS: &[&str] = &["101", "115"];
/// `pselect6`.
#[cfg(not(target_arch = "x86_64"))]
const SELECTS: &[&str] = &["72"];
/// `futex`, `futex_wait`.
#[cfg(not(target_arch = "x86_64"))]
const LOCKS: &[&str] = &["98", "455"];
/// `io_getevents`, `epoll_pwait`, `flock`, `read`, `write`, `readv`, `writev`, `ppoll`, `waitid`,
/// `rt_sigsuspend`, `rt_sigtimedwait`, `mq_timedreceive`, `msgrcv`, `semtimedop`, `semop`,
/// `accept`, `connect`, `sendto`, `recvfrom`, `sendmsg`, `recvmsg`, `accept4`, `recvmmsg`, `wait4`,
/// `io_uring_enter`, `epoll_pwait2`.
#[cfg(not(target_arch = "x86_64"))]
const OTHERS: &[&str] = &[
    "4", "22", "32", "63", "64", "65", "66", "73", "95", "133", "137", "183", "188", "192", "193",
    "202", "203", "206", "207", "211", "212", "242", "243", "260", "426", "441",
];
/// `ioctl`, `brk`, `munmap`, `mremap`, `mmap`, `mprotect`, `madvise`.
#[cfg(not(target_arch = "x86_64"))]
const WORK: &[&str] = &["29", "214", "215", "216", "222", "226", "233"];

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelWait {
    /// A sleep (`time.sleep`).
    Sleep,
    /// A file, socket or process.
    External,
    /// The lock, condition or queue at this address.
    Lock(u64),
    /// Unknown system call.
    Unknown,
    /// Nothing: it runs, is about to, or the kernel works for it.
    Working,
}

impl KernelWait {
    /// Parses `/proc/PID/task/TID/syscall`.
    pub(super) fn parse(text: &str) -> Option<KernelWait> {
        let mut words = text.split_whitespace();
        let call = words.next()?;
        let argument = words.next();
        let is_for_no_file = argument == Some("0x0");
        let address = || u64::from_str_radix(argument?.strip_prefix("0x")?, 16).ok();
        Some(match call {
            // Outside a system call it waits at most for a page.
            "running" | "-1" => KernelWait::Working,
            call if WORK.contains(&call) => KernelWait::Working,
            call if SLEEPS.contains(&call) => KernelWait::Sleep,
            call if SELECTS.contains(&call) && is_for_no_file => KernelWait::Sleep,
            call if SELECTS.contains(&call) || OTHERS.contains(&call) => KernelWait::External,
            call if LOCKS.contains(&call) => {
                address().map_or(KernelWait::Unknown, KernelWait::Lock)
            }
            _ => KernelWait::Unknown,
        })
    }

    /// Whether the thread does no work. `working` are locks awaited in the middle of work:
    /// CPython's GIL, the allocator's.
    pub fn is_idle(self, working: &[AddressRange]) -> bool {
        match self {
            KernelWait::Sleep | KernelWait::External => true,
            KernelWait::Lock(address) => !is_in(address, working),
            KernelWait::Unknown | KernelWait::Working => false,
        }
    }
}

fn is_in(address: u64, ranges: &[AddressRange]) -> bool {
    let is_within = |range: &AddressRange| {
        address.checked_sub(range.addr.0).is_some_and(|offset| offset < range.len as u64)
    };
    ranges.iter().any(is_within)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::target::Addr;

    #[test]
    fn sleeps_locks_and_work_are_distinguished_in_every_python() {
        let wait = |text| KernelWait::parse(text);
        assert_eq!(wait("230 0x1 0x1 0x7f00 0x0 0x0 0x0 0x7ffe 0x7fcc"), Some(KernelWait::Sleep));
        assert_eq!(wait("23 0x0 0x0 0x0 0x0 0x7ffe 0x0 0x7ffe 0x7fcc"), Some(KernelWait::Sleep));
        assert_eq!(wait("23 0x4 0x7f00 0x0 0x0 0x0 0x0 0x7ffe 0x7fcc"), Some(KernelWait::External));
        assert_eq!(
            wait("0 0x3 0x5634 0x2000 0x0 0x0 0x0 0x7ffe 0x7fcc"),
            Some(KernelWait::External)
        );
        let lock = Some(KernelWait::Lock(0x7f00));
        assert_eq!(wait("202 0x7f00 0x189 0x0 0x0 0x0 0x0 0x7ffe 0x7f"), lock);
        assert_eq!(wait("202"), Some(KernelWait::Unknown));
        assert_eq!(
            wait("257 0xffffff9c 0x7f00 0x0 0x0 0x0 0x0 0x0 0x0"),
            Some(KernelWait::Unknown)
        );
        assert_eq!(
            wait("16 0x5 0xc030462b 0x7ffe 0x0 0x0 0x0 0x7ffe 0x7f"),
            Some(KernelWait::Working)
        );
        assert_eq!(wait("running"), Some(KernelWait::Working));
        assert_eq!(wait("-1 0x7ffd5b6c8f10 0x7f0e6a9b5c3d"), Some(KernelWait::Working));
        assert_eq!(wait(""), None);
    }

    #[test]
    fn a_thread_waiting_for_the_gil_is_not_idle() {
        let gil = [AddressRange { addr: Addr(0x7000), len: 0x100 }];
        let [in_gil, behind] = [0x7040, 0x7100].map(KernelWait::Lock);
        assert!(!in_gil.is_idle(&gil) && behind.is_idle(&gil));
        assert!(KernelWait::Sleep.is_idle(&gil) && KernelWait::External.is_idle(&gil));
        assert!(!KernelWait::Working.is_idle(&gil) && !KernelWait::Unknown.is_idle(&gil));
    }
}
