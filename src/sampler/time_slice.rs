//! A short time slice for the polling thread.

use std::io;

use nix::libc;

const SHORTEST_SLICE_NANOS: u64 = 100_000;

/// A shorter slice gives the thread an earlier deadline on busy processors, not a larger share
/// (EEVDF, Linux 6.12 and newer; needs no rights). Older kernels ignore it.
pub(super) fn shorten_time_slice() -> io::Result<()> {
    // The call sets the nice value, too: keep it.
    let nice = rustix::process::getpriority_process(Some(rustix::thread::gettid()))?;
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SHORTEST_SLICE_NANOS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: `attributes` is a plain structure that states its size. It lives over the call, and
    // the kernel only reads it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_its_slice_and_keeps_its_nice_value() {
        std::thread::spawn(|| {
            let nice = || rustix::process::getpriority_process(Some(rustix::thread::gettid()));
            let before = nice().unwrap();
            shorten_time_slice().unwrap();
            assert_eq!(nice().unwrap(), before);
            let thread = rustix::thread::gettid().as_raw_nonzero();
            let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/sched")).unwrap();
            let slice = text.lines().find(|line| line.starts_with("se.slice"));
            // The line exists since Linux 6.12, the first to grant the slice.
            if let Some(line) = slice {
                let shown = line.split(':').nth(1).unwrap().trim();
                assert_eq!(shown.parse::<u64>().unwrap(), SHORTEST_SLICE_NANOS, "{line}");
            }
        })
        .join()
        .unwrap();
    }
}
