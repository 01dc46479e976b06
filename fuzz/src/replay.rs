//! A target on inputs from files.

use std::path::PathBuf;
use std::process::ExitCode;

/// Runs `target` on the empty input and on each file that the program's arguments name. A panic of the target ends the program.
pub fn replay(target: impl Fn(&[u8])) -> ExitCode {
    target(&[]);
    let paths = std::env::args_os().skip(1).map(PathBuf::from);
    for path in paths {
        match std::fs::read(&path) {
            Ok(bytes) => target(&bytes),
            Err(error) => {
                eprintln!("cannot read {}: {error}", path.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
