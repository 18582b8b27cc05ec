//! A folder for one run.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::files::create_folder;

/// Deleted with this.
pub(in crate::cli) struct RunFolder {
    pub(in crate::cli) path: PathBuf,
}

impl RunFolder {
    pub(in crate::cli) fn create() -> Result<RunFolder> {
        let root = std::env::temp_dir();
        for number in 0..1000 {
            let path = root.join(format!("memspy-run-{}-{number}", std::process::id()));
            if !path.exists() {
                create_folder(&path)?;
                return Ok(RunFolder { path });
            }
        }
        bail!("cannot create a folder in {}", root.display())
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
