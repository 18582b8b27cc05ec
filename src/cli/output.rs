//! Output files: names, and what must stay.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

use crate::files::{FileCreation, FileIdentity, PathKind, PlaceError, place};
use crate::model::RecordingStart;
use crate::render::{FittingWriter, OutputError};
use crate::sampler::host_name;

use super::args::ColorArg;
use super::eprint_line;
use super::verbosity::is_quiet;

/// The requested mode for all files of this run; global, like the umask.
static MODE: OnceLock<u32> = OnceLock::new();

pub(super) fn set_mode(mode: u32) {
    let _ = MODE.set(mode);
}

static READ: Mutex<Vec<FileIdentity>> = Mutex::new(Vec::new());

/// Registers an input, which must not be overwritten.
pub(super) fn is_read(path: &Path) {
    READ.lock().extend(FileIdentity::of(path));
}

pub(super) fn creation(force: bool) -> FileCreation {
    FileCreation { replace: force, mode: MODE.get().copied() }
}

pub(super) fn host() -> String {
    host_name().unwrap_or_else(|| "unknown-host".to_owned())
}

/// Columns of standard output, if it is a terminal.
pub(super) fn width() -> Option<usize> {
    size().map(|(width, _)| width)
}

/// Columns and rows of standard output, if it is a terminal.
pub(super) fn size() -> Option<(usize, usize)> {
    size_of(io::stdout())
}

pub(super) fn width_of(stream: impl AsFd) -> Option<usize> {
    size_of(stream).map(|(width, _)| width)
}

/// Columns and rows of a terminal.
pub(super) fn size_of(stream: impl AsFd) -> Option<(usize, usize)> {
    let (width, height) = terminal_size::terminal_size_of(stream)?;
    Some((usize::from(width.0), usize::from(height.0)))
}

static COLORS: OnceLock<ColorArg> = OnceLock::new();

pub(super) fn set_colors(colors: ColorArg) {
    let _ = COLORS.set(colors);
}

/// Whether text on standard output has colours.
pub(super) fn wants_colors() -> bool {
    match COLORS.get().copied().unwrap_or(ColorArg::Auto) {
        ColorArg::Always => true,
        ColorArg::Never => false,
        // By the rule of no-color.org.
        ColorArg::Auto => {
            let allows = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            allows && io::stdout().is_terminal()
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NameFields<'a> {
    pub(super) pid: u32,
    pub(super) host: &'a str,
    pub(super) rank: Option<u32>,
}

impl<'a> From<Option<&'a RecordingStart>> for NameFields<'a> {
    fn from(start: Option<&'a RecordingStart>) -> Self {
        start.map_or(NameFields::default(), |start| NameFields {
            pid: start.pid,
            host: &start.host,
            rank: start.rank,
        })
    }
}

/// Replaces `%p` by the pid, `%h` by the host, `%r` by the rank (else pid), `%%` by `%`.
pub(super) fn expand(path: &Path, naming: NameFields<'_>) -> Result<PathBuf> {
    let NameFields { pid, host, rank } = naming;
    let Some(text) = path.to_str() else { return Ok(path.to_owned()) };
    let mut expanded = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            expanded.push(c);
            continue;
        }
        match rest.next() {
            Some('p') => expanded.push_str(&pid.to_string()),
            Some('h') => expanded.push_str(&in_a_name(host)),
            Some('r') => match rank {
                Some(rank) => expanded.push_str(&rank.to_string()),
                None => expanded.push_str(&format!("p{pid}")),
            },
            Some('%') => expanded.push('%'),
            other => bail!(
                "the output name {text} has %{}: memspy knows %p (pid), %h (host), %r (rank) and %%",
                other.map(String::from).unwrap_or_default()
            ),
        }
    }
    Ok(PathBuf::from(expanded))
}

/// HOST_NAME_MAX is 64 on Linux, at most 255 in POSIX.
const MAX_HOST_LEN: usize = 64;

/// A host's name may come from an untrusted trace: only letters, digits, `-`, `_` and single inner
/// dots stay, so it cannot leave the folder or mean anything to a shell.
fn in_a_name(host: &str) -> String {
    let mut name = String::new();
    for c in host.chars().take(MAX_HOST_LEN) {
        match c {
            '.' if name.ends_with(char::is_alphanumeric) => name.push('.'),
            '-' if !name.is_empty() => name.push('-'),
            c if c.is_alphanumeric() => name.push(c),
            _ => name.push('_'),
        }
    }
    match name.trim_end_matches('.') {
        "" => "unknown-host".to_owned(),
        name => name.to_owned(),
    }
}

