//! The processor's time-stamp counter.

/// The counter now, equal in all programs of a machine.
#[cfg(target_arch = "x86_64")]
pub fn time_stamp_counter() -> Option<u64> {
    // SAFETY: `rdtsc` reads a register and touches no memory; every x86-64 processor has it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

/// `None`: no such counter.
#[cfg(not(target_arch = "x86_64"))]
pub fn time_stamp_counter() -> Option<u64> {
    None
}
