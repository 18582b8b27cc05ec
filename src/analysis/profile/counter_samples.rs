//! All counter records of a recording.

use crate::model::{
    AllocatorCounters, CudaIndex, Metric, Nanos, Pool, Record, RecordSink, SinkResult,
};

/// Counters of one device at one moment: `current` bytes of all pools, but for the allocator's own
/// peak (`allocated_bytes.all.peak`), `num_alloc_retries` and `num_ooms`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterSample {
    pub time: Nanos,
    pub device: CudaIndex,
    pub allocated: i64,
    pub allocated_peak: i64,
    pub reserved: i64,
    pub active: i64,
    pub requested: i64,
    pub inactive_split: i64,
    pub alloc_retries: i64,
    pub ooms: i64,
}

impl CounterSample {
    fn new(time: Nanos, device: CudaIndex, counters: &AllocatorCounters) -> CounterSample {
        let all = |metric| counters.stat(metric, Pool::All);
        CounterSample {
            time,
            device,
            allocated: all(Metric::AllocatedBytes).current,
            allocated_peak: all(Metric::AllocatedBytes).peak,
            reserved: all(Metric::ReservedBytes).current,
            active: all(Metric::ActiveBytes).current,
            requested: all(Metric::RequestedBytes).current,
            inactive_split: all(Metric::InactiveSplitBytes).current,
            alloc_retries: counters.num_alloc_retries,
            ooms: counters.num_ooms,
        }
    }
}

/// Takes records, and keeps the counters.
#[derive(Debug, Default)]
pub struct CounterSamples {
    /// In time order.
    pub samples: Vec<CounterSample>,
}

impl RecordSink for CounterSamples {
    fn record(&mut self, record: &Record) -> SinkResult {
        if let Record::Counters { time, device, counters } = record {
            self.samples.push(CounterSample::new(*time, *device, counters));
        }
        Ok(())
    }
}
