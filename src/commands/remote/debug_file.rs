//! The debug file of a run's kernel, which the client reads: the run may be in an outer Linux.

use std::path::PathBuf;

use control::Client;

use super::error::RemoteError;
use crate::report::{FrameLines, printable};
use crate::source_lines::{
    self, KernelIdentity, MayFetch, ModuleFiles, NamedFiles, SourceLinesError,
};
use crate::stderr::say;

/// The kernel of a run, by the run's own word.
pub(super) fn identity(
    client: &mut Client,
) -> Result<(KernelIdentity<'static>, Option<i64>), RemoteError> {
    let machine = client.machine()?;
    let kernel = KernelIdentity {
        build_id: machine.build_id,
        banner: machine.kernel,
        own: None,
    };
    Ok((kernel, machine.slide))
}

/// The lines of frames by the debug file `given`, if any. `identity` is called for the kernel only with a file.
pub(super) fn frame_lines(
    given: &[PathBuf],
    identity: impl FnOnce() -> Result<KernelIdentity<'static>, RemoteError>,
) -> Result<Option<FrameLines>, RemoteError> {
    if given.is_empty() {
        return Ok(None);
    }
    let named = NamedFiles::new(given).map_err(SourceLinesError::from)?;
    let kernel = identity()?;
    let info = source_lines::open(named.kernel(), &kernel, "", MayFetch::No);
    let info = info.map_err(SourceLinesError::from)?;
    // The build-ids are equal, so the symbols are the kernel's.
    let symbols = info.symbols().clone();
    let modules = ModuleFiles::new(&kernel, Some(&info), named);
    Ok(Some(FrameLines::new(info, symbols, modules)))
}

/// Prints the reasons why frames have no lines.
pub(super) fn print_notes(lines: &mut FrameLines) {
    for note in lines.take_notes() {
        say(format_args!("hyprobe: {}", printable(&note)));
    }
}
