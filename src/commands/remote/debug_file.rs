//! The debug file of a run's kernel, which the client reads: the run may be in an outer Linux.

use std::path::PathBuf;

use control::Client;

use super::error::RemoteError;
use crate::report::{FrameLines, printable};
use crate::source_lines::{
    self, FetchProcess, KernelIdentity, LineFiles, MayFetch, ModuleFetch, ModuleFiles, NamedFiles,
    SourceLinesError,
};
use crate::stderr::say;

/// The kernel of a run, by the run's own word.
pub(super) fn identity(
    client: &Client,
) -> Result<(KernelIdentity<'static>, Option<i64>), RemoteError> {
    let machine = client.machine()?;
    let kernel = KernelIdentity {
        build_id: machine.build_id,
        banner: machine.kernel,
        own: None,
    };
    Ok((kernel, machine.slide))
}

/// The lines of frames by the debug files `given`, if any. `identity` is called for the kernel only with a file. Missing files of modules are
/// fetched as `fetch` makes of another process, which also ends a download when ctrl-C ends this one.
pub(super) fn frame_lines(
    given: &[PathBuf],
    fetch: impl FnOnce(ModuleFetch) -> ModuleFetch,
    identity: impl FnOnce() -> Result<KernelIdentity<'static>, RemoteError>,
) -> Result<Option<FrameLines>, RemoteError> {
    if given.is_empty() {
        return Ok(None);
    }
    let named = NamedFiles::new(given).map_err(SourceLinesError::from)?;
    let kernel = identity()?;
    let info = match source_lines::open(named.kernel(), &kernel, "", MayFetch::No) {
        Err(error) if named.kernel().is_some() => return Err(SourceLinesError::from(error).into()),
        // The named files are those of modules.
        opened => opened.map_err(|error| error.reason()),
    };
    // The build-ids are equal, so the symbols are the kernel's.
    let symbols = info.as_ref().map(|info| info.symbols().clone());
    let symbols = symbols.unwrap_or_default();
    let modules = ModuleFiles::new(&kernel, info.as_ref().ok(), named);
    let files = LineFiles {
        kernel: info,
        modules,
    };
    let mut lines = FrameLines::new(files, symbols);
    let process = FetchProcess::start(&|text| say(format_args!("hyprobe: {}", printable(&text))));
    lines.fetch_by(process.map(|process| fetch(process.fetch())));
    Ok(Some(lines))
}

/// Prints the reasons why frames have no lines.
pub(super) fn print_notes(lines: &mut FrameLines) {
    for note in lines.take_notes() {
        say(format_args!("hyprobe: {}", printable(&note)));
    }
}
