//! The source lines of the frames of stacks, from the kernel's debug information.

use std::collections::HashMap;

use address::Gva;
use debuginfo::DebugInfo;
use events::{Event, FrameSource, InlinedCall, StackFrame};
use introspect::{Symbol, SymbolTable};

/// Stacks repeat the same frames. With more than this number, all are looked up again.
const MAX_KNOWN: usize = 8192;

/// Looks frames up by their symbols. Frames of modules have no lines: the debug information is the kernel's own.
#[derive(Debug)]
pub(crate) struct FrameLines {
    info: DebugInfo,
    /// At link-time addresses.
    symbols: SymbolTable,
    known: HashMap<Gva, Option<Box<FrameSource>>>,
}

impl FrameLines {
    /// Lines for the kernel with `symbols`, of which `info` is the debug information.
    pub(crate) fn new(info: DebugInfo, symbols: SymbolTable) -> Self {
        Self {
            info,
            symbols,
            known: HashMap::new(),
        }
    }

    /// Adds the lines to the stack of an event.
    pub(crate) fn event(&mut self, event: &mut Event) {
        match event {
            Event::Hit(hit) => self.stack(hit.stack.as_deref_mut().unwrap_or_default()),
            Event::Return(ret) => self.stack(ret.stack.as_deref_mut().unwrap_or_default()),
            Event::Note(_) | Event::Summary(_) => (),
        }
    }

    /// Adds the lines to the frames of a stack, the innermost first.
    pub(crate) fn stack(&mut self, frames: &mut [StackFrame]) {
        for (level, frame) in frames.iter_mut().enumerate() {
            let address = self.linked(frame).map(|(symbol, offset)| {
                // The address behind a call may belong to the next line.
                let is_behind_call = level > 0 && offset > 0;
                symbol
                    .wrapping_add(offset)
                    .wrapping_sub(u64::from(is_behind_call))
            });
            frame.source = address.and_then(|address| self.source(address));
        }
    }

    /// The link-time address of the frame's symbol, and the offset.
    fn linked(&self, frame: &StackFrame) -> Option<(Gva, u64)> {
        if frame.module.is_some() {
            return None;
        }
        let (name, rest) = frame.symbol.as_deref()?.split_once("+0x")?;
        let (offset, size) = rest.split_once("/0x")?;
        let [offset, size] = [offset, size].map(|digits| u64::from_str_radix(digits, 16).ok());
        let (offset, namesakes) = (offset?, self.symbols.lookup_all(name));
        let mut fitting = namesakes.iter().filter(|symbol| symbol.is_text());
        match (fitting.next(), fitting.next()) {
            (Some(symbol), None) if Some(symbol.size) == size => Some((symbol.address, offset)),
            // Several functions have the name. In a kernel that runs where it is linked, the address tells them apart.
            (Some(_), Some(_)) => {
                let is_at =
                    |symbol: &&Symbol| symbol.address.wrapping_add(offset).0 == frame.address.0;
                namesakes
                    .iter()
                    .find(is_at)
                    .map(|symbol| (symbol.address, offset))
            }
            _ => None,
        }
    }

    fn source(&mut self, address: Gva) -> Option<Box<FrameSource>> {
        if let Some(known) = self.known.get(&address) {
            return known.clone();
        }
        // Damaged debug information has no lines to show.
        let mut frames = self.info.lines_at(address).unwrap_or_default();
        let own = frames.pop();
        let source = own.map(|own| {
            Box::new(FrameSource {
                file: own.file,
                line: own.line,
                inlined: frames
                    .into_iter()
                    .map(|frame| InlinedCall {
                        function: frame.function.unwrap_or_else(|| "?".to_owned()),
                        file: frame.file,
                        line: frame.line,
                    })
                    .collect(),
            })
        });
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(address, source.clone());
        source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_has_its_line_and_the_inlined_functions_in_it() {
        let dir = tempfile::tempdir().expect("tempdir");
        let guest = guest_images::build_testguest(dir.path()).expect("the test guest compiles");
        let info = DebugInfo::open(&guest).expect("debug information");
        let symbols = info.symbols().clone();
        // `put` calls `put_char`, which the compiler inlines.
        let copies = info.inlined_copies("put_char").expect("copies");
        let within = symbols.resolve(copies[0]).expect("a symbol");
        assert_eq!(within.symbol.name, "put");
        let frame = |offset: u64, module: Option<&str>| StackFrame {
            address: Gva(0).into(),
            symbol: Some(format!("put+{offset:#x}/{:#x}", within.symbol.size)),
            module: module.map(str::to_owned),
            source: None,
        };
        let mut frames = [
            frame(within.offset, None),
            // The address behind an instruction of the copy.
            frame(within.offset + 1, None),
            frame(within.offset, Some("m")),
            StackFrame {
                symbol: Some("put+0x0/0x1".to_owned()),
                ..frame(0, None)
            },
        ];
        FrameLines::new(info, symbols).stack(&mut frames);
        let [first, caller, module, other_size] = frames;
        let source = first.source.expect("a source");
        assert_eq!(source.file.as_deref(), Some("console.c"));
        assert!(source.line > 0);
        let called = source.inlined.last().expect("the copy");
        assert_eq!(called.function, "put_char");
        assert_eq!(caller.source, Some(source));
        assert_eq!((module.source, other_size.source), (None, None));
    }
}
