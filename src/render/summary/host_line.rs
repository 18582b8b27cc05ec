//! The host's side of a job in one line.

use crate::analysis::HostUse;
use crate::render::shared::{bytes, count};

/// Less page-locked memory is not worth a word.
const MIN_PAGE_LOCKED: u64 = 1 << 20;

/// `host: 1.10 GiB resident (+12.00 MiB in 3.3 s), page-locked 384.00 MiB for 198.00 MiB asked`;
/// `None` if nothing is known.
pub(super) fn host_line(host: &HostUse) -> Option<String> {
    let mut text = format!("host: {} resident", bytes(host.resident?));
    if let Some((grown, seconds)) = host.grown.filter(|_| host.growth_a_second().is_some()) {
        text.push_str(&format!(" (+{} in {seconds:.1} s)", bytes(grown.max(0) as u64)));
    }
    if let Some(locked) = host.page_locked.filter(|it| it.in_use + it.cached >= MIN_PAGE_LOCKED) {
        text.push_str(&format!(", {} page-locked", bytes(locked.in_use + locked.cached)));
        if locked.asked < locked.in_use {
            text.push_str(&format!(" for {} asked", bytes(locked.asked)));
        }
        if locked.cached > 0 {
            text.push_str(&format!(", {} of it cached", bytes(locked.cached)));
        }
    }
    if let Some(history) = host.history.filter(|it| it.is_on) {
        text.push_str(&format!(", memory history on: {} entries", count(history.entries)));
    }
    Some(text)
}
