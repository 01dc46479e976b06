//! `hyprobe images`.

use std::io::{self, Write};

use guest_images::{CacheError, FetchError, Freshness, ImageKind, Store};
use thiserror::Error;

use crate::cli::ImagesCommand;
use crate::exit::{Exit, Failure};
use crate::report::Progress;
use crate::run::images::ImageError;

/// Why images cannot be listed or fetched.
#[derive(Debug, Error)]
pub(crate) enum ImagesError {
    /// An image cannot be had.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The list cannot be written.
    #[error("cannot write to standard output")]
    Write(#[from] io::Error),
}

impl From<FetchError> for ImagesError {
    fn from(error: FetchError) -> Self {
        Self::Image(error.into())
    }
}

impl From<CacheError> for ImagesError {
    fn from(error: CacheError) -> Self {
        FetchError::from(error).into()
    }
}

impl Failure for ImagesError {
    fn exit(&self) -> Exit {
        match self {
            Self::Image(error) => error.exit(),
            Self::Write(_) => Exit::HostCannot,
        }
    }
}

/// `hyprobe images`.
pub(crate) fn images(command: &ImagesCommand) -> Result<Exit, ImagesError> {
    let store = Store::open()?;
    match command {
        ImagesCommand::List => list(&store),
        ImagesCommand::Fetch { names, refresh } => {
            let freshness = if *refresh {
                Freshness::Newest
            } else {
                Freshness::Cached
            };
            fetch(&store, names, freshness)
        }
    }
}

fn list(store: &Store) -> Result<Exit, ImagesError> {
    let mut out = io::stdout().lock();
    for entry in store.catalog().images() {
        let kind = match entry.kind {
            ImageKind::Kernel => "kernel",
            ImageKind::Program => "program",
            ImageKind::Debug => "debug",
        };
        let here = match store.cached(&entry.name)? {
            Some(image) => format!("{}  {}", image.release(), image.path().display()),
            None => format!("not here; from Debian {}", entry.suite),
        };
        writeln!(out, "{:<20} {kind:<8} {here}", entry.name)?;
    }
    Ok(Exit::Done)
}

fn fetch(store: &Store, names: &[String], freshness: Freshness) -> Result<Exit, ImagesError> {
    // All names first: a slip in the last should not be found out after minutes.
    for name in names {
        store.entry(name)?;
    }
    let progress = Progress::on_stderr();
    let mut out = io::stdout().lock();
    for name in names {
        let image = store.fetch(name, freshness, &|step| progress.say(step.to_string()))?;
        progress.pause(|| {
            writeln!(
                out,
                "{:<20} {}  {}",
                image.name,
                image.release(),
                image.path().display()
            )
        })?;
    }
    progress.clear();
    Ok(Exit::Done)
}
