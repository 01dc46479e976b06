//! Starting `contract` here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use super::follow::{self, Follow, kill};
use super::{Guests, Launch, LaunchError, error, image};

/// A running `contract`.
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

/// Starts it with its lines going to a file.
pub(super) fn start(
    launch: &Launch<'_>,
    dir: &Path,
    guests: &Guests,
) -> Result<Local, LaunchError> {
    let output = dir.join("lines");
    let file = File::create(&output).map_err(error::file("create", &output))?;
    let stock = guests.stock.as_ref();
    let stock = stock.map(|stock| stock.arguments(&stock.kernel, &stock.initrd));
    let child = follow::command(image::contract()?)
        .args(["--backend", launch.backend.word(), "--guest"])
        .arg(&guests.test)
        .args(stock.into_iter().flatten())
        .args(launch.contract)
        .stdin(Stdio::null())
        .stdout(file)
        .spawn()
        .map_err(error::start("contract"))?;
    Ok(Local { child, output })
}
