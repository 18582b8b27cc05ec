//! The peak of a device, for every report: level, time, highest moment with known blocks.
//!
//! The level is the highest that the allocator itself showed while recording, never computed. Its
//! own peak (`allocated_bytes.all.peak`) counts only if it rose meanwhile: it may be older or
//! reset.

use std::sync::Arc;

use crate::analysis::attribution::AttributedSnapshot;
use crate::analysis::profile::{HighWater, PeakTime, Profile, SeenLevel};
use crate::model::{CudaIndex, Nanos};

/// The peak of a device.
#[derive(Debug, Clone)]
pub struct HighestLevel {
    /// By counters, events or consistent snapshots; [`HighWater::within`] is that of the recording.
    pub mark: HighWater,
    /// The highest moment with known blocks.
    pub moment: Option<KnownMoment>,
}

/// A moment with known live blocks. Its allocated bytes are at most the peak.
#[allow(missing_docs)]
#[derive(Debug, Clone)]
pub struct KnownMoment {
    pub time: Nanos,
    pub allocated: u64,
    /// `None` in an exact recording, which folds events.
    pub(crate) snapshot: Option<Arc<AttributedSnapshot>>,
}

impl HighestLevel {
    /// The most bytes allocated while recording.
    pub fn bytes(&self) -> u64 {
        self.mark.within.max(0) as u64
    }

    /// Whether the allocator's peak is older, so this is the highest level read.
    pub fn was_read(&self) -> bool {
        self.mark.reached == PeakTime::BeforeRecording && self.mark.bytes > self.mark.within
    }
}

/// The peak of allocated bytes, if known.
pub fn of(profile: &Profile, device: CudaIndex) -> Option<HighestLevel> {
    let counted = profile.device_mark(device);
    let exact = profile.exact();
    let event_peak = exact.and_then(|exact| exact.peak(device));
    // If both agree, the event gives the time.
    let mark = match event_peak.map(|(time, bytes)| (time, bytes as i64)) {
        Some(event_peak) => {
            Some(HighWater::with_event(counted, event_peak, |event, mark| event >= mark))
        }
        None => counted,
    };
    // The allocator's peak may have risen between two events.
    let risen = exact.and_then(|exact| exact.counted_peak(device));
    let mark = mark.map(|mark| mark.at_least(risen.unwrap_or(0) as i64));
    let moment = match event_peak {
        Some((time, allocated)) => Some(KnownMoment { time, allocated, snapshot: None }),
        None => profile.highest(device).map(|snapshot| KnownMoment {
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
        (Some(mark), Some(level)) => mark.with_level(level),
        (mark, level) => mark.or(level.map(HighWater::of_level))?,
    };
    Some(HighestLevel { mark, moment })
}

/// The height, with the allocator's own peak.
pub fn allocated(profile: &Profile, device: CudaIndex) -> Option<HighWater> {
    Some(of(profile, device)?.mark)
}

/// The device with the greatest peak; the lowest number among equals.
pub fn main_gpu(profile: &Profile) -> Option<CudaIndex> {
    let height = |device: CudaIndex| of(profile, device).map_or(0, |peak| peak.bytes());
    profile.gpus().max_by_key(|device| (height(*device), std::cmp::Reverse(*device)))
}
