//! The source lines of the frames of stacks, from the debug information of the kernel and of its modules.

use address::Gva;
use debuginfo::{DebugInfo, LookupError};
use errors::chain;
use events::{Event, FrameSource, StackFrame, Summary};
use introspect::SymbolTable;

use super::code_lines::{CodeLines, SymbolPlace};
use super::module_lines::ModuleLines;
use crate::source_lines::{ModuleFiles, ModuleId};

/// Looks frames up by their symbols.
#[derive(Debug)]
pub(crate) struct FrameLines {
    kernel: CodeLines,
    modules: ModuleLines,
    /// Whether there was a note about damaged debug information.
    has_noted_damage: bool,
    /// The notes since the last [`take_notes`](Self::take_notes).
    notes: Vec<String>,
}

impl FrameLines {
    /// Lines for the kernel with `symbols`, of which `info` is the debug information, and for its modules with the debug files `modules`.
    pub(crate) fn new(info: DebugInfo, symbols: SymbolTable, modules: ModuleFiles) -> Self {
        Self {
            kernel: CodeLines::new(info, symbols),
            modules: ModuleLines::new(modules),
            has_noted_damage: false,
            notes: Vec::new(),
        }
    }

    /// Opens the debug files of modules on a thread of its own from now on: the thread that looks frames up may open no file.
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

    /// Adds the lines to the stacks at the guest's end.
    pub(crate) fn summary(&mut self, summary: &mut Summary) {
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
                let address = self.kernel.in_kernel(&place, frame.address.0)?;
                (&mut self.kernel, address)
            }
            Some(module) => {
                let module = ModuleId {
                    name: module.clone(),
                    build_id: frame.build_id.clone()?,
                };
                let lines = match self.modules.of(&module) {
                    Ok(lines) => lines?,
                    Err(note) => {
                        self.notes.push(note);
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
