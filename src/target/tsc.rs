//! The processor's time-stamp counter, for timing frequent events.

/// The counter now, equal in all programs of a machine; `None` without one.
#[cfg(target_arch = "x86_64")]
pub fn time_stamp_counter() -> Option<u64> {
    // SAFETY: `rdtsc` reads a register and touches no memory; every x86-64 processor has it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

/// The counter now; `None` without one.
#[cfg(not(target_arch = "x86_64"))]
pub fn time_stamp_counter() -> Option<u64> {
    None
}
