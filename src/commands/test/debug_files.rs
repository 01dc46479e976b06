//! The debug files that the cases need, fetched while the process may: before it gives up its rights.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use errors::chain;

use super::case::Case;
use super::schedule::Job;
use crate::report::printable;
use crate::run::guest::load_kernel;
use crate::source_lines::{
    self, Debuginfod, FetchProcess, KernelIdentity, KnownBuilds, MayFetch, ModuleFetcher,
    ModuleFiles, NamedFiles, needs_kernel_file, needy, needy_modules,
};

/// Fetches the missing debug files of the kernels, and of the modules with probes, into the cache of debuginfod, if the environment names servers.
/// `show` gets the progress, and `print_note` the reasons for files that are still missing: the cases then end with an error of their own.
pub(super) fn fetch(jobs: &[Job], show: &dyn Fn(String), print_note: &dyn Fn(String)) {
    if Debuginfod::from_env().is_none() {
        return;
    }
    let (mut asked, mut fetcher) = (AskedFiles::default(), None);
    for Job { case, .. } in jobs {
        let kernel = case.plan.config.kernel.path();
        let wanted = asked.take_new(&kernel, Wanted::of(case));
        if wanted.is_nothing() {
            continue;
        }
        for why in wanted.fetch(case, &mut fetcher, show) {
            print_note(printable(&why).into_owned());
        }
    }
}

/// The kernels and modules whose files were looked for. A second case with the same ones would ask a server that stalls again.
#[derive(Debug, Default)]
struct AskedFiles {
    kernels: HashSet<PathBuf>,
    modules: HashSet<(PathBuf, manifest::ModuleSpec)>,
}

impl AskedFiles {
    /// The files of `wanted` that no earlier case with the kernel `kernel` needed.
    fn take_new(&mut self, kernel: &Path, mut wanted: Wanted) -> Wanted {
        let is_new = wanted.kernel.is_some() && self.kernels.insert(kernel.to_owned());
        wanted.kernel = wanted.kernel.filter(|_| is_new);
        let modules = &mut self.modules;
        wanted
            .modules
            .retain(|module| modules.insert((kernel.to_owned(), module.clone())));
        wanted
    }
}

/// Starts the process that fetches the files of modules in stacks, if a case has source lines.
pub(super) fn start_process(jobs: &mut [Job], print_note: &dyn Fn(String)) {
    let has_lines = |case: &Case| {
        let (config, expectations) = (&case.plan.config, &case.plan.expectations);
        !case.debug_info.is_empty() || needy(config, expectations).is_some()
    };
    if jobs.iter().any(|job| has_lines(&job.case)) {
        let process = FetchProcess::start(print_note);
        for Job { case, .. } in jobs {
            case.fetches.clone_from(&process);
        }
    }
}

/// The debug files that the probes of a case need and that the user has not named.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    /// The first probe that needs the kernel's file.
    kernel: Option<String>,
    /// The modules, as in probes.
    modules: Vec<manifest::ModuleSpec>,
}

impl Wanted {
    fn of(case: &Case) -> Self {
        let (config, expectations) = (&case.plan.config, &case.plan.expectations);
        let named = NamedFiles::new(&case.debug_info).unwrap_or_default();
        let kernel = needs_kernel_file(config, expectations).map(ToString::to_string);
        Self {
            kernel: kernel.filter(|_| named.kernel().is_none()),
            modules: needy_modules(config, expectations).cloned().collect(),
        }
    }

    fn is_nothing(&self) -> bool {
        self.kernel.is_none() && self.modules.is_empty()
    }

    /// Fetches the files. Returns the reasons for missing ones.
    fn fetch(
        &self,
        case: &Case,
        fetcher: &mut Option<ModuleFetcher>,
        show: &dyn Fn(String),
    ) -> Vec<String> {
        let (input, mut missing) = (&case.plan.config.kernel, Vec::new());
        // The boot of the case finds an error of the kernel's file again.
        let Ok((_, vmlinux, kernel)) = load_kernel(input, show) else {
            return missing;
        };
        let identity = KernelIdentity::of_kernel(input, &vmlinux, &kernel);
        if let Some(spec) = &self.kernel {
            let opened = source_lines::open(None, &identity, spec, MayFetch::Yes(show));
            missing.extend(opened.err().map(|error| chain(&error)));
        }
        let named = NamedFiles::new(&case.debug_info).unwrap_or_default();
        let mut files = ModuleFiles::new(&identity, None, named)
            .with_builds(KnownBuilds::of_kernel(input))
            .with_fetcher(fetcher.take());
        for module in &self.modules {
            let opened = files.open_named(module, MayFetch::Yes(show));
            missing.extend(opened.err().map(|error| chain(&error)));
        }
        *fetcher = files.into_fetcher();
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_several_cases_is_looked_for_once_for_each_kernel() {
        let spec: manifest::ProbeSpec = "kprobe:ext4:file.c:12".parse().expect("a probe");
        let module = spec.module.expect("a module");
        let wanted = |probe: &str| Wanted {
            kernel: Some(probe.to_owned()),
            modules: vec![module.clone()],
        };
        let mut asked = AskedFiles::default();
        let first = wanted("kprobe:a.c:1");
        assert_eq!(asked.take_new(Path::new("/k"), first.clone()), first);
        // Another probe needs the same files.
        let second = asked.take_new(Path::new("/k"), wanted("kprobe:b.c:2"));
        assert!(second.is_nothing(), "{second:?}");
        assert_eq!(asked.take_new(Path::new("/l"), first.clone()), first);
    }
}
