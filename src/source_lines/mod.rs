//! Source lines and inlined copies, by the kernel's debug information.
//!
//! The engine knows symbols and offsets only, and may run in an outer Linux without the user's files. So the process that the user starts
//! reads the debug file, replaces probes at lines and at inlined copies by probes at `symbol+0xoffset`, and looks the frames of stacks up:
//! `docs/lines.md`.

mod debug_file;
mod debuginfod;
mod identity;
mod module_files;
mod module_sites;
mod named_files;
mod replace;
mod sites;
mod source_sites;
mod spellings;

pub(crate) use debug_file::{MayFetch, open};
pub(crate) use debuginfod::{Debuginfod, debug_folders};
pub(crate) use identity::KernelIdentity;
pub(crate) use module_files::{ModuleFileError, ModuleFiles, ModuleId};
pub(crate) use named_files::NamedFiles;
pub(crate) use replace::{SourceLinesError, needs_kernel_file, needy, replace};
pub(crate) use source_sites::SourceSites;
pub(crate) use spellings::Spellings;
