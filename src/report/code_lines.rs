//! The source lines of the code of a kernel or of a module.

use std::collections::HashMap;

use address::Gva;
use debuginfo::{DebugInfo, LookupError, SourceFrame};
use events::{FrameSource, InlinedCall};
use introspect::SymbolTable;

/// Stacks repeat the same frames. With more than this number, all are looked up again.
const MAX_KNOWN: usize = 8192;

/// A file with debug information, and the answers of look-ups.
#[derive(Debug)]
pub(super) struct CodeLines {
    info: DebugInfo,
    /// At link-time addresses.
    symbols: SymbolTable,
    known: HashMap<Gva, Option<Box<FrameSource>>>,
}

impl CodeLines {
    /// The lines of the code with `symbols`, of which `info` is the debug information.
    pub(super) fn new(info: DebugInfo, symbols: SymbolTable) -> Self {
        Self {
            info,
            symbols,
            known: HashMap::new(),
        }
    }

    /// The lines of the code at the link-time address `address`.
    pub(super) fn at(&mut self, address: Gva) -> Result<Option<Box<FrameSource>>, LookupError> {
        if let Some(known) = self.known.get(&address) {
            return Ok(known.clone());
        }
        let found = self.info.lines_at(address);
        let source = found.as_ref().ok().cloned().and_then(frame_source);
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(address, source.clone());
        found.map(|_| source)
    }

    /// The link-time address of `place` in the kernel. Of several functions of the name, that with the frame's address `running`: in a kernel
    /// that runs where it is linked, the address tells them apart.
    pub(super) fn in_kernel(&self, place: &SymbolPlace<'_>, running: u64) -> Option<Gva> {
        let namesakes = self.symbols.lookup_all(place.name);
        let mut functions = namesakes.iter().filter(|symbol| symbol.is_text());
        match (functions.next(), functions.next()) {
            (Some(only), None) => (only.size == place.size).then(|| place.at(only.address)),
            _ => {
                let mut addresses = namesakes.iter().map(|symbol| place.at(symbol.address));
                addresses.find(|address| address.0 == running)
            }
        }
    }

    /// The address of `place` in a module's file. Of several functions of the name, the only one of the size.
    pub(super) fn in_module(&self, place: &SymbolPlace<'_>) -> Option<Gva> {
        let namesakes = self.symbols.lookup_all(place.name);
        let functions = || namesakes.iter().filter(|symbol| symbol.is_text());
        // In the running module, the size of a section's last function reaches to the next section. In the file, it does not.
        let is_only = functions().nth(1).is_none();
        let mut fitting = functions().filter(|symbol| is_only || symbol.size == place.size);
        match (fitting.next(), fitting.next()) {
            (Some(function), None) => Some(place.at(function.address)),
            _ => None,
        }
    }
}

/// A frame's `symbol+0xoffset/0xsize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SymbolPlace<'f> {
    name: &'f str,
    offset: u64,
    size: u64,
}

impl<'f> SymbolPlace<'f> {
    /// The parts of `text`, if it has this form.
    pub(super) fn parse(text: &'f str) -> Option<Self> {
        let (name, rest) = text.split_once("+0x")?;
        let (offset, size) = rest.split_once("/0x")?;
        let [offset, size] = [offset, size].map(|digits| u64::from_str_radix(digits, 16).ok());
        Some(Self {
            name,
            offset: offset?,
            size: size?,
        })
    }

    fn at(&self, symbol: Gva) -> Gva {
        symbol.wrapping_add(self.offset)
    }
}

/// The lines of an address, that of the innermost inlined function first.
fn frame_source(mut frames: Vec<SourceFrame>) -> Option<Box<FrameSource>> {
    let own = frames.pop()?;
    Some(Box::new(FrameSource {
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
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbol_of_a_frame_has_a_name_an_offset_and_a_size() {
        let place = SymbolPlace {
            name: "vfs_read",
            offset: 0x165,
            size: 0x310,
        };
        assert_eq!(SymbolPlace::parse("vfs_read+0x165/0x310"), Some(place));
        for text in [
            "",
            "vfs_read",
            "vfs_read+0x5",
            "vfs_read+0x5/0x",
            "f+0xg/0x1",
        ] {
            assert_eq!(SymbolPlace::parse(text), None, "{text}");
        }
    }
}
