//! `memspy lines`: a trace as a table of lines.

use std::path::PathBuf;

use anyhow::Result;

use crate::analysis::{LineTable, Profile};
use crate::render::{self, LinesOptions};

use super::args::{Lines as Words, LinesFormat};
use super::flame::{device, into_io};
use super::{charging, output, replay, say};

/// Width of the table where the terminal's is not known.
const WIDTH: usize = 120;

/// Runs it.
pub(super) fn run(words: &Words) -> Result<()> {
    let default = PathBuf::from("-");
    let (profile, path) = replay::for_report(
        &words.trace,
        charging(&words.stacks),
        words.output.as_deref(),
        default,
    )?;
    let columns = match words.columns.is_empty() {
        true => Profile::default_columns(),
        false => words.columns.clone(),
    };
    let table = profile.lines(device(&profile, words.gpu)?, &columns)?;
    let options = options(words, &path);
    let format = if words.json { LinesFormat::Json } else { words.format };
    output::write(&path, words.force, |out| {
        write(format, out, &profile, &table, &options).map_err(into_io)
    })?;
    if path.as_os_str() != "-" {
        say(&format!("wrote {}", path.display()));
    }
    Ok(())
}

fn write(
    format: LinesFormat,
    out: &mut dyn std::io::Write,
    profile: &Profile,
    table: &LineTable,
    options: &LinesOptions,
) -> Result<(), render::RenderError> {
    match format {
        LinesFormat::Text => render::lines_text(out, profile, table, options),
        LinesFormat::Csv => render::lines_csv(out, profile, table, &options.functions),
        LinesFormat::Json => render::lines_json(out, profile, table, &options.functions),
    }
}

fn options(words: &Words, path: &std::path::Path) -> LinesOptions {
    let terminal = (path.as_os_str() == "-").then(terminal_size::terminal_size).flatten();
    LinesOptions {
        width: terminal.map_or(WIDTH, |(width, _)| usize::from(width.0)),
        functions: words.functions.clone(),
        limit: None,
        full_filenames: words.stacks.full_filenames,
    }
}
