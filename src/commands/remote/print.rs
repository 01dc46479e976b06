//! `hyprobe print`.

use std::io::{self, Write as _};

use super::error::RemoteError;
use super::viewed::Viewed;
use crate::cli::PrintArgs;
use crate::commands::types;
use crate::exit::Exit;

/// Evaluates the expression in a kernel's memory, and prints the value.
pub(crate) fn print(args: &PrintArgs) -> Result<Exit, RemoteError> {
    let mut kernel = Viewed::open(&args.kernel)?;
    let declared = args.declared.as_deref();
    let printed = kernel.print(&args.expression, declared, args.depth)?;
    let mut out = io::stdout().lock();
    let written = if args.json {
        let json = serde_json::to_writer(&mut out, &printed).map_err(io::Error::from);
        json.and_then(|()| writeln!(out))
    } else {
        let text = format!("({}) {}", printed.declared, printed.text);
        types::text(&text, &mut out)
    };
    match written {
        // The reader has closed the pipe: no more lines are wanted.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(Exit::Done),
    }
}
