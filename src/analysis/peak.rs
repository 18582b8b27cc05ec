//! The peak of a device: how high, when, and the moment of which the blocks are known. Every report
//! takes it from here.
//!
//! The height is the greatest number of bytes that the allocator itself was seen to have while it
//! was recorded: by its counters, by polls of them, by events, or as the sum of a map that agrees
//! with the counters. Nothing that memspy worked out (which blocks lived between two maps, what a
//! map shows that was read while the job changed it) makes it higher. The mark that the allocator
//! keeps (`allocated_bytes.all.peak`) counts where it rose while it was recorded: it can be older
//! than the recording, and the job can reset it.

use std::sync::Arc;

use crate::analysis::profile::Profile;
use crate::analysis::profile::attributed_snapshot::AttributedSnapshot;
use crate::analysis::profile::high_water::{HighWater, PeakTime, SeenLevel};
use crate::model::{CudaIndex, Nanos};

/// The peak of a device.
#[derive(Debug, Clone)]
pub struct DevicePeak {
    /// The height: [`HighWater::within`] of it is that of the recording.
    pub mark: HighWater,
    /// The highest moment of which the blocks are known; `None` where they are of no moment.
    pub moment: Option<PeakMoment>,
}

/// A moment of which is known what was alive.
#[derive(Debug, Clone)]
pub struct PeakMoment {
    /// When.
    pub time: Nanos,
    /// Bytes allocated then: no more than the peak.
    pub allocated: u64,
    /// What was alive then, in a sampled recording; an exact one folds its events.
    pub(crate) snapshot: Option<Arc<AttributedSnapshot>>,
}

impl DevicePeak {
    /// The most bytes that were allocated at once while it was recorded.
    pub fn bytes(&self) -> u64 {
        self.mark.within.max(0) as u64
    }

    /// Whether the allocator's own mark is older than the recording, so that the height is that of
    /// the highest level read.
    pub fn was_read(&self) -> bool {
        self.mark.reached == PeakTime::BeforeRecording && self.mark.bytes > self.mark.within
    }
}

impl Profile {
    /// The peak of a device's allocated bytes; `None` where nothing is known of them.
    pub fn peak(&self, device: CudaIndex) -> Option<DevicePeak> {
        let counted = self.device_mark(device);
        let exact = self.exact();
        let told = exact.and_then(|exact| exact.peak(device));
        // Where both agree, the event tells the moment.
        let mark = match told.map(|(time, bytes)| (time, bytes as i64)) {
            Some(told) => Some(HighWater::with_event(counted, told, |event, mark| event >= mark)),
            None => counted,
        };
        // What the allocator's own mark rose to between two events.
        let risen = exact.and_then(|exact| exact.counted_peak(device));
        let mark = mark.map(|mark| mark.at_least(risen.unwrap_or(0) as i64));
        let moment = match told {
            Some((time, allocated)) => Some(PeakMoment { time, allocated, snapshot: None }),
            None => self.highest(device).map(|snapshot| PeakMoment {
                time: snapshot.time,
                allocated: snapshot.allocated,
                snapshot: Some(snapshot.clone()),
            }),
        };
        let level = moment.as_ref().map(|moment| SeenLevel {
            bytes: moment.allocated as i64,
            from: moment.time,
            to: moment.time,
        });
        let mark = match (mark, level) {
            // Of several moments as high, the one that is shown.
            (Some(mark), Some(level)) => mark.with_level(level),
            (mark, level) => mark.or(level.map(HighWater::of_level))?,
        };
        Some(DevicePeak { mark, moment })
    }

    /// The height of [`Profile::peak`], with the allocator's own mark.
    pub fn peak_allocated(&self, device: CudaIndex) -> Option<HighWater> {
        Some(self.peak(device)?.mark)
    }

    /// The device with the greatest peak of allocated bytes (the lowest number of equals).
    pub fn main_gpu(&self) -> Option<CudaIndex> {
        let height = |device: CudaIndex| self.peak(device).map_or(0, |peak| peak.bytes());
        self.gpus().max_by_key(|device| (height(*device), std::cmp::Reverse(*device)))
    }
}
