//! The host's side of a job over time.

use std::collections::BTreeMap;

use crate::model::{HostReading, OwnershipSnapshot, RecorderState};

/// Page-locked memory of PyTorch, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageLocked {
    /// Of blocks that a tensor has.
    pub in_use: u64,
    /// What these tensors asked for.
    pub asked: u64,
    /// Of free blocks.
    pub cached: u64,
}

/// Two readings, and what tensors asked for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostUse {
    /// Resident, in bytes.
    pub resident: Option<u64>,
    /// Growth of it, and in how many seconds.
    pub grown: Option<(i64, f64)>,
    /// `None` without a known tensor in it.
    pub page_locked: Option<PageLocked>,
    /// PyTorch's recorder.
    pub history: Option<RecorderState>,
    /// PyTorch's profiler was on at each reading.
    pub is_profiled: bool,
}

/// Less growth is noise.
const MIN_GROWTH: i64 = 4 << 20;

impl HostUse {
    /// Of readings in time order.
    pub fn new(readings: &[(f64, HostReading)], snapshot: Option<&OwnershipSnapshot>) -> HostUse {
        let Some((until, last)) = readings.last() else { return HostUse::default() };
        let first = readings.first().and_then(|(since, first)| Some((*since, first.resident?)));
        let grown = first.zip(last.resident).and_then(|((since, before), now)| {
            let seconds = until - since;
            let grown = now as i64 - before as i64;
            (seconds > 0.5).then_some((grown, seconds))
        });
        HostUse {
            resident: last.resident,
            grown,
            page_locked: snapshot.and_then(|snapshot| page_locked(last, snapshot)),
            history: last.history,
            is_profiled: readings.iter().all(|(_, reading)| reading.is_profiled == Some(true)),
        }
    }

    /// Bytes a second, if it is worth a word.
    pub fn growth_a_second(&self) -> Option<u64> {
        let (bytes, seconds) = self.grown.filter(|(bytes, _)| *bytes >= MIN_GROWTH)?;
        Some((bytes as f64 / seconds) as u64)
    }
}

/// `None` unless a tensor is known for each block in use.
fn page_locked(reading: &HostReading, snapshot: &OwnershipSnapshot) -> Option<PageLocked> {
    let blocks = reading.page_locked.as_ref()?;
    let mut sums = PageLocked::default();
    let mut used: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for block in blocks {
        match block.is_used {
            true => _ = used.insert(block.address, (block.size, 0)),
            false => sums.cached += block.size,
        }
    }
    for row in &snapshot.tensors {
        let Some(storage) = row.tensor.storage else { continue };
        if let Some((size, asked)) = used.get_mut(&storage.data) {
            *asked = (*asked).max(storage.bytes.unwrap_or(0)).min(*size);
        }
    }
    for (size, asked) in used.into_values() {
        sums.in_use += size;
        // Without a tensor, nothing is known of its rounding.
        sums.asked += if asked == 0 { size } else { asked };
    }
    Some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PageLockedBlock, Storage, TensorInfo, TensorRow};
    use crate::ownership::fixture;

    #[test]
    fn page_locked_memory_is_compared_with_what_its_tensors_asked_for() {
        let block = |address, size, is_used| PageLockedBlock { address, size, is_used };
        let blocks =
            vec![block(0x1000, 64, true), block(0x2000, 64, true), block(0x3000, 32, false)];
        let reading = |resident| HostReading {
            resident: Some(resident),
            page_locked: Some(blocks.clone()),
            history: None,
            is_profiled: None,
        };
        let plain = fixture::row(1);
        let storage = Some(Storage { at: 5, data: 0x1000, bytes: Some(33) });
        let tensor = TensorRow { tensor: TensorInfo { storage, ..plain.tensor.clone() }, ..plain };
        let snapshot = OwnershipSnapshot { tensors: vec![tensor], ..OwnershipSnapshot::default() };
        let readings = [(0.0, reading(100)), (2.0, reading(100 + (16 << 20)))];
        let host = HostUse::new(&readings, Some(&snapshot));
        let expected = PageLocked { in_use: 128, asked: 97, cached: 32 };
        assert_eq!(host.page_locked, Some(expected));
        assert_eq!(host.growth_a_second(), Some(8 << 20));
        assert_eq!(HostUse::new(&readings[..1], None).growth_a_second(), None);
    }
}
