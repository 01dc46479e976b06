//! Source lines and inlined copies, by the kernel's debug information.
//!
//! The engine knows symbols and offsets only, and may run in an outer Linux without the user's files. So the process that the user starts
//! reads the debug file, replaces probes at lines and at inlined copies by probes at `symbol+0xoffset`, and looks the frames of stacks up:
//! `docs/lines.md`.

mod debug_file;
mod debuginfod;
mod identity;
mod module_files;
mod replace;
mod sites;
mod spellings;

pub(crate) use debug_file::{MayFetch, open};
pub(crate) use debuginfod::{Debuginfod, debug_folders};
pub(crate) use identity::KernelIdentity;
pub(crate) use module_files::{ModuleFileError, ModuleFiles, ModuleId};
pub(crate) use replace::{SourceLinesError, needy, replace};
pub(crate) use sites::{KernelSymbols, sites};
pub(crate) use spellings::Spellings;
