//! The debug files that the cases need, fetched while the process may: before it gives up its rights.

use std::collections::HashSet;

use errors::chain;

use super::schedule::Job;
use crate::report::printable;
use crate::run::guest::load_kernel;
use crate::source_lines::{
    self, Debuginfod, KernelIdentity, MayFetch, NamedFiles, needs_kernel_file,
};

/// Fetches the missing debug files of the kernels into the cache of debuginfod, if the environment names servers. `show` gets the progress, and
/// `print_note` the reasons for files that are still missing: the cases then end with an error of their own.
pub(super) fn fetch(jobs: &[Job], show: &dyn Fn(String), print_note: &dyn Fn(String)) {
    if Debuginfod::from_env().is_none() {
        return;
    }
    let mut seen = HashSet::new();
    for Job { case, .. } in jobs {
        let config = &case.plan.config;
        let has_named =
            NamedFiles::new(&case.debug_info).is_ok_and(|named| named.kernel().is_some());
        let needy = needs_kernel_file(config, &case.plan.expectations);
        let Some(spec) = needy.filter(|_| !has_named) else {
            continue;
        };
        if !seen.insert(config.kernel.path()) {
            continue;
        }
        // The boot of the case finds an error of the kernel's file again.
        if let Ok((_, vmlinux, kernel)) = load_kernel(&config.kernel, show) {
            let kernel = KernelIdentity::of_kernel(&config.kernel, &vmlinux, &kernel);
            let opened = source_lines::open(None, &kernel, &spec.to_string(), MayFetch::Yes(show));
            if let Err(error) = opened {
                print_note(printable(&chain(&error)).into_owned());
            }
        }
    }
}
