//! JSON safe on a terminal, CSV safe in a spreadsheet.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::error::OutputError;
use super::escape::{EscapeGuard, visible};

pub(crate) fn pretty_json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), OutputError> {
    let mut out = EscapeGuard::json(out);
    serde_json::to_writer_pretty(&mut out, value)?;
    Ok(writeln!(out)?)
}

pub(crate) fn json_line(out: &mut dyn Write, value: &impl Serialize) -> Result<(), OutputError> {
    let mut out = EscapeGuard::json(out);
    serde_json::to_writer(&mut out, value)?;
    Ok(writeln!(out)?)
}

/// A document that a command prints.
pub trait JsonFormat {
    /// Its name, `memspy-…`, unique.
    const FORMAT: &'static str;
    /// Rises when a field goes or changes its meaning, not for a new field.
    const VERSION: u32;
}

/// A document: format, version, content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct JsonDocument<T> {
    pub format: String,
    pub version: u32,
    #[serde(flatten)]
    pub content: T,
}

impl<T: JsonFormat + Serialize> JsonDocument<T> {
    /// Adds format and version.
    pub fn new(content: T) -> JsonDocument<T> {
        JsonDocument { format: T::FORMAT.to_owned(), version: T::VERSION, content }
    }

    /// Writes it, in many lines if `pretty`.
    pub fn write(&self, out: &mut dyn Write, pretty: bool) -> Result<(), OutputError> {
        if pretty { pretty_json(out, self) } else { json_line(out, self) }
    }
}

/// Escapes invisible characters, and disarms what a spreadsheet takes for a formula (OWASP, CSV
/// injection).
pub(crate) struct CsvSheet<W: Write>(csv::Writer<W>);

impl<W: Write> CsvSheet<W> {
    pub(crate) fn new(out: W) -> CsvSheet<W> {
        CsvSheet(csv::Writer::from_writer(out))
    }

    pub(crate) fn write_record<C: AsRef<str>>(
        &mut self,
        cells: impl IntoIterator<Item = C>,
    ) -> csv::Result<()> {
        for cell in cells {
            self.0.write_field(&*disarmed(cell.as_ref()))?;
        }
        self.0.write_record(None::<&[u8]>)
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn disarmed(cell: &str) -> Cow<'_, str> {
    // Tab and CR can begin formulas too, but are escaped by now.
    let is_formula =
        cell.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠', '\t', '\r', '\n']);
    match is_formula && !is_number(cell) {
        true => Cow::Owned(format!("'{}", visible(cell))),
        false => visible(cell),
    }
}

/// As memspy writes numbers: `-12`, `-0.5`.
fn is_number(cell: &str) -> bool {
    let digits = cell.strip_prefix('-').unwrap_or(cell);
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    are_digits(whole) && are_digits(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_not_formulas_and_numbers_stay_numbers() {
        for (cell, written) in [
            ("forward", "forward"),
            ("=cmd|'/c calc'!A0", "'=cmd|'/c calc'!A0"),
            ("+1+1", "'+1+1"),
            ("-1+cmd", "'-1+cmd"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\\t=1"),
            ("\r=1", "'\\r=1"),
            ("＝1", "'＝1"),
            ("-12", "-12"),
            ("-0.5", "-0.5"),
            ("-", "'-"),
            ("-inf", "'-inf"),
            ("a\nb\x1b[2J", "a\\nb\\x1b[2J"),
            ("", ""),
        ] {
            assert_eq!(disarmed(cell), written);
        }
    }
}
