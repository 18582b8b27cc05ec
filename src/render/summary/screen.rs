//! What of a job fits a terminal: everything else is behind the commands that it names.

use std::ops::Range;

use super::bars::bars;
use super::device_lines;
use super::headline::headline;
use super::host_line::host_line;
use super::owner_table::{SummaryOwners, owner_lines};
use super::text::{JobSummary, asleep, finding_part, foot, grown, head, line_part, without_gpus};
use crate::render::owners::copied;
use crate::render::shared::{cut, wrapped};

/// The command above the answer, and the prompt below it.
const PROMPTS: usize = 2;
/// A row on a narrower terminal is too short for anything.
const MIN_WIDTH: usize = 40;
const WORD: usize = 6;

/// Lines of a summary, and which of them are the sentence that matters most.
pub(super) struct SummaryScreen {
    pub(super) lines: Vec<String>,
    pub(super) headline: Range<usize>,
}

/// How much of each part is shown.
#[derive(Debug, Clone, Copy)]
struct PartSizes {
    owners: usize,
    lines: usize,
    findings: usize,
    /// Of the sentence of a finding.
    finding_rows: usize,
    /// What grows, the host, sleeping memory: the headline and other commands have it, too.
    has_details: bool,
    is_spaced: bool,
}

/// The largest that fits is taken. 24 rows have five owners, three lines and two findings.
const SIZES: [PartSizes; 7] = [
    PartSizes::of([10, 10, 5, 9]),
    PartSizes::of([10, 5, 2, 9]),
    PartSizes { has_details: false, ..PartSizes::of([6, 5, 2, 3]) },
    PartSizes { has_details: false, ..PartSizes::of([5, 3, 2, 2]) },
    PartSizes { has_details: false, is_spaced: false, ..PartSizes::of([5, 3, 2, 2]) },
    PartSizes { has_details: false, is_spaced: false, ..PartSizes::of([5, 3, 2, 1]) },
    PartSizes { has_details: false, is_spaced: false, ..PartSizes::of([3, 1, 1, 1]) },
];

impl PartSizes {
    const fn of([owners, lines, findings, finding_rows]: [usize; 4]) -> PartSizes {
        let (has_details, is_spaced) = (true, true);
        PartSizes { owners, lines, findings, finding_rows, has_details, is_spaced }
    }
}

/// As much of a summary as fits.
pub(super) fn screen(summary: &JobSummary<'_>, (width, height): (usize, usize)) -> SummaryScreen {
    let (width, room) = (width.max(MIN_WIDTH), height.saturating_sub(PROMPTS));
    // Once for all sizes: grouping the owners of a large job takes long.
    let owners = SummaryOwners::of(summary);
    let sentence = headline(summary, owners.as_ref());
    let known = (owners.as_ref(), sentence.as_deref());
    let mut of_sizes = SIZES.iter().map(|sizes| laid_out(summary, known, width, sizes));
    let smallest = of_sizes.next_back();
    let fits = |it: &SummaryScreen| it.lines.len() <= room;
    let nothing = SummaryScreen { lines: Vec::new(), headline: 0..0 };
    of_sizes.find(fits).or(smallest).unwrap_or(nothing)
}

fn laid_out(
    summary: &JobSummary<'_>,
    (owners, sentence): (Option<&SummaryOwners<'_>>, Option<&str>),
    width: usize,
    sizes: &PartSizes,
) -> SummaryScreen {
    let fitted = |lines: Vec<String>| -> Vec<String> {
        lines.iter().flat_map(|line| wrapped(line, Some(width))).collect()
    };
    let mut lines = vec![cut(&head(summary), width)];
    let from = lines.len();
    lines.extend(sentence.into_iter().flat_map(|line| wrapped(line, Some(width))));
    let headline = from..lines.len();
    lines.extend(bars(summary.gpus, false, Some(width)));
    lines.extend(fitted(device_lines::peaks(summary, true)));
    lines.extend(fitted(summary.snapshot.ok().and_then(copied).into_iter().collect()));
    if summary.gpus.is_empty() {
        lines.extend(fitted(vec![without_gpus(summary)]));
    }
    if sizes.has_details {
        let details = host_line(summary.host).into_iter().chain(asleep(summary.process));
        lines.extend(fitted(details.collect()));
    }
    lines.extend(fitted(owner_lines(summary, owners, sizes.owners, Some(width))));
    if sizes.has_details {
        lines.extend(fitted(grown(summary)));
    }
    if let Some(part) = line_part(summary, true) {
        lines.push(String::new());
        lines.extend(wrapped(&part.title, Some(width)));
        lines.extend(part.rows.iter().take(sizes.lines).map(|row| cut(row, width)));
    }
    // Rows end with words, not at the border.
    let room = width.saturating_sub(WORD) * sizes.finding_rows;
    for line in finding_part(summary, sizes.findings, Some(room)) {
        lines.extend(in_rows(&line, width, sizes.finding_rows));
    }
    lines.extend(fitted(foot(summary)));
    if !sizes.is_spaced {
        lines.retain(|line| !line.is_empty());
    }
    SummaryScreen { lines, headline }
}

/// At most `most` rows; a command stays whole, and shows the rest of its finding.
fn in_rows(line: &str, width: usize, most: usize) -> Vec<String> {
    let mut rows = wrapped(line, Some(width));
    if rows.len() > most {
        let rest = rows.split_off(most).join(" ");
        if let Some(last) = rows.last_mut() {
            *last = cut(&format!("{last} {}", rest.trim_start()), width);
        }
    }
    rows
}
