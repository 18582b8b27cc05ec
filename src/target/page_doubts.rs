//! Pages that differ between a read before a stop and one after it. Where both agree, the page was
//! so in the stop; all else may be of any moment.

use rustc_hash::FxHashMap;

use super::page_copy::PAGE;

#[derive(Debug, Default)]
pub(super) struct PageDoubts {
    /// Numbers of doubtful places.
    of_place: FxHashMap<u32, u32>,
    later: Vec<Box<[u8]>>,
}

impl PageDoubts {
    pub(super) fn len(&self) -> usize {
        self.later.len()
    }

    pub(super) fn of(&self, place: u32) -> Option<u32> {
        match self.later.is_empty() {
            true => None,
            false => self.of_place.get(&place).copied(),
        }
    }

    /// Places and doubts.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.of_place.iter().map(|(place, doubt)| (*place as usize, *doubt as usize))
    }

    /// `later`: the page's bytes after the stop.
    pub(super) fn add(&mut self, place: u32, later: Box<[u8]>) {
        self.of_place.insert(place, self.later.len() as u32);
        self.later.push(later);
    }

    /// Doubts each byte of `page`.
    pub(super) fn add_whole(&mut self, place: u32, page: &[u8]) {
        self.add(place, page.iter().map(|byte| !byte).collect());
    }

    pub(super) fn concern(&self, doubt: u32, within: usize, bytes: &[u8]) -> bool {
        debug_assert!(within + bytes.len() <= PAGE);
        self.later[doubt as usize].get(within..within + bytes.len()) != Some(bytes)
    }
}
