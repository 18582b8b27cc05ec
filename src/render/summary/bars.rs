//! A bar for each GPU of a job.

use crate::analysis::GpuFacts;
use crate::render::shared::{indented, optional_bytes};

/// In cells.
const BAR: usize = 80;
const BESIDE_BAR: usize = 20;

pub(super) fn bars(gpus: &[GpuFacts], is_short: bool, width: Option<usize>) -> Vec<String> {
    let cells = width.map_or(BAR, |width| width.saturating_sub(BESIDE_BAR).clamp(10, BAR));
    let mut lines = Vec::new();
    for gpu in gpus {
        let private = gpu.cache.map_or(0, |cache| cache.private);
        let cached = gpu.reserved.zip(gpu.allocated);
        let cached = cached.map(|(r, a)| r.saturating_sub(a).saturating_sub(private));
        let parts = [
            ('█', "allocated", gpu.allocated),
            ('▚', "private pools", Some(private).filter(|private| *private > 0)),
            ('▓', "cached", cached),
            ('▒', "outside", gpu.outside),
            ('░', "others", gpu.others),
            ('·', "free", gpu.free),
        ];
        let words = parts
            .iter()
            .filter(|(_, name, size)| size.is_some() || *name != "private pools")
            .map(|(mark, name, size)| format!("{mark} {name} {}", optional_bytes(*size)));
        let words = words.collect::<Vec<_>>().join("  ");
        let title = format!("GPU {}, {}", gpu.gpu, optional_bytes(gpu.total));
        let has_bar = gpus.len() <= 3 && !is_short;
        if !has_bar {
            lines.push(format!("{title}: {words}"));
        }
        // Many GPUs leave no room for bars.
        if let Some(total) = gpu.total.filter(|total| *total > 0 && has_bar) {
            let mut bar = String::new();
            let mut filled = 0.0;
            for (mark, _, size) in parts.iter().take(5) {
                filled += size.unwrap_or(0) as f64 * cells as f64 / total as f64;
                // Shows even the smallest part.
                let until = filled.round() as usize;
                let until = until.max(bar.chars().count() + usize::from(size.unwrap_or(0) > 0));
                let more = until.min(cells).saturating_sub(bar.chars().count());
                bar.extend(std::iter::repeat_n(*mark, more));
            }
            let free = cells - bar.chars().count();
            lines.push(format!("{title:<17} [{bar}{}]", "·".repeat(free)));
        } else if has_bar {
            lines.push(title);
        }
        if has_bar {
            lines.extend(match width {
                Some(width) => indented(&words, width, "  "),
                None => vec![words],
            });
        }
    }
    lines
}
