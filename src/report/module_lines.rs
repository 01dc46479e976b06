//! The debug information of the modules that stacks go through.
//!
//! A file is opened when the first frame of its module comes. The thread that writes a run's output may open no file, so it asks another
//! thread, and waits for the answer.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use debuginfo::DebugInfo;
use errors::chain;

use super::code_lines::CodeLines;
use crate::source_lines::{ModuleFileError, ModuleFiles, ModuleId};

/// The most modules of a run: a guest may name any number.
const MAX_MODULES: usize = 256;
/// The most debug information of modules in memory. That of Debian's largest module has 60 MB.
const MAX_BYTES: u64 = 1 << 30;

type Answer = Result<DebugInfo, ModuleFileError>;

/// Where files are opened.
#[derive(Debug)]
enum Opener {
    /// On the thread that looks frames up.
    Here(Box<ModuleFiles>),
    /// On a thread of its own.
    There {
        wanted: Sender<ModuleId>,
        opened: Receiver<Answer>,
    },
    /// Nowhere: the thread could not be started, or has ended.
    Nowhere,
}

/// The modules of stacks, with their debug information.
#[derive(Debug)]
pub(super) struct ModuleLines {
    opener: Opener,
    /// `None` for a module without a file.
    known: HashMap<ModuleId, Option<CodeLines>>,
    /// The size of the debug information of all known modules.
    bytes: u64,
    /// Whether a note has named a module without a file, or the limit.
    has_noted_missing: bool,
    has_noted_limit: bool,
}

impl ModuleLines {
    /// The modules with debug files among `files`.
    pub(super) fn new(files: ModuleFiles) -> Self {
        Self {
            opener: Opener::Here(Box::new(files)),
            known: HashMap::new(),
            bytes: 0,
            has_noted_missing: false,
            has_noted_limit: false,
        }
    }

    /// Opens files on a thread of its own from now on, which ends with `self`.
    pub(super) fn open_on_thread(&mut self) -> io::Result<()> {
        let Opener::Here(mut files) = std::mem::replace(&mut self.opener, Opener::Nowhere) else {
            return Ok(());
        };
        let (wanted, requests) = channel::<ModuleId>();
        let (answers, opened) = channel();
        std::thread::Builder::new()
            .name("debug-files".to_owned())
            .spawn(move || {
                for module in requests {
                    if answers.send(files.open(&module)).is_err() {
                        break;
                    }
                }
            })?;
        self.opener = Opener::There { wanted, opened };
        Ok(())
    }

    /// The debug information of `module`.
    ///
    /// # Errors
    ///
    /// A note about missing lines, the first time.
    pub(super) fn of(&mut self, module: &ModuleId) -> Result<Option<&mut CodeLines>, String> {
        let mut note = None;
        if !self.known.contains_key(module) {
            let opened = match self.has_room() {
                true => self.open(module),
                false => {
                    note = self.limit_note();
                    None
                }
            };
            let lines = match opened {
                Some(Ok(info)) => {
                    self.bytes += info.bytes();
                    let symbols = info.symbols().clone();
                    Some(CodeLines::new(info, symbols))
                }
                Some(Err(error)) => {
                    note = self.note(module, &error);
                    None
                }
                None => None,
            };
            if self.known.len() < MAX_MODULES {
                self.known.insert(module.clone(), lines);
            }
        }
        match note {
            Some(note) => Err(note),
            None => Ok(self.known.get_mut(module).and_then(Option::as_mut)),
        }
    }

    fn has_room(&self) -> bool {
        self.known.len() < MAX_MODULES && self.bytes < MAX_BYTES
    }

    fn open(&mut self, module: &ModuleId) -> Option<Answer> {
        match &mut self.opener {
            Opener::Here(files) => Some(files.open(module)),
            Opener::There { wanted, opened } => {
                wanted.send(module.clone()).ok()?;
                opened.recv().ok()
            }
            Opener::Nowhere => None,
        }
    }

    /// The note about a module. Stacks go through many modules, so only the first without a file is named.
    fn note(&mut self, module: &ModuleId, error: &ModuleFileError) -> Option<String> {
        let is_missing = matches!(error, ModuleFileError::Missing { .. });
        if is_missing && std::mem::replace(&mut self.has_noted_missing, true) {
            return None;
        }
        let others = match is_missing {
            true => "; further modules without a file are not named",
            false => "",
        };
        let why = chain(error);
        let name = &module.name;
        Some(format!(
            "frames of the module `{name}` have no source lines: {why}{others}"
        ))
    }

    fn limit_note(&mut self) -> Option<String> {
        let is_first = !std::mem::replace(&mut self.has_noted_limit, true);
        is_first.then(|| {
            format!(
                "frames of further modules have no source lines: {MAX_MODULES} modules, or {} MiB of debug information, are the most of a run",
                MAX_BYTES >> 20
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn modules_of_a_hostile_guest_have_a_limit_and_notes_are_few() {
        for on_thread in [false, true] {
            let mut lines = ModuleLines::new(ModuleFiles::below(Path::new("/nonexistent"), "6.1"));
            if on_thread {
                lines.open_on_thread().expect("a thread");
            }
            let mut notes = Vec::new();
            for number in 0..2 * MAX_MODULES {
                let module = ModuleId {
                    name: format!("m{number}"),
                    build_id: "00ab".to_owned(),
                };
                // The second look-up of a module has no note.
                for _ in 0..2 {
                    match lines.of(&module) {
                        Ok(found) => assert!(found.is_none()),
                        Err(note) => notes.push(note),
                    }
                }
            }
            assert_eq!(lines.known.len(), MAX_MODULES);
            let [missing, limit] = &notes[..] else {
                panic!("{notes:?}");
            };
            assert!(
                missing.starts_with(
                    "frames of the module `m0` have no source lines: /nonexistent has no"
                ),
                "{missing}"
            );
            assert!(limit.contains("256 modules"), "{limit}");
        }
    }
}
