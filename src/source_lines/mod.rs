//! Source lines and inlined copies, by the kernel's debug information.
//!
//! The engine knows symbols and offsets only, and may run in an outer Linux without the user's files. So the process that the user starts
//! reads the debug file, replaces probes at lines and at inlined copies by probes at `symbol+0xoffset`, and looks the frames of stacks up:
//! `docs/lines.md`.

mod debug_file;
mod debuginfod;
mod fetch_process;
mod identity;
mod known_builds;
mod module_fetch;
mod module_file_error;
mod module_files;
mod module_id;
mod module_sites;
mod named_files;
mod replace;
mod sites;
mod source_sites;
mod spellings;

pub(crate) use debug_file::{MayFetch, open};
pub(crate) use debuginfod::{Debuginfod, debug_folders};
pub(crate) use fetch_process::{FetchProcess, serve as serve_fetches};
pub(crate) use identity::KernelIdentity;
pub(crate) use known_builds::KnownBuilds;
pub(crate) use module_fetch::{FetchModuleError, ModuleFetch, ModuleFetcher};
pub(crate) use module_file_error::ModuleFileError;
pub(crate) use module_files::ModuleFiles;
pub(crate) use module_id::ModuleId;
pub(crate) use named_files::NamedFiles;
pub(crate) use replace::{
    LineFiles, SourceLinesError, needs_kernel_file, needy, needy_modules, replace,
};
pub(crate) use sites::Site;
pub(crate) use source_sites::SourceSites;
pub(crate) use spellings::Spellings;
