//! The source lines of the frames of stacks, from the debug information of the kernel and of its modules.

use std::time::{Duration, Instant};

use address::Gva;
use debuginfo::LookupError;
use errors::chain;
use events::{Event, FrameSource, StackFrame, Summary};
use introspect::SymbolTable;

use super::code_lines::{CodeLines, SymbolPlace};
use super::module_lines::ModuleLines;
use crate::source_lines::{LineFiles, ModuleFetch, ModuleId};

/// The wait for files that are being fetched at the guest's end, and for opening them. Less than the limit of an output that stalls after a ctrl-C.
const WAIT_AT_END: Duration = Duration::from_secs(2);

/// Looks frames up by their symbols.
#[derive(Debug)]
pub(crate) struct FrameLines {
    /// Those of the kernel, or the reason why there are none.
    kernel: Result<CodeLines, String>,
    modules: ModuleLines,
    /// Whether there was a note about damaged debug information.
    has_noted_damage: bool,
    /// Whether there was a note about the kernel's missing file.
    has_noted_kernel: bool,
    /// The notes since the last [`take_notes`](Self::take_notes).
    notes: Vec<String>,
}

impl FrameLines {
    /// Lines for the kernel with `symbols`, and for its modules, by the debug files `files`.
    pub(crate) fn new(files: LineFiles, symbols: SymbolTable) -> Self {
        let kernel = files.kernel.map(|info| CodeLines::new(info, symbols));
        Self {
            kernel,
            modules: ModuleLines::new(files.modules),
            has_noted_damage: false,
            has_noted_kernel: false,
            notes: Vec::new(),
        }
    }

    /// Fetches the missing debug files of modules by `fetch`: at once, or on a thread after [`open_on_thread`](Self::open_on_thread).
    pub(crate) fn fetch_by(&mut self, fetch: Option<ModuleFetch>) {
        if let Some(fetch) = fetch {
            self.modules.fetch_by(fetch);
        }
    }

    /// Opens and fetches the debug files of modules on threads of their own from now on: the thread that looks frames up may open no file.
    /// A frame does not wait for a fetch.
    ///
    /// # Errors
    ///
    /// If the host has no thread to give.
    pub(crate) fn open_on_thread(&mut self) -> std::io::Result<()> {
        self.modules.open_on_thread()
    }

    /// The reasons why frames have no lines, a sentence each: those since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Adds the lines to the stacks of an event.
    pub(crate) fn event(&mut self, event: &mut Event) {
        match event {
            Event::Hit(hit) => self.stack(hit.stack.as_deref_mut().unwrap_or_default()),
            Event::Return(ret) => self.stack(ret.stack.as_deref_mut().unwrap_or_default()),
            Event::Summary(summary) => self.summary(summary),
            Event::Note(_) => (),
        }
    }

    /// Adds the lines to the stacks at the guest's end. Waits a moment for the files that are being fetched.
    pub(crate) fn summary(&mut self, summary: &mut Summary) {
        self.modules.end_waits_at(Instant::now() + WAIT_AT_END);
        self.stacks_of(summary);
        if self.modules.await_fetches() {
            self.stacks_of(summary);
        }
        self.notes.extend(self.modules.take_notes());
    }

    fn stacks_of(&mut self, summary: &mut Summary) {
        for vcpu in &mut summary.guest.vcpus {
            self.stack(&mut vcpu.stack);
        }
        let crash = summary.guest.crash.as_deref_mut();
        for frame in crash.into_iter().flat_map(|crash| &mut crash.frames) {
            frame.source = self.frame(&frame.to_stack_frame());
        }
    }

    /// Adds the lines to the frames of a stack.
    pub(crate) fn stack(&mut self, frames: &mut [StackFrame]) {
        for frame in frames {
            frame.source = self.frame(frame);
        }
    }

    fn frame(&mut self, frame: &StackFrame) -> Option<Box<FrameSource>> {
        let place = SymbolPlace::parse(frame.symbol.as_deref()?)?;
        let (lines, address) = match &frame.module {
            None => {
                let kernel = match &mut self.kernel {
                    Ok(kernel) => kernel,
                    Err(why) => {
                        if !std::mem::replace(&mut self.has_noted_kernel, true) {
                            let note = format!("frames of the kernel have no source lines: {why}");
                            self.notes.push(note);
                        }
                        return None;
                    }
                };
                let address = kernel.in_kernel(&place, frame.address.0)?;
                (kernel, address)
            }
            Some(module) => {
                let module = ModuleId {
                    name: module.clone(),
                    build_id: frame.build_id.clone()?,
                };
                let lines = self.modules.of(&module);
                let lines = match lines {
                    Some(lines) => lines,
                    None => {
                        self.notes.extend(self.modules.take_notes());
                        return None;
                    }
                };
                let address = lines.in_module(&place)?;
                (lines, address)
            }
        };
        // The address behind a call may belong to the next line.
        let back = u64::from(frame.is_return_address);
        match lines.at(Gva(address.0.wrapping_sub(back))) {
            Ok(source) => source,
            Err(error) => {
                if !self.has_noted_damage {
                    self.notes.push(no_lines(&error));
                }
                self.has_noted_damage = true;
                None
            }
        }
    }
}

/// The message about frames that the debug file cannot place.
fn no_lines(error: &LookupError) -> String {
    let why = chain(error);
    format!("frames of stacks have no source lines: {why}: replace the debug file")
}

#[cfg(test)]
pub(super) mod tests;
