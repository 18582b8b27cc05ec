//! Finds a page's copy by small tables: most reads fall into few regions.

use rustc_hash::FxHashMap;

use super::memory::MemoryError;
use super::page_copy::CopyFailure;

/// 2 MiB.
const REGION_PAGES: usize = 512;
/// In a table; places count from 2.
const UNKNOWN: u32 = 0;
const FAILED: u32 = 1;
const FIRST_PLACE: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct PageIndex {
    regions: FxHashMap<u64, u32>,
    tables: Vec<[u32; REGION_PAGES]>,
    failed: FxHashMap<u64, MemoryError>,
}

/// Kept for the next read.
pub(super) type LastRegion = Option<(u64, u32)>;

impl PageIndex {
    /// Its place, or why there is no copy; `None`: never requested.
    pub(super) fn get(
        &self,
        number: u64,
        last: &mut LastRegion,
    ) -> Option<Result<u32, MemoryError>> {
        let (region, page) = split(number);
        let table = match *last {
            Some((known, table)) if known == region => table,
            _ => {
                let table = *self.regions.get(&region)?;
                *last = Some((region, table));
                table
            }
        };
        match self.tables[table as usize][page] {
            UNKNOWN => None,
            FAILED => self.failed.get(&number).copied().map(Err),
            place => Some(Ok(place - FIRST_PLACE)),
        }
    }

    pub(super) fn has(&self, number: u64, place: u32) -> bool {
        let (region, page) = split(number);
        let table = self.regions.get(&region);
        table.is_some_and(|table| self.tables[*table as usize][page] == place + FIRST_PLACE)
    }

    pub(super) fn insert(&mut self, number: u64, place: Result<u32, MemoryError>) {
        let (region, page) = split(number);
        let tables = &mut self.tables;
        let table = *self.regions.entry(region).or_insert_with(|| {
            tables.push([UNKNOWN; REGION_PAGES]);
            tables.len() as u32 - 1
        });
        tables[table as usize][page] = match place {
            Ok(place) => place + FIRST_PLACE,
            Err(error) => {
                self.failed.insert(number, error);
                FAILED
            }
        };
    }

    pub(super) fn miss(&mut self, number: u64, why: CopyFailure) {
        match why {
            // Only the kernel's fault proves absence.
            CopyFailure::Failed(error @ MemoryError::Fault { .. }) => {
                self.insert(number, Err(error))
            }
            _ => self.remove(number),
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        let (region, page) = split(number);
        if let Some(table) = self.regions.get(&region) {
            self.tables[*table as usize][page] = UNKNOWN;
        }
    }
}

fn split(number: u64) -> (u64, usize) {
    (number / REGION_PAGES as u64, (number % REGION_PAGES as u64) as usize)
}