pub(super) fn of_report(
    asked: Option<&Path>,
    start: Option<&RecordingStart>,
    default: PathBuf,
) -> Result<PathBuf> {
    match asked {
        Some(path) => expand(path, start.into()),
        None => Ok(default),
    }
}

/// Refuses early a name that can never be a file, whatever its `%` letters become.
pub(super) fn check_requested(asked: Option<&Path>, force: bool) -> Result<()> {
    let Some(path) = asked else { return Ok(()) };
    expand(path, NameFields { pid: 1, host: "host", rank: None })?;
    let has_letters = |path: &Path| path.to_string_lossy().contains('%');
    if !has_letters(path) {
        return check(path, force);
    }
    match path.parent().filter(|parent| !has_letters(parent)) {
        Some(parent) => check_folder(path, parent),
        None => Ok(()),
    }
}

fn check_folder(path: &Path, folder: &Path) -> Result<()> {
    if !folder.as_os_str().is_empty() && !folder.is_dir() {
        bail!("cannot write {}: there is no directory {}", path.display(), folder.display());
    }
    Ok(())
}

pub(super) fn check(path: &Path, force: bool) -> Result<()> {
    if path.as_os_str() == "-" {
        return Ok(());
    }
    match place(path) {
        Ok(PathKind::Directory) => {
            bail!("cannot write {}: it is a directory; name a file with -o", path.display());
        }
        Ok(PathKind::File(file)) if READ.lock().contains(&file) => bail!(
            "cannot write {}: it is what this command reads; name another file with -o",
            path.display()
        ),
        Ok(PathKind::File(_)) if !force => bail!("{}", exists(path)),
        Err(foreign @ PlaceError::Foreign { .. }) => bail!("cannot write: {foreign} with -o"),
        // Writing to such a path fails with a better error.
        Ok(_) | Err(_) => {}
    }
    path.parent().map_or(Ok(()), |parent| check_folder(path, parent))
}

fn exists(path: &Path) -> String {
    format!("{} exists already; use --force to overwrite it, or name another file", path.display())
}

/// Writes a file, complete or not at all; `-` is standard output.
pub(super) fn write(
    path: &Path,
    force: bool,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    if path.as_os_str() == "-" {
        let mut out = BufWriter::new(io::stdout().lock());
        return match content(&mut out).and_then(|()| out.flush()) {
            // `| head` may stop early.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.context("cannot write to standard output"),
        };
    }
    check(path, force)?;
    match creation(force).write(path, content) {
        // Another program created it after the check.
        Err(PlaceError::Exists(_)) => bail!("{}", exists(path)),
        other => other.with_context(|| format!("cannot write {}", path.display())),
    }
}

/// Wraps text for a terminal, not for a file or a pipe.
pub(super) fn fitted(
    path: &Path,
    is_text: bool,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> impl FnOnce(&mut dyn Write) -> io::Result<()> {
    let width = width().filter(|_| is_text && path.as_os_str() == "-");
    move |out| match width {
        Some(width) => {
            let mut fitting = FittingWriter::new(out, width);
            content(&mut fitting)?;
            fitting.finish()
        }
        None => content(out),
    }
}

pub(super) fn errors() -> Box<dyn Write> {
    match width_of(io::stderr()) {
        Some(width) => Box::new(FittingWriter::new(io::stderr(), width)),
        None => Box::new(io::stderr()),
    }
}

/// Of what was done: nothing with --quiet.
pub(super) fn notes() -> Box<dyn Write> {
    if is_quiet() { Box::new(io::sink()) } else { errors() }
}

pub(super) fn print(content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let path = Path::new("-");
    write(path, false, fitted(path, true, content))
}

pub(super) fn bounded(
    memory: impl IntoIterator<Item = Option<u64>>,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> impl FnOnce(&mut dyn Write) -> io::Result<()> {
    let memory: Option<u64> = memory.into_iter().sum();
    let most = memory.map_or(u64::MAX, |memory| memory.saturating_mul(2));
    move |out| content(&mut BoundedWriter { out, left: most, most })
}

struct BoundedWriter<'a> {
    out: &'a mut dyn Write,
    left: u64,
    most: u64,
}

impl Write for BoundedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::other(format!(
                "it would be larger than {} MiB, too much for a recording of this size: the recording is damaged or malicious",
                self.most >> 20
            )));
        }
        let written = self.out.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

pub(super) fn report(
    path: &Path,
    force: bool,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    write(path, force, content)?;
    wrote(path);
    Ok(())
}

