//! The debug information of the modules that stacks go through.
//!
//! A file is opened when the first frame of its module comes. If this host has no usable file and `DEBUGINFOD_URLS` names servers, the file
//! is fetched meanwhile, and the later frames have lines.

use std::collections::HashMap;
use std::io;
use std::time::Instant;

use debuginfo::DebugInfo;
use errors::chain;

use super::code_lines::CodeLines;
use super::module_opener::{FetchState, Fetched, Fetcher, OpenState, Opener};
use crate::source_lines::{FetchModuleError, ModuleFetch, ModuleFileError, ModuleFiles, ModuleId};

/// The most modules of a run: a guest may name any number.
const MAX_MODULES: usize = 256;
/// The most debug information of modules in memory. That of Debian's largest module has 60 MB.
const MAX_BYTES: u64 = 1 << 30;

/// A module of the guest.
#[derive(Debug)]
enum KnownModule {
    Lines(Box<CodeLines>),
    /// Without a usable file, for this reason.
    Fetching(ModuleFileError),
    NoLines,
}

/// The end of a wait for a fetched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchEnd {
    Done,
    /// The file is not open yet.
    Late,
}

/// The modules of stacks, with their debug information.
#[derive(Debug)]
pub(super) struct ModuleLines {
    opener: Opener,
    fetcher: Fetcher,
    known: HashMap<ModuleId, KnownModule>,
    /// The size of the debug information of all known modules.
    bytes: u64,
    /// Whether a note has named a module without a file, a module whose file is being fetched, or the limit.
    has_noted_missing: bool,
    has_noted_fetch: bool,
    has_noted_limit: bool,
    /// The end of all waits, once the guest has ended.
    deadline: Option<Instant>,
    notes: Vec<String>,
}

impl ModuleLines {
    /// The modules with debug files among `files`.
    pub(super) fn new(files: ModuleFiles) -> Self {
        Self {
            opener: Opener::Here(Box::new(files)),
            fetcher: Fetcher::Off,
            known: HashMap::new(),
            bytes: 0,
            has_noted_missing: false,
            has_noted_fetch: false,
            has_noted_limit: false,
            deadline: None,
            notes: Vec::new(),
        }
    }

    /// Fetches missing files by `fetch` from now on.
    pub(super) fn fetch_by(&mut self, fetch: ModuleFetch) {
        self.fetcher = Fetcher::Here(fetch);
    }

    /// Opens and fetches files on threads of their own from now on, which end with `self`.
    pub(super) fn open_on_thread(&mut self) -> io::Result<()> {
        self.opener.move_to_thread()?;
        self.fetcher.move_to_thread()
    }

    /// The reasons why frames have no lines, a sentence each: those since the last call.
    pub(super) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The debug information of `module`; `None` without a file, or before it is open.
    pub(super) fn of(&mut self, module: &ModuleId) -> Option<&mut CodeLines> {
        while let Some((fetched, answer)) = self.fetcher.answer() {
            self.end_fetch(fetched, answer);
        }
        if !self.known.contains_key(module) {
            let found = match self.has_room() {
                true => self.find(module),
                false => {
                    self.note_limit();
                    KnownModule::NoLines
                }
            };
            if self.known.len() < MAX_MODULES {
                self.known.insert(module.clone(), found);
            }
        }
        match self.known.get_mut(module)? {
            KnownModule::Lines(lines) => Some(lines),
            KnownModule::Fetching(_) | KnownModule::NoLines => None,
        }
    }

