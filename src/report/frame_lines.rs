//! The source lines of the frames of stacks, from the kernel's debug information.

use std::collections::HashMap;

use address::Gva;
use debuginfo::{DebugInfo, LookupError, SourceFrame};
use errors::chain;
use events::{Event, FrameSource, InlinedCall, StackFrame, Summary};
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
    /// Whether there was a note that frames have no lines.
    has_noted: bool,
    /// The notes that nobody has taken.
    notes: Vec<String>,
}

impl FrameLines {
    /// Lines for the kernel with `symbols`, of which `info` is the debug information.
    pub(crate) fn new(info: DebugInfo, symbols: SymbolTable) -> Self {
        Self {
            info,
            symbols,
            known: HashMap::new(),
            has_noted: false,
            notes: Vec::new(),
        }
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
        let (symbol, offset) = self.linked(frame)?;
        // The address behind a call may belong to the next line.
        let back = u64::from(frame.is_return_address);
        self.source(symbol.wrapping_add(offset).wrapping_sub(back))
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
        let source = match self.info.lines_at(address) {
            Ok(frames) => frame_source(frames),
            Err(error) => {
                if !self.has_noted {
                    self.notes.push(no_lines(&error));
                }
                self.has_noted = true;
                None
            }
        };
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(address, source.clone());
        source
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

/// The message about frames that the debug file cannot place.
fn no_lines(error: &LookupError) -> String {
    let why = chain(error);
    format!("frames of stacks have no source lines: {why}: replace the kernel's debug file")
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use events::Frame;
    use tempfile::TempDir;

    use super::*;

    /// The test guest's lines, and an offset in its function `put` that belongs to the inlined `put_char`.
    pub(in crate::report) struct Fixture {
        dir: TempDir,
        pub(in crate::report) lines: FrameLines,
        size: u64,
        offset: u64,
    }

    impl Fixture {
        pub(in crate::report) fn build() -> Self {
            let dir = tempfile::tempdir().expect("tempdir");
            let guest = guest_images::build_testguest(dir.path()).expect("the test guest compiles");
            let info = DebugInfo::open(&guest).expect("debug information");
            let symbols = info.symbols().clone();
            // `put` calls `put_char`, which the compiler inlines.
            let copies = info.inlined_copies("put_char").expect("copies");
            let within = symbols.resolve(copies[0]).expect("a symbol");
            assert_eq!(within.symbol.name, "put");
            Self {
                dir,
                lines: FrameLines::new(info, symbols),
                size: within.symbol.size,
                offset: within.offset,
            }
        }

        /// The frame in the copy of `put_char`.
        pub(in crate::report) fn frame(&self) -> StackFrame {
            self.frame_at(self.offset)
        }

        fn frame_at(&self, offset: u64) -> StackFrame {
            StackFrame {
                address: Gva(0).into(),
                symbol: Some(format!("put+{offset:#x}/{:#x}", self.size)),
                is_return_address: false,
                module: None,
                source: None,
            }
        }

        /// The lines of the code at `offset`: of the instruction there, and of the call in front of it.
        fn sources(&mut self, offset: u64) -> [Option<Box<FrameSource>>; 2] {
            [false, true].map(|is_return_address| {
                let mut frames = [StackFrame {
                    is_return_address,
                    ..self.frame_at(offset)
                }];
                self.lines.stack(&mut frames);
                let [frame] = frames;
                frame.source
            })
        }

        /// Replaces the second half of each large unit by nonsense.
        pub(in crate::report) fn damage(&mut self) {
            let dir = self.dir.path();
            let [guest, units, damaged] = ["testguest", "units", "damaged"].map(|it| dir.join(it));
            let objcopy = |option: &str, from: &Path, to: &Path| {
                let section = format!(".debug_info={}", units.display());
                let mut objcopy = Command::new("objcopy");
                let status = objcopy.args([option, &section]).args([from, to]).status();
                assert!(status.expect("objcopy, of binutils").success());
            };
            objcopy("--dump-section", &guest, &damaged);
            let mut bytes = fs::read(&units).expect("the units");
            let mut rest = &mut bytes[..];
            while let Some((length, _)) = rest.split_first_chunk() {
                let length = usize::try_from(u32::from_le_bytes(*length)).expect("a length");
                let (unit, behind) = rest.split_at_mut(4 + length);
                if length > 1000 {
                    unit[length / 2..].fill(0xff);
                }
                rest = behind;
            }
            fs::write(&units, bytes).expect("written");
            objcopy("--update-section", &guest, &damaged);
            let info = DebugInfo::open(&damaged).expect("debug information");
            let symbols = info.symbols().clone();
            self.lines = FrameLines::new(info, symbols);
        }
    }

    /// The summary of a guest that has panicked, with the only vCPU at `frame`, which is the caller of `panic`, too.
    pub(in crate::report) fn summary_at(frame: &StackFrame) -> Summary {
        let registers = [
            "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15", "rip", "rflags",
        ];
        let registers = registers.map(|name| (name.to_owned(), "0x0".into()));
        let registers: serde_json::Map<_, _> = registers.into_iter().collect();
        let caller = Frame::from(frame.clone());
        let summary = serde_json::json!({
            "accel": "kvm", "ran_ns": 0, "probes": [], "dropped": 0,
            "guest": {
                "end": "panic", "vcpus": [{ "vcpu": 0, "user_mode": false, "stack": [frame] }],
                "crash": { "vcpu": 0, "regs": registers, "frames": [caller] },
            },
        });
        serde_json::from_value(summary).expect("a summary")
    }

    #[test]
    fn frame_has_its_line_and_the_inlined_functions_in_it() {
        let mut fixture = Fixture::build();
        let mut frames = [
            fixture.frame(),
            // The address behind a call in the copy.
            StackFrame {
                is_return_address: true,
                ..fixture.frame_at(fixture.offset + 1)
            },
            StackFrame {
                module: Some("m".to_owned()),
                ..fixture.frame()
            },
            StackFrame {
                symbol: Some("put+0x0/0x1".to_owned()),
                ..fixture.frame()
            },
        ];
        fixture.lines.stack(&mut frames);
        let [first, caller, module, other_size] = frames;
        let source = first.source.expect("a source");
        assert_eq!(source.file.as_deref(), Some("console.c"));
        assert!(source.line > 0);
        let called = source.inlined.last().expect("the copy");
        assert_eq!(called.function, "put_char");
        assert_eq!(caller.source, Some(source));
        assert_eq!((module.source, other_size.source), (None, None));
        assert_eq!(fixture.lines.take_notes(), [] as [&str; 0]);
    }

    #[test]
    fn line_of_a_return_address_is_that_of_the_call_and_of_an_interrupted_instruction_its_own() {
        let mut fixture = Fixture::build();
        // The first byte of the copy has another line than the byte before it.
        let [own, before] = fixture.sources(fixture.offset);
        assert_ne!(own, before);
        let [behind, call] = fixture.sources(fixture.offset + 1);
        assert_eq!(call, own);
        assert!(behind.is_some());
    }

    #[test]
    fn stacks_at_the_guest_s_end_have_lines() {
        let mut fixture = Fixture::build();
        let mut event = Event::Summary(summary_at(&fixture.frame()));
        fixture.lines.event(&mut event);
        let Event::Summary(summary) = event else {
            panic!("{event:?}");
        };
        let source = summary.guest.vcpus[0].stack[0].source.as_ref();
        let file = source.and_then(|source| source.file.as_deref());
        assert_eq!(file, Some("console.c"));
        let crash = summary.guest.crash.expect("a crash");
        assert_eq!(crash.frames[0].source.as_ref(), source);
    }

    #[test]
    fn damaged_unit_is_noted_once_and_shows_no_line() {
        let mut fixture = Fixture::build();
        fixture.damage();
        let mut frames = [fixture.frame(), fixture.frame_at(fixture.offset + 8)];
        fixture.lines.stack(&mut frames);
        assert_eq!(frames[0].source, None);
        let notes = fixture.lines.take_notes();
        assert!(
            matches!(&notes[..], [note] if note.starts_with("frames of stacks have no source lines: ")),
            "{notes:?}"
        );
        assert_eq!(fixture.lines.take_notes(), [] as [&str; 0]);
        let note = no_lines(&LookupError::TooComplex);
        assert!(note.contains("refers to itself too often"), "{note}");
    }
}