pub(super) fn wrote(path: &Path) {
    if path.as_os_str() != "-" {
        eprint_line(&format!("wrote {}", path.display()));
    }
}

pub(super) fn into_io(error: OutputError) -> io::Error {
    error.into_io()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_implausibly_large_report_is_refused() {
        let mut out = Vec::new();
        let write = |out: &mut dyn Write| {
            out.write_all(&[b'x'; 6])?;
            out.write_all(&[b'x'; 3])
        };
        bounded([Some(2), Some(3)], write)(&mut out).unwrap();
        bounded([Some(2), None], write)(&mut out).unwrap();
        assert_eq!(out.len(), 18);
        let error = bounded([Some(4)], write)(&mut out).unwrap_err();
        assert!(error.to_string().contains("too much for a recording of this size"), "{error}");
        assert_eq!(out.len(), 24);
    }

    #[test]
    fn percent_letters_are_replaced() {
        let naming = NameFields { pid: 42, host: "box", rank: None };
        let expand = |name: &str| expand(Path::new(name), naming);
        assert_eq!(expand("a-%p-%h-%%.bin").unwrap(), PathBuf::from("a-42-box-%.bin"));
        assert_eq!(expand("a-%r").unwrap(), PathBuf::from("a-p42"));
        let of_rank = super::expand(Path::new("a-%r"), NameFields { rank: Some(3), ..naming });
        assert_eq!(of_rank.unwrap(), PathBuf::from("a-3"));
        assert!(expand("a-%x").unwrap_err().to_string().contains("%x"));
        assert!(expand("a-%").is_err());
    }

    #[test]
    fn a_traces_host_name_cannot_leave_the_folder() {
        for (host, name) in [
            ("../../etc/x", "______etc_x"),
            ("/etc/passwd", "_etc_passwd"),
            ("..", "__"),
            (".", "_"),
            ("", "unknown-host"),
            ("-rf", "_rf"),
            ("a\0b\nc\x1b[2J", "a_b_c__2J"),
            ("gpu-17.example.org", "gpu-17.example.org"),
            ("größe", "größe"),
        ] {
            let naming = NameFields { pid: 1, host, rank: None };
            let path = expand(Path::new("out/%h.txt"), naming).unwrap();
            assert_eq!(path, PathBuf::from(format!("out/{name}.txt")), "{host:?}");
            let path = expand(Path::new("%h"), naming).unwrap();
            assert_eq!(path.components().count(), 1, "{host:?}");
        }
        let long = "x".repeat(5000);
        let path = expand(Path::new("%h"), NameFields { pid: 1, host: &long, rank: None }).unwrap();
        assert_eq!(path.as_os_str().len(), MAX_HOST_LEN);
    }

    #[test]
    fn existing_files_stay_unless_forced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.svg");
        let text = |s: &'static str| move |out: &mut dyn Write| out.write_all(s.as_bytes());
        write(&path, false, text("one")).unwrap();
        assert!(write(&path, false, text("two")).unwrap_err().to_string().contains("--force"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
        write(&path, true, text("two")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert!(
            write(folder.path(), true, text("x")).unwrap_err().to_string().contains("directory")
        );
        let nowhere = folder.path().join("no/such/x");
        assert!(write(&nowhere, false, text("x")).is_err());
    }

    #[test]
    fn a_device_file_is_written_not_replaced() {
        let device = Path::new("/dev/null");
        write(device, false, |out| out.write_all(b"x")).unwrap();
        assert!(matches!(place(device), Ok(PathKind::Stream)));
    }

    fn mode(path: &Path) -> u32 {
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions())
            & 0o7777
    }

    #[test]
    fn a_link_beside_the_output_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("x.svg"), folder.path().join("other"));
        std::fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join("x.svg.part")).unwrap();
        write(&path, false, |out| out.write_all(b"text")).unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "precious");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
    }

    #[test]
    fn overwriting_does_not_widen_a_reports_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.svg");
        write(&path, false, |out| out.write_all(b"one")).unwrap();
        assert_eq!(mode(&path), 0o600);
        for kept in [0o400, 0o600, 0o640] {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(kept);
            std::fs::set_permissions(&path, permissions).unwrap();
            write(&path, true, |out| out.write_all(b"two")).unwrap();
            assert_eq!(mode(&path), kept);
        }
    }

    #[test]
    fn a_failed_write_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.svg");
        let failing = |_: &mut dyn Write| Err(io::Error::other("no more"));
        assert!(write(&path, false, failing).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
