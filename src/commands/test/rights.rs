//! The rights of the process while the cases run, and the check whether the rights suffice.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use confine::{FileRights, Identity};
use guest_images::Store;
use rustix::fs::{Access, access};

use super::error::TestError;
use super::schedule::Job;
use crate::cli::TestArgs;
use crate::config::{Initrd, RunConfig};
use crate::run::identity::IdentityError;
use crate::sandbox::Sandbox;
use crate::source_lines::{DEBUG_ROOT, needy};

/// Gives up the rights that no case needs. The process has a single thread.
pub(super) fn give_up(
    args: &TestArgs,
    jobs: &[Job],
    identity: Option<&Identity>,
    tell: &dyn Fn(String),
) -> Result<(), TestError> {
    let add = |rights: &mut FileRights| {
        for Job { case, place } in jobs {
            case.plan.config.add_rights(rights);
            place.add_rights(rights);
            if needy(&case.plan.config, &case.plan.expectations).is_some() {
                rights.read.push(DEBUG_ROOT.into());
            }
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
    sandbox.put_in_force(identity, add, tell)?;
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

/// Checks that the process, which now has the user `uid`, can still read the files of the cases.
fn check_files(jobs: &[Job], uid: u32) -> Result<(), TestError> {
    let configs = jobs.iter().map(|job| &job.case.plan.config);
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
    for path in paths.flatten() {
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
