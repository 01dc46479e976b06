//! Starting the program here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use super::follow::{self, Follow, kill};
use super::payload::{Payload, Program};
use super::{Launch, LaunchError, error};

/// A running program.
#[derive(Debug)]
pub(super) struct Local {
    child: Child,
    output: PathBuf,
}

impl Follow for Local {
    fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    fn output(&mut self) -> Result<Vec<u8>, LaunchError> {
        std::fs::read(&self.output).map_err(error::file("read", &self.output))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

/// If KVM interprets the guest's kernel, a store with a fault on the second page has already written the part in the first page.
const MISTAKES_OF_INTERPRETERS: [&str; 2] = ["--without", "edge"];

/// Starts the program, with the lines going to a file.
pub(super) fn start(
    launch: &Launch<'_>,
    dir: &Path,
    payload: &Payload,
) -> Result<Local, LaunchError> {
    let output = dir.join("lines");
    let file = File::create(&output).map_err(error::file("create", &output))?;
    let mut command = follow::command(&payload.program);
    command.args(["--backend", launch.backend.word()]);
    for file in &payload.files {
        command.arg(file.option).arg(&file.path);
    }
    if matches!(launch.program, Program::Contract { .. }) {
        command.args(MISTAKES_OF_INTERPRETERS);
    }
    let child = command
        .args(&payload.options)
        .args(launch.arguments)
        .stdin(Stdio::null())
        .stdout(file)
        .spawn()
        .map_err(error::start(launch.program.name()))?;
    Ok(Local { child, output })
}
