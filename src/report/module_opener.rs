//! Where debug files of modules are opened and fetched: on the thread that looks frames up, or on threads of their own.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
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

/// The result of [`Opener::open`].
pub(super) type Opened = Result<DebugInfo, ModuleFileError>;
/// The result of a fetch.
pub(super) type Fetched = Result<(), FetchModuleError>;

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

    /// The file of `module`; `None` if there is no thread to open it.
    pub(super) fn open(&mut self, module: &ModuleId) -> Option<Opened> {
        match self {
            Self::Here(files) => Some(files.open(module)),
            Self::There(ask) => {
                ask.wanted.send(module.clone()).ok()?;
                Some(ask.answers.recv().ok()?.1)
            }
            Self::Nowhere => None,
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
