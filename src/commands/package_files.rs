//! `hyprobe package-files`: the man pages and the shell completions, for packages.
//!
//! The subcommand is hidden and part of the command, since the definitions of the command line are: a second program would
//! compile the command twice, and could describe another version than the packaged one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clap_complete::Shell;
use thiserror::Error;

use crate::cli::{Cli, PackageFilesArgs};
use crate::exit::{Exit, Failure};

/// The error of a file that cannot be written.
#[derive(Debug, Error)]
#[error("cannot write {path}")]
pub(crate) struct PackageFilesError {
    path: PathBuf,
    source: io::Error,
}

impl Failure for PackageFilesError {
    fn exit(&self) -> Exit {
        Exit::HostCannot
    }
}

/// Writes `man/hyprobe.1`, a page for each subcommand, and `completions/` for bash, zsh and fish.
pub(crate) fn write(args: &PackageFilesArgs) -> Result<Exit, PackageFilesError> {
    let man = directory(&args.directory, "man")?;
    clap_mangen::generate_to(Cli::command(), &man)
        .map_err(|source| PackageFilesError { path: man, source })?;
    let completions = directory(&args.directory, "completions")?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "hyprobe", &completions).map_err(
            |source| PackageFilesError {
                path: completions.clone(),
                source,
            },
        )?;
    }
    Ok(Exit::Done)
}

fn directory(parent: &Path, name: &str) -> Result<PathBuf, PackageFilesError> {
    let path = parent.join(name);
    match fs::create_dir_all(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(PackageFilesError { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn each_visible_subcommand_has_a_page_and_each_shell_its_completions() {
        let folder = TempDir::new().expect("tempdir");
        let directory = folder.path().join("new");
        write(&PackageFilesArgs {
            directory: directory.clone(),
        })
        .expect("write");
        let read = |name: &str| fs::read_to_string(directory.join(name)).expect(name);
        for subcommand in Cli::command().get_subcommands() {
            let name = subcommand.get_name();
            let page = directory.join(format!("man/hyprobe-{name}.1"));
            assert_eq!(page.exists(), !subcommand.is_hide_set(), "{name}");
        }
        assert!(read("man/hyprobe-run.1").contains("kprobe:PATTERN"));
        for file in ["hyprobe.bash", "_hyprobe", "hyprobe.fish"] {
            let text = read(&format!("completions/{file}"));
            assert!(text.contains("no-optimise"), "{file}");
        }
    }
}
