//! mimalloc segments of ended threads.

use super::super::HeapError;
use super::super::blocks::{AbandonedSegments, MimallocLayout};
use super::{MAX_SEGMENTS, MimallocWalk, OBJECTS, SEGMENT, SLICE, changing};
use crate::target::{Addr, Process};

impl MimallocWalk<'_> {
    pub(super) fn abandoned(
        &mut self,
        mimalloc: &MimallocLayout,
        at: Addr,
    ) -> Result<(), HeapError> {
        const WHAT: &str = "the segments of threads that have ended";
        match mimalloc.abandoned {
            AbandonedSegments::Listed { lists, next } => {
                let mut segments = 0;
                for list in lists {
                    let first = self.reader.u64(list.in_target(at)).map_err(changing(WHAT, at))?;
                    let mut segment = Addr(first & !(SEGMENT - 1));
                    while segment != Addr(0) {
                        segments += 1;
                        if segments > MAX_SEGMENTS || !segment.is_plausible() {
                            return Err(HeapError::Changing);
                        }
                        let read = self.segment(mimalloc, segment);
                        self.part(read)?;
                        let next = next.in_target(segment);
                        let next = self.reader.u64(next).map_err(changing(WHAT, segment))?;
                        segment = Addr(next & !(SEGMENT - 1));
                    }
                }
            }
            AbandonedSegments::Counted { count, owner, thread } => {
                let count = self.reader.u64(count.in_target(at)).map_err(changing(WHAT, at))?;
                if count == 0 {
                    return Ok(());
                }
                // No symbol leads to the arena bitmaps.
                let found: Vec<Addr> = self
                    .places_of_segments()
                    .into_iter()
                    .filter(|segment| {
                        self.reader.pointer(owner.in_target(*segment)) == Ok(at)
                            && self.reader.u64(thread.in_target(*segment)) == Ok(0)
                    })
                    .collect();
                if found.len() as u64 != count {
                    return Err(HeapError::Changing);
                }
                for segment in found {
                    self.segment(mimalloc, segment)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn places_of_segments(&self) -> Vec<Addr> {
        let Some(Ok(mappings)) = self.process.map(Process::mappings) else { return Vec::new() };
        let private = mappings.iter().filter(|m| m.readable && m.writable && m.path.is_none());
        let begins = private.flat_map(|mapping| {
            (mapping.start.0.checked_next_multiple_of(SEGMENT).unwrap_or(u64::MAX)..mapping.end.0)
                .step_by(SEGMENT as usize)
        });
        begins.map(Addr).take(MAX_SEGMENTS).collect()
    }

    pub(super) fn segment(
        &mut self,
        mimalloc: &MimallocLayout,
        segment: Addr,
    ) -> Result<(), HeapError> {
        let entries = mimalloc.segment_entries.in_target(segment);
        let entries = self.reader.u64(entries).map_err(changing("a segment", segment))?;
        let mut entry = 0;
        while entry < entries.min(SEGMENT / SLICE) {
            let page = segment + mimalloc.segment_slices + entry * mimalloc.page_len as u64;
            let copy = self.copy_of_page(mimalloc, page)?;
            let slices = mimalloc.page_slices.get(&copy).unwrap_or_default();
            let tag =
                mimalloc.page_tag.get(&copy).unwrap_or_default() >> mimalloc.page_tag_bit & 0xf;
            let objects = OBJECTS.into_iter().find(|(objects, _)| *objects == tag);
            // The first entry describes the segment itself.
            if let Some((_, before)) = objects
                && mimalloc.blocks.size(&copy) > 0
                && entry > 0
            {
                let read = self.page(mimalloc, page, &copy, before);
                self.part(read)?;
            }
            if slices == 0 {
                return Err(HeapError::Changing);
            }
            entry += u64::from(slices);
        }
        Ok(())
    }
}
