//! `memspy man`: man pages from the definition of arguments.

use std::fs;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_mangen::Man;

use super::args::{CliArgs, ManArgs};
use super::output;

/// Pages are for all users and hold no job's data.
const MODE: u32 = 0o644;

pub(super) fn run(args: &ManArgs) -> Result<()> {
    let folder = &args.output;
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    // Has no effect if --file-mode was given.
    output::set_mode(MODE);
    let mut program = CliArgs::command();
    // Fills in page names such as memspy-record.
    program.build();
    let mut commands: Vec<clap::Command> = program.get_subcommands().cloned().collect();
    commands.retain(|command| !command.is_hide_set());
    commands.push(program);
    for page in commands.into_iter().map(Man::new) {
        let path = folder.join(page.get_filename());
        output::write(&path, true, |mut out| page.render(&mut out))?;
    }
    Ok(())
}
