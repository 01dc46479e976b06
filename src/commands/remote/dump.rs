//! `hyprobe dump`.

use std::cell::Cell;
use std::time::{Duration, Instant};

use dump::sparse::{self, News};
use dump::{SparseFile, sparse::ReceiveError};
use files::{Opened, Replacement};

use super::connect::connect;
use super::error::RemoteError;
use crate::cli::DumpArgs;
use crate::exit::Exit;
use crate::report::{Progress, printable};
use crate::stderr::say;

/// The time between two updates of the progress line.
const UPDATE: Duration = Duration::from_millis(100);

/// Writes the guest's memory and registers to a core file.
pub(crate) fn dump(args: &DumpArgs) -> Result<Exit, RemoteError> {
    let path = args.file.clone();
    // The file first: a wrong path costs the guest no pause.
    let new = Replacement::create(&path);
    let new = new.map_err(|source| RemoteError::Create {
        path: path.clone(),
        source,
    })?;
    let incomplete = |source| RemoteError::Dump {
        path: path.clone(),
        source,
    };
    let unwritten = |error| incomplete(ReceiveError::Write(error));
    let file = match new.output().map_err(unwritten)? {
        Opened::Regular(file) => SparseFile::regular(file),
        Opened::Stream(file) => SparseFile::stream(file),
    };
    let client = connect(&args.run)?;
    let most = sparse::most_bytes(client.machine()?.memory_bytes);
    let began = Instant::now();
    let mut frames = client.dump(args.pause_limit)?;
    let news = Shown {
        progress: Progress::on_stderr(),
        updated: Cell::new(None),
    };
    let received = sparse::receive(&mut frames, file, most, &news);
    news.progress.clear();
    let bytes = received.map_err(incomplete)?;
    new.finish().map_err(unwritten)?;
    say(format_args!(
        "hyprobe: {}: {} MiB of the guest, which was paused for {:.1} s",
        printable(&path.to_string_lossy()),
        bytes >> 20,
        began.elapsed().as_secs_f64()
    ));
    Ok(Exit::Done)
}

/// Shows news on standard error.
struct Shown {
    progress: Progress,
    updated: Cell<Option<Instant>>,
}

impl News for Shown {
    fn progress(&self, done: u64, size: u64) {
        let now = Instant::now();
        let is_due = |last: Instant| now.duration_since(last) >= UPDATE;
        if self.updated.get().is_none_or(is_due) {
            self.updated.set(Some(now));
            self.progress
                .show(format!("dumping: {} of {} MiB", done >> 20, size >> 20));
        }
    }

    fn remark(&self, text: &str) {
        self.progress
            .pause(|| say(format_args!("hyprobe: {}", printable(text))));
    }
}
