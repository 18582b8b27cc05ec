//! Opens a written file in the browser.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const OPENER: &str = "xdg-open";
/// It may run as long as the browser; it fails sooner.
const MOST_WAITED: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) fn open(path: &Path) -> Result<()> {
    let shown = path.display();
    let path = std::path::absolute(path).with_context(|| format!("cannot open {shown}"))?;
    let mut command = Command::new(OPENER);
    command.arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut opener = match command.spawn() {
        Ok(opener) => opener,
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "{shown} is written, but cannot be opened: there is no {OPENER} (package xdg-utils); open the file \
             yourself"
        ),
        Err(error) => return Err(error).context(format!("cannot start {OPENER}")),
    };
    let until = Instant::now() + MOST_WAITED;
    while Instant::now() < until {
        match opener.try_wait().with_context(|| format!("cannot wait for {OPENER}"))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!(
                "{shown} is written, but {OPENER} could not open it ({status}): is there a browser on this \
                 machine? open the file yourself"
            ),
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
    Ok(())
}
