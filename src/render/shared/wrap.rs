//! Wraps text between words, never inside a command.

use std::io::{self, Write};

use textwrap::core::{Word, display_width};
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

const COMMANDS: [(&str, char); 3] = [("'memspy ", '\''), ("`memspy ", '`'), ("(memspy ", ')')];
pub(crate) const COMMENT: &str = "    # ";

/// `None` keeps the line whole. Further lines begin at the last column of a table, or are indented.
pub(crate) fn wrapped(line: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width.filter(|width| display_width(line) > *width) else {
        return vec![line.to_owned()];
    };
    if line.trim_start().starts_with("memspy ") {
        return command_lines(line);
    }
    indented(line, width, &" ".repeat(hanging(line, width)))
}

pub(crate) fn indented(line: &str, width: usize, indent: &str) -> Vec<String> {
    let pieces = WordSeparator::Custom(|line| Box::new(Pieces { rest: line }));
    split(line, Options::new(width).subsequent_indent(indent).word_separator(pieces))
}

/// Its first columns, with a mark where something is left out.
pub(crate) fn cut(line: &str, width: usize) -> String {
    if display_width(line) <= width {
        return line.to_owned();
    }
    let mut kept = String::new();
    for c in line.chars() {
        kept.push(c);
        if display_width(&kept) >= width {
            kept.pop();
            break;
        }
    }
    kept.push('…');
    kept
}

/// Wraps inside commands, too.
pub fn words_wrapped(line: &str, width: usize) -> Vec<String> {
    split(line, Options::new(width).word_separator(WordSeparator::AsciiSpace))
}

fn split(line: &str, options: Options<'_>) -> Vec<String> {
    let options = options
        // A cut path or name cannot be copied.
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::wrap(line, options).into_iter().map(|line| line.into_owned()).collect()
}

fn command_lines(line: &str) -> Vec<String> {
    match line.split_once(COMMENT) {
        Some((command, comment)) => {
            let begin = command.len() - command.trim_start().len();
            vec![format!("{}# {comment}", &command[..begin]), command.to_owned()]
        }
        None => vec![line.to_owned()],
    }
}

/// Where the last column of a table begins.
fn hanging(line: &str, width: usize) -> usize {
    let begin = line.len() - line.trim_start().len();
    let gaps = line.trim_start().match_indices("  ").map(|(at, _)| begin + at);
    let columns = gaps.map(|at| {
        let spaces = line[at..].len() - line[at..].trim_start().len();
        display_width(&line[..at + spaces])
    });
    let column = columns.filter(|column| *column <= width * 2 / 3).max();
    // Leaves room for a long name where possible.
    let longest = Pieces { rest: line }.map(|word| display_width(word.word)).max().unwrap_or(0);
    let least = (begin + 2).min(width / 2);
    column.map_or(least, |column| column.min(width.saturating_sub(longest)).max(least))
}

/// A command in a sentence is one word.
struct Pieces<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let begins = |(begin, end): &(&str, char)| {
            let (first, words) = self.rest.split_at_checked(begin.len())?;
            let length = (first == *begin).then(|| words.find(*end))??;
            Some(begin.len() + length)
        };
        let command = COMMANDS.iter().find_map(begins).unwrap_or(0);
        let word = self.rest[command..].find(' ').map_or(self.rest.len(), |at| command + at);
        let spaces = self.rest[word..].len() - self.rest[word..].trim_start_matches(' ').len();
        let (piece, rest) = self.rest.split_at(word + spaces);
        self.rest = rest;
        (!piece.is_empty()).then(|| Word::from(piece))
    }
}

/// Wraps its output to a width.
pub struct FittingWriter<W: Write> {
    out: W,
    width: usize,
    line: Vec<u8>,
}

impl<W: Write> FittingWriter<W> {
    /// Lines of at most `width` columns.
    pub fn new(out: W, width: usize) -> FittingWriter<W> {
        FittingWriter { out, width, line: Vec::new() }
    }

    /// Writes the last line if it has no line end.
    pub fn finish(mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.write_fitting(&line, "")
    }

    fn write_fitting(&mut self, line: &[u8], end: &str) -> io::Result<()> {
        let text = String::from_utf8_lossy(line);
        let lines = wrapped(&text, Some(self.width)).join("\n");
        self.out.write_all(lines.as_bytes())?;
        self.out.write_all(end.as_bytes())
    }
}

impl<W: Write> Write for FittingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(part) => {
                    self.line.extend_from_slice(part);
                    let line = std::mem::take(&mut self.line);
                    self.write_fitting(&line, "\n")?;
                }
                None => self.line.extend_from_slice(part),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wrap_between_words_only_with_a_width() {
        let line = "one two three four";
        assert_eq!(wrapped(line, Some(9)), ["one two", "  three", "  four"]);
        assert_eq!(wrapped(line, None), [line]);
        assert_eq!(wrapped(line, Some(18)), [line]);
    }

    #[test]
    fn the_last_column_wraps_below_itself() {
        let line = " 1.00 GiB   72.5 %  saved for backward, alive by train: losses[*] (539 graphs)";
        assert_eq!(
            wrapped(line, Some(50)),
            [
                " 1.00 GiB   72.5 %  saved for backward, alive by",
                "                    train: losses[*] (539 graphs)"
            ]
        );
    }

    #[test]
    fn a_long_name_is_indented_less() {
        let line = "   71.00 MiB   20.0 %        71  main: evaluation_predictions_per_step[*]";
        assert_eq!(
            wrapped(line, Some(44)),
            [
                "   71.00 MiB   20.0 %        71  main:",
                "          evaluation_predictions_per_step[*]"
            ]
        );
    }

    #[test]
    fn commands_and_names_are_never_broken() {
        let command = "    memspy referrers -p 1 'train: a long name of a list[0]'";
        assert_eq!(wrapped(command, Some(20)), [command]);
        let shown = format!("  memspy flame 'a b.bin'{COMMENT}which stacks hold the memory");
        assert_eq!(
            wrapped(&shown, Some(40)),
            ["  # which stacks hold the memory", "  memspy flame 'a b.bin'"]
        );
        let sentence = "grew in each of 3 snapshots over 2 s (memspy growth -p 12 --for 60s)";
        assert_eq!(
            wrapped(sentence, Some(50)),
            ["grew in each of 3 snapshots over 2 s", "  (memspy growth -p 12 --for 60s)"]
        );
        let path = "in /a/very/long/path/that/no/line/has/room/for.py";
        assert_eq!(
            wrapped(path, Some(10)),
            ["in", "  /a/very/long/path/that/no/line/has/room/for.py"]
        );
    }

    #[test]
    fn partial_writes_are_wrapped_as_lines() {
        let mut out = Vec::new();
        let mut fitting = FittingWriter::new(&mut out, 9);
        for part in ["one t", "wo three\n\nfour fi", "ve six"] {
            fitting.write_all(part.as_bytes()).unwrap();
        }
        fitting.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "one two\n  three\n\nfour five\n  six");
    }
}
