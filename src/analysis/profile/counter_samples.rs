//! All counter records of a recording.

use crate::model::{
    AllocatorCounters, CudaIndex, Metric, Nanos, Pool, Record, RecordSink, SinkResult,
};

/// Counters of one device at one moment; all in bytes except the last two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterSample {
    /// The moment.
    pub time: Nanos,
    /// The device.
    pub device: CudaIndex,
    /// `allocated_bytes.all.current`.
    pub allocated: i64,
    /// `allocated_bytes.all.peak`.
    pub allocated_peak: i64,
    /// `reserved_bytes.all.current`.
    pub reserved: i64,
    /// `active_bytes.all.current`.
    pub active: i64,
    /// `requested_bytes.all.current`.
    pub requested: i64,
    /// `inactive_split_bytes.all.current`.
    pub inactive_split: i64,
    /// `num_alloc_retries`.
    pub alloc_retries: i64,
    /// `num_ooms`.
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
