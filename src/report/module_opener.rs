//! Where debug files of modules are opened and fetched: on the thread that looks frames up, or on threads of their own.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use debuginfo::DebugInfo;

use crate::source_lines::{FetchModuleError, ModuleFetch, ModuleFileError, ModuleFiles, ModuleId};

/// Requests to another thread, and the answers.
#[derive(Debug)]
pub(super) struct Ask<T> {
    wanted: Sender<ModuleId>,
    answers: Receiver<(ModuleId, T)>,
}

impl<T: Send + 'static> Ask<T> {
    /// Starts the thread `name`, which answers by `answer` and ends with the returned value.
    fn start(
        name: &str,
        mut answer: impl FnMut(&ModuleId) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let (wanted, requests) = channel::<ModuleId>();
        let (sender, answers) = channel();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                for module in requests {
                    let answer = answer(&module);
                    if sender.send((module, answer)).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self { wanted, answers })
    }
}

/// A file, or the reason why the file cannot be used.
pub(super) type Opened = Result<DebugInfo, ModuleFileError>;
/// The result of a fetch.
pub(super) type Fetched = Result<(), FetchModuleError>;

/// The answer to a request to open a file.
#[derive(Debug)]
pub(super) enum OpenState {
    File(Box<DebugInfo>),
    NoFile(Box<ModuleFileError>),
    /// The deadline came first.
    Late,
    /// There is no thread to open files.
    Nowhere,
}

impl From<Opened> for OpenState {
    fn from(opened: Opened) -> Self {
        match opened {
            Ok(info) => Self::File(Box::new(info)),
            Err(error) => Self::NoFile(Box::new(error)),
        }
    }
}

/// Where files are opened.
#[derive(Debug)]
pub(super) enum Opener {
    /// On the thread that looks frames up.
    Here(Box<ModuleFiles>),
    /// On a thread of its own, for which the caller waits.
    There(Box<Ask<Opened>>),
    /// Nowhere: the thread could not be started, or has ended.
    Nowhere,
}

impl Opener {
    /// Opens files on a thread of its own from now on.
    pub(super) fn move_to_thread(&mut self) -> io::Result<()> {
        match std::mem::replace(self, Self::Nowhere) {
            Self::Here(mut files) => {
                let ask = Ask::start("debug-files", move |module| files.open(module))?;
                *self = Self::There(Box::new(ask));
            }
            moved => *self = moved,
        }
        Ok(())
    }

    /// Opens the file of `module`, before `deadline` if there is one. On the thread that looks frames up, the deadline does not count.
    pub(super) fn open(&mut self, module: &ModuleId, deadline: Option<Instant>) -> OpenState {
        match self {
            Self::Here(files) => files.open(module).into(),
            Self::There(ask) => match ask.wanted.send(module.clone()) {
                Ok(()) => ask.opened(module, deadline),
                Err(_) => OpenState::Nowhere,
            },
            Self::Nowhere => OpenState::Nowhere,
        }
    }
}

impl Ask<Opened> {
    /// The answer for `module`. Drops the answers to earlier requests, which came after their deadlines.
    fn opened(&self, module: &ModuleId, deadline: Option<Instant>) -> OpenState {
        loop {
            let answer = match deadline {
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.answers.recv_timeout(left)
                }
                None => self.answers.recv().map_err(RecvTimeoutError::from),
            };
            match answer {
                Ok((of, opened)) if of == *module => return opened.into(),
                Ok(_) => (),
                Err(RecvTimeoutError::Timeout) => return OpenState::Late,
                Err(RecvTimeoutError::Disconnected) => return OpenState::Nowhere,
            }
        }
    }
}

/// Where files are fetched.
#[derive(Debug)]
pub(super) enum Fetcher {
    /// Nowhere.
    Off,
    /// On the thread that looks frames up.
    Here(ModuleFetch),
    /// On a thread of its own. Nothing waits for it, except the guest's end for a moment.
    There(Box<Ask<Fetched>>),
}

/// The answer to a request to fetch.
#[derive(Debug)]
pub(super) enum FetchState {
    /// Nothing is fetched.
    Off,
    Done(Fetched),
    /// The answer comes later.
    Begun,
}

impl Fetcher {
    /// Fetches on a thread of its own from now on.
    pub(super) fn move_to_thread(&mut self) -> io::Result<()> {
        match std::mem::replace(self, Self::Off) {
            Self::Here(mut fetch) => {
                let ask = Ask::start("debug-fetch", move |module| fetch.fetch(module))?;
                *self = Self::There(Box::new(ask));
            }
            moved => *self = moved,
        }
        Ok(())
    }

    /// Fetches the file of `module`, or begins to.
    pub(super) fn fetch(&mut self, module: &ModuleId) -> FetchState {
        match self {
            Self::Off => FetchState::Off,
            Self::Here(fetch) => FetchState::Done(fetch.fetch(module)),
            Self::There(ask) => match ask.wanted.send(module.clone()) {
                Ok(()) => FetchState::Begun,
                Err(_) => FetchState::Off,
            },
        }
    }

    /// The next answer that has come.
    pub(super) fn answer(&mut self) -> Option<(ModuleId, Fetched)> {
        match self {
            Self::There(ask) => ask.answers.try_recv().ok(),
            Self::Off | Self::Here(_) => None,
        }
    }

    /// The next answer before `deadline`.
    pub(super) fn answer_before(&mut self, deadline: Instant) -> Option<(ModuleId, Fetched)> {
        let Self::There(ask) = self else {
            return None;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        ask.answers.recv_timeout(left).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    fn module(name: &str) -> ModuleId {
        ModuleId {
            name: name.to_owned(),
            build_id: "00ab".to_owned(),
        }
    }

    #[test]
    fn open_ends_at_its_deadline_and_the_late_answer_is_not_taken_for_another_module_s() {
        let (go, wait) = channel::<()>();
        let mut files = ModuleFiles::below(Path::new("/nonexistent"), "6.1");
        let ask = Ask::start("debug-files", move |module| {
            let _ = wait.recv();
            files.open(module)
        });
        let mut opener = Opener::There(Box::new(ask.expect("a thread")));
        let late = opener.open(
            &module("a"),
            Some(Instant::now() + Duration::from_millis(1)),
        );
        assert!(matches!(late, OpenState::Late), "{late:?}");
        drop(go);
        let OpenState::NoFile(error) = opener.open(&module("b"), None) else {
            panic!("no answer")
        };
        assert!(error.to_string().contains("`b`"), "{error}");
    }
}