    /// Waits for nothing after `deadline`: neither for a fetch, nor for a file that another thread opens.
    pub(super) const fn end_waits_at(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Waits for the files that are being fetched, and opens them, until the deadline. Returns whether one has come.
    pub(super) fn await_fetches(&mut self) -> bool {
        let deadline = self.deadline.unwrap_or_else(Instant::now);
        let mut has_come = false;
        while self.is_fetching() {
            let Some((module, answer)) = self.fetcher.answer_before(deadline) else {
                break;
            };
            has_come |= answer.is_ok();
            if self.end_fetch(module, answer) == FetchEnd::Late {
                break;
            }
        }
        let pending = self.known.values();
        let pending = pending.filter(|known| matches!(known, KnownModule::Fetching(_)));
        let pending = pending.count();
        if pending > 0 {
            self.notes.push(format!(
                "modules whose debug files had not been fetched and opened when the guest ended: {pending}"
            ));
        }
        has_come
    }

    fn is_fetching(&self) -> bool {
        let mut known = self.known.values();
        known.any(|known| matches!(known, KnownModule::Fetching(_)))
    }

    fn has_room(&self) -> bool {
        self.known.len() < MAX_MODULES && self.bytes < MAX_BYTES
    }

    /// Opens the file of a module that is not known yet, or begins to fetch the file.
    fn find(&mut self, module: &ModuleId) -> KnownModule {
        let error = match self.opener.open(module, self.deadline) {
            OpenState::File(info) => return self.lines(*info),
            OpenState::NoFile(error) => *error,
            OpenState::Late => {
                let name = &module.name;
                self.notes.push(format!(
                    "frames of the module `{name}` have no source lines: its debug file was not open in time at the guest's end"
                ));
                return KnownModule::NoLines;
            }
            OpenState::Nowhere => return KnownModule::NoLines,
        };
        match self.fetcher.fetch(module) {
            FetchState::Off => self.without(module, &error),
            FetchState::Done(Ok(())) => {
                let opened = self.opener.open(module, self.deadline);
                self.fetched(module, opened, error)
            }
            FetchState::Done(Err(failure)) => self.not_fetched(module, failure, error),
            FetchState::Begun => {
                self.note_fetch(module);
                KnownModule::Fetching(error)
            }
        }
    }

    /// Opens the file of `module` after its fetch.
    fn end_fetch(&mut self, module: ModuleId, answer: Fetched) -> FetchEnd {
        // Of another module nothing is fetched.
        let Some(KnownModule::Fetching(local)) = self.known.remove(&module) else {
            return FetchEnd::Done;
        };
        let opened = answer.map(|()| self.opener.open(&module, self.deadline));
        let found = match opened {
            Ok(opened) => self.fetched(&module, opened, local),
            Err(failure) => self.not_fetched(&module, failure, local),
        };
        let end = match found {
            KnownModule::Fetching(_) => FetchEnd::Late,
            KnownModule::Lines(_) | KnownModule::NoLines => FetchEnd::Done,
        };
        self.known.insert(module, found);
        end
    }

    /// The module after the fetch. `local` is the reason why this host's own files were of no use.
    fn fetched(
        &mut self,
        module: &ModuleId,
        opened: OpenState,
        local: ModuleFileError,
    ) -> KnownModule {
        match opened {
            OpenState::File(info) => self.lines(*info),
            OpenState::NoFile(error) => self.without(module, &error),
            OpenState::Late => KnownModule::Fetching(local),
            OpenState::Nowhere => KnownModule::NoLines,
        }
    }

    /// The module after a failed fetch.
    fn not_fetched(
        &mut self,
        module: &ModuleId,
        failure: FetchModuleError,
        local: ModuleFileError,
    ) -> KnownModule {
        self.without(module, &local.and_no_fetch(module, failure))
    }

    fn lines(&mut self, info: DebugInfo) -> KnownModule {
        self.bytes += info.bytes();
        let symbols = info.symbols().clone();
        KnownModule::Lines(Box::new(CodeLines::new(info, symbols)))
    }

    /// Notes the reason. Stacks go through many modules, so only the first without a file is named.
    fn without(&mut self, module: &ModuleId, error: &ModuleFileError) -> KnownModule {
        let is_missing = matches!(error, ModuleFileError::Missing { .. });
        if is_missing && std::mem::replace(&mut self.has_noted_missing, true) {
            return KnownModule::NoLines;
        }
        let others = match is_missing {
            true => "; further modules without a file are not named",
            false => "",
        };
        let why = chain(error);
        let name = &module.name;
        self.notes.push(format!(
            "frames of the module `{name}` have no source lines: {why}{others}"
        ));
        KnownModule::NoLines
    }

    fn note_fetch(&mut self, module: &ModuleId) {
        if !std::mem::replace(&mut self.has_noted_fetch, true) {
            let name = &module.name;
            self.notes.push(format!(
                "frames of the module `{name}` have no source lines until its debug file is fetched; further modules are fetched without a note"
            ));
        }
    }

    fn note_limit(&mut self) {
        if !std::mem::replace(&mut self.has_noted_limit, true) {
            self.notes.push(format!(
                "frames of further modules have no source lines: {MAX_MODULES} modules, or {} MiB of debug information, are the most of a run",
                MAX_BYTES >> 20
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use debuginfo::synthetic::Program;

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
                    assert!(lines.of(&module).is_none());
                    notes.extend(lines.take_notes());
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

    fn module(number: usize) -> ModuleId {
        ModuleId {
            name: format!("m{number}"),
            build_id: "00ab".to_owned(),
        }
    }

    fn without_files() -> ModuleLines {
        ModuleLines::new(ModuleFiles::below(Path::new("/nonexistent"), "6.1"))
    }

    #[test]
    fn frame_does_not_wait_for_a_fetch_and_the_failure_is_noted_when_it_comes() {
        let mut lines = without_files();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        lines.fetch_by(ModuleFetch::new(move |_| {
            let _ = wait.recv();
            Err(FetchModuleError::Limit)
        }));
        lines.open_on_thread().expect("threads");
        assert!(lines.of(&module(0)).is_none());
        let notes = lines.take_notes();
        assert!(
            matches!(&notes[..], [note] if note.contains("until its debug file is fetched")),
            "{notes:?}"
        );
        go.send(()).expect("the thread waits");
        lines.end_waits_at(Instant::now() + Duration::from_secs(60));
        assert!(!lines.await_fetches());
        let notes = lines.take_notes();
        assert!(
            matches!(&notes[..], [note] if note.contains("`m0`") && note.contains("64 modules")),
            "{notes:?}"
        );
        assert!(lines.of(&module(0)).is_none() && lines.take_notes().is_empty());
    }

    #[test]
    fn fetch_that_has_not_ended_at_the_guest_s_end_is_noted() {
        let mut lines = without_files();
        let (_go, wait) = std::sync::mpsc::channel::<()>();
        lines.fetch_by(ModuleFetch::new(move |_| {
            let _ = wait.recv();
            Ok(())
        }));
        lines.open_on_thread().expect("threads");
        assert!(lines.of(&module(0)).is_none());
        lines.take_notes();
        lines.end_waits_at(Instant::now());
        assert!(!lines.await_fetches());
        let notes = lines.take_notes();
        assert!(
            matches!(&notes[..], [note] if note.contains("had not been fetched and opened when the guest ended: 1")),
            "{notes:?}"
        );
    }

    #[test]
    fn fetch_on_the_same_thread_is_followed_by_another_look_at_the_files() {
        let folder = tempfile::tempdir().expect("tempdir");
        let source = "int begin(int n)\n{\n\treturn n + 1;\n}\n";
        let program = Program::of_sources(&[("m.c", source)], &["-r", "-mcmodel=kernel"]);
        let info = DebugInfo::open_module(&program.path(), &[]).expect("a module");
        let module = ModuleId {
            name: "m".to_owned(),
            build_id: info.build_id().expect("a build-id").to_string(),
        };
        let id = module.build_id.clone();
        let to = folder.path().join(".build-id").join(&id[..2]);
        let file = to.join(format!("{}.debug", &id[2..]));
        // A damaged file does not prevent the fetch, and remains the reason after a failed fetch.
        std::fs::create_dir_all(&to).expect("made");
        std::fs::write(&file, "damaged").expect("written");
        let mut lines = ModuleLines::new(ModuleFiles::below(folder.path(), "6.1"));
        lines.fetch_by(ModuleFetch::new(|_| Err(FetchModuleError::Limit)));
        assert!(lines.of(&module).is_none());
        let notes = lines.take_notes();
        assert!(
            matches!(&notes[..], [note] if note.contains("ELF file") && note.contains("64 modules")),
            "{notes:?}"
        );
        let mut lines = ModuleLines::new(ModuleFiles::below(folder.path(), "6.1"));
        lines.fetch_by(ModuleFetch::new(move |_| {
            std::fs::copy(program.path(), &file).expect("copied");
            Ok(())
        }));
        assert!(lines.of(&module).is_some());
        assert_eq!(lines.take_notes(), [] as [&str; 0]);
    }
}
