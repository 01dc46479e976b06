//! The sites of source lines and inlined copies, in the kernel and in modules.

use debuginfo::DebugInfo;
use introspect::SymbolTable;
use manifest::ProbeSpec;

use super::debug_file::MayFetch;
use super::module_files::ModuleFiles;
use super::module_sites::ModuleSites;
use super::sites::{KernelSymbols, Sites, SourceSiteError, sites};

/// The debug files of a kernel and its modules.
#[derive(Debug)]
pub(crate) struct SourceSites<'f> {
    /// The kernel's debug information, if a probe in the kernel needs it, and the kernel's symbols.
    kernel: Option<(&'f DebugInfo, KernelSymbols<'f>)>,
    modules: ModuleSites,
}

impl<'f> SourceSites<'f> {
    /// The files `info` and `modules`. The kernel with these `symbols` runs at the distance `slide` from its link-time addresses, if that is known.
    pub(crate) fn new(
        info: Option<&'f DebugInfo>,
        symbols: &'f SymbolTable,
        slide: Option<i64>,
        modules: ModuleFiles,
    ) -> Self {
        Self {
            kernel: info.map(|info| (info, KernelSymbols::new(symbols, slide))),
            modules: ModuleSites::new(modules),
        }
    }

    /// The probes in place of `spec`. A missing file of a module is fetched if the process may. If the kernel has no debug information, a probe in the kernel itself, which the engine refuses.
    pub(crate) fn of(
        &mut self,
        spec: &ProbeSpec,
        may_fetch: MayFetch<'_>,
    ) -> Result<Sites, SourceSiteError> {
        match (&spec.module, &self.kernel) {
            _ if !spec.location.needs_debug_info() => Ok(Sites::only(spec)),
            (Some(module), _) => self.modules.of(spec, module, may_fetch),
            (None, Some((info, kernel))) => Ok(sites(info, spec, kernel)?),
            (None, None) => Ok(Sites::only(spec)),
        }
    }

    /// The debug files of modules, for the lines of frames.
    pub(crate) fn into_module_files(self) -> ModuleFiles {
        self.modules.into_files()
    }
}
