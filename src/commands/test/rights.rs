//! The rights of the process while the cases run, and the check whether the rights suffice.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use confine::{FileRights, Identity};
use guest_images::Store;
use rustix::fs::{Access, access};

use super::case::Case;
use super::error::TestError;
use super::schedule::Job;
use crate::cli::TestArgs;
use crate::config::{Initrd, RunConfig};
use crate::run::identity::IdentityError;
use crate::sandbox::Sandbox;
use crate::source_lines::{debug_folders, needy};

/// Gives up the rights that no case needs. The process has a single thread.
pub(super) fn give_up(
    args: &TestArgs,
    jobs: &[Job],
    identity: Option<&Identity>,
    print_note: &dyn Fn(String),
) -> Result<(), TestError> {
    let add = |rights: &mut FileRights| {
        for Job { case, place } in jobs {
            case.plan.config.add_rights(rights);
            place.add_rights(rights);
            rights.read.extend(debug_files(case));
        }
        rights.change.push(args.artifacts.clone());
        let parent = args.artifacts.parent();
        let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
        rights
            .prune
            .push(parent.unwrap_or(Path::new(".")).to_owned());
    };
    let sandbox = match args.no_sandbox {
        true => Sandbox::Off,
        false => Sandbox::On,
    };
    sandbox.put_in_force(identity, add, print_note)?;
    match identity {
        Some(identity) => {
            check_files(jobs, identity.uid)?;
            let path = &args.artifacts;
            if access(path, Access::WRITE_OK | Access::EXEC_OK).is_err() {
                let (uid, path) = (identity.uid, path.clone());
                return Err(IdentityError::Artifacts { uid, path }.into());
            }
            Ok(())
        }
        None => Ok(()),
    }
}

/// If the case uses debug information, the folders with the debug files of this host, which may have those of modules, and the files that the user
/// names.
fn debug_files(case: &Case) -> Vec<PathBuf> {
    let named = &case.debug_info;
    let is_needy = || needy(&case.plan.config, &case.plan.expectations).is_some();
    let folders = (!named.is_empty() || is_needy()).then(debug_folders);
    let folders = folders.into_iter().flatten();
    named.iter().cloned().chain(folders).collect()
}

/// Checks that the process, which now has the user `uid`, can still read the files of the cases.
fn check_files(jobs: &[Job], uid: u32) -> Result<(), TestError> {
    let configs = jobs.iter().map(|job| &job.case.plan.config);
    let debug_files = jobs.iter().flat_map(|job| job.case.debug_info.clone());
    let is_demo = |config: &RunConfig| config.initrd == Initrd::Demo;
    if configs.clone().any(is_demo) && !owns_cache(uid) {
        return Err(IdentityError::Cache { uid }.into());
    }
    let paths = configs.flat_map(|config| {
        let initrd = match &config.initrd {
            Initrd::File(path) => Some(path.clone()),
            Initrd::None | Initrd::Demo => None,
        };
        [Some(config.kernel.path()), initrd]
    });
    for path in paths.flatten().chain(debug_files) {
        if access(&path, Access::READ_OK).is_err() {
            return Err(IdentityError::Unreadable { uid, path }.into());
        }
    }
    Ok(())
}

/// Whether the user owns the image cache: hyprobe refuses a cache of another user.
fn owns_cache(uid: u32) -> bool {
    let store = Store::open().ok();
    let cache = store.and_then(|store| std::fs::metadata(store.root()).ok());
    cache.is_some_and(|cache| cache.uid() == uid)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    /// The case of a manifest with `tables`, under `hyprobe test` with `options`.
    fn case(tables: &str, options: &[&str]) -> Case {
        let folder = tempfile::tempdir().expect("tempdir");
        let manifest = folder.path().join("m.toml");
        let text = format!("[guest]\nkernel = '/k'\n{tables}");
        std::fs::write(&manifest, text).expect("written");
        let words = ["hyprobe", "test", "x"].iter().chain(options);
        let cli = Cli::try_parse_from(words).expect("a command");
        let Command::Test(args) = cli.command else {
            panic!("{cli:?}")
        };
        Case::read(0, &manifest, &[], &args, &|_| {}).expect("a case")
    }

    #[test]
    fn case_with_debug_information_may_read_the_named_file_and_those_of_the_host() {
        let needy = "[[probe]]\nat = 'kprobe:fs/open.c:1'\n";
        let named = ["--debug-info", "/d/vmlinux"];
        assert_eq!(debug_files(&case("", &[])), [] as [PathBuf; 0]);
        assert_eq!(debug_files(&case(needy, &[])), debug_folders());
        for tables in ["", needy] {
            let found = debug_files(&case(tables, &named));
            let named = PathBuf::from("/d/vmlinux");
            assert_eq!(found, [vec![named], debug_folders()].concat());
        }
    }
}
