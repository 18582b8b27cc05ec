//! A report as one HTML page that works offline.
//!
//! The figures are compressed JSON in base64, so no name from a target reaches the markup. The page
//! inserts text as text only.

use crate::analysis::Profile;
use crate::analysis::report::{MemoryTrack, RecordingSurvey};
use crate::render::shared::{OutputError, html_escaped};
use base64_lines::Base64Lines;
use figures::PageFigures;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;

mod base64_lines;
mod figures;
mod names;
mod page_modules;
mod summary;

/// One recording of a report.
#[derive(Debug)]
pub struct ReportedRecording<'a> {
    /// `rank 3`, or `process 1234`.
    pub label: &'a str,
    /// Its recording.
    pub profile: &'a Profile,
    /// Its timeline.
    pub survey: &'a RecordingSurvey,
    /// Its memory.
    pub tracks: &'a [MemoryTrack],
}

/// The options.
#[derive(Debug, Clone, Default)]
pub struct ReportOptions {
    /// The heading; `None` for the program's name.
    pub title: Option<String>,
    /// Leaves out paths, source, host and command line.
    pub redact: bool,
}

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPTS: &[&str] = &[
    include_str!("figures.js"),
    include_str!("views.js"),
    include_str!("elements.js"),
    include_str!("summary.js"),
    include_str!("timeline.js"),
    include_str!("flamegraph.js"),
    include_str!("sandwich.js"),
    include_str!("lines.js"),
    include_str!("source.js"),
    include_str!("owners.js"),
    include_str!("modules.js"),
    include_str!("blocks.js"),
    include_str!("page.js"),
];

/// Writes the page.
pub fn report_page(
    out: &mut dyn Write,
    recordings: &[ReportedRecording<'_>],
    options: &ReportOptions,
) -> Result<(), OutputError> {
    let figures = PageFigures::new(recordings, options);
    for (number, part) in PAGE.split("{{").enumerate() {
        let (place, text) = match number {
            0 => ("", part),
            _ => part.split_once("}}").unwrap_or(("", part)),
        };
        match place {
            "title" => write!(out, "{}", html_escaped(&figures.title))?,
            "style" => write!(out, "{STYLE}")?,
            "figures" => {
                let mut packed = GzEncoder::new(Base64Lines::new(&mut *out), Compression::best());
                serde_json::to_writer(&mut packed, &figures)?;
                packed.finish()?.finish()?;
            }
            "scripts" => {
                for script in SCRIPTS {
                    writeln!(out, "{script}")?;
                }
            }
            _ => {}
        }
        write!(out, "{text}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_stay_in_their_element_and_load_nothing_external() {
        for text in SCRIPTS.iter().chain([&STYLE]) {
            let lower = text.to_lowercase();
            for forbidden in ["</script", "</style", "<!--", "innerhtml", "http:", "https:"] {
                assert!(!lower.contains(forbidden), "{forbidden}");
            }
            assert!(text.lines().count() <= 500);
        }
        assert!(!PAGE.contains("src=") && !PAGE.contains("href=\"http"));
    }
}
