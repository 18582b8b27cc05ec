//! Reads all devices' counters with one system call.

use std::time::{Duration, Instant};

use super::check::counters_are_whole;
use super::error::AllocatorError;
use super::layout::CounterLayout;
use crate::model::{AllocatorCounters, CudaIndex};
use crate::target::{Addr, AddressRange, Memory};

/// A copy takes about 1 µs, a change of all counters less.
const QUICK_ATTEMPTS: u32 = 32;
const READ_TIMEOUT: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub(super) struct CounterReader {
    spans: Vec<AddressRange>,
    now: Vec<u8>,
    before: Vec<u8>,
}

impl CounterReader {
    pub(super) fn new(devices: &[Addr], layout: &CounterLayout) -> CounterReader {
        let spans: Vec<AddressRange> =
            devices.iter().map(|addr| AddressRange { addr: *addr, len: layout.end }).collect();
        let bytes = vec![0; layout.end * devices.len()];
        CounterReader { spans, now: bytes.clone(), before: bytes }
    }

    /// `between_calls`: only while no thread is inside an allocator.
    pub(super) fn read(
        &mut self,
        memory: &dyn Memory,
        layout: &CounterLayout,
        between_calls: bool,
        out: &mut Vec<(CudaIndex, AllocatorCounters)>,
    ) -> Result<(), AllocatorError> {
        let mut slow = None;
        let mut attempts = 0;
        loop {
            std::mem::swap(&mut self.now, &mut self.before);
            memory.read_spans(&self.spans, &mut self.now).map_err(|source| {
                AllocatorError::Memory {
                    what: "the allocator's counters",
                    at: self.spans.first().map_or(Addr(0), |s| s.addr),
                    source,
                }
            })?;
            out.clear();
            let mut whole = true;
            let copies =
                self.now.chunks_exact(layout.end).zip(self.before.chunks_exact(layout.end));
            for ((now, before), index) in copies.zip(0..) {
                let Some(counters) = layout.decode(now) else { continue };
                // In cudaMalloc a thread stays inside without changes: two equal copies suffice.
                let settled = layout.is_locked(now) != Some(true)
                    || (!between_calls && attempts > 0 && now == before);
                whole &= settled && counters_are_whole(&counters);
                out.push((CudaIndex(index), counters));
            }
            if whole {
                return Ok(());
            }
            attempts += 1;
            if attempts >= QUICK_ATTEMPTS {
                if slow.get_or_insert_with(Instant::now).elapsed() > READ_TIMEOUT {
                    out.clear();
                    return Err(AllocatorError::Torn {
                        what: "the allocator's counters",
                        attempts,
                    });
                }
                std::thread::yield_now();
            }
        }
    }
}
