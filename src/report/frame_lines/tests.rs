use std::fs;
use std::path::Path;
use std::process::Command;

use debuginfo::DebugInfo;
use debuginfo::synthetic::Program;
use events::Frame;
use tempfile::TempDir;

use super::*;
use crate::source_lines::ModuleFiles;

/// The test guest's lines, and an offset in its function `put` that belongs to the inlined `put_char`.
pub(in crate::report) struct Fixture {
    dir: TempDir,
    pub(in crate::report) lines: FrameLines,
    size: u64,
    offset: u64,
}

/// The file of a kernel without debug files of modules.
fn kernel_alone(info: DebugInfo) -> LineFiles {
    LineFiles {
        kernel: Ok(info),
        modules: ModuleFiles::below(Path::new("/nonexistent"), "6.1"),
    }
}

impl Fixture {
    pub(in crate::report) fn build() -> Self {
        let dir = tempfile::tempdir().expect("tempdir");
        let guest = guest_images::build_testguest(dir.path()).expect("the test guest compiles");
        let info = DebugInfo::open(&guest).expect("debug information");
        let symbols = info.symbols().clone();
        // `put` calls `put_char`, which the compiler inlines.
        let copies = info.inlined_copies("put_char").expect("copies");
        let within = symbols.resolve(copies[0].address).expect("a symbol");
        assert_eq!(within.symbol.name, "put");
        Self {
            dir,
            lines: FrameLines::new(kernel_alone(info), symbols),
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
            build_id: None,
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
        self.lines = FrameLines::new(kernel_alone(info), symbols);
    }
}

/// The summary of a guest that has panicked, with the only vCPU at `frame`, which is the caller of `panic`, too.
pub(in crate::report) fn summary_at(frame: &StackFrame) -> Summary {
    let registers = [
        "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15", "rip", "rflags",
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

/// A module with its debug file in a folder of debug files, and the kernel of the fixture.
struct WithModule {
    folder: TempDir,
    lines: FrameLines,
    build_id: String,
    size: u64,
}

impl WithModule {
    fn build() -> Self {
        let folder = tempfile::tempdir().expect("tempdir");
        let source =
            "int begin(int n)\n{\n\treturn n + 1;\n}\nint end(int n)\n{\n\treturn n + 2;\n}\n";
        let module = Program::of_sources(&[("sub/m.c", source)], &["-r", "-mcmodel=kernel"]);
        let modules = folder.path().join("lib/modules/6.1");
        fs::create_dir_all(&modules).expect("made");
        fs::copy(module.path(), modules.join("m.ko")).expect("copied");
        let info = DebugInfo::open_module(&module.path(), &[]).expect("a module");
        let begin = info.symbols().lookup("begin").expect("begin");
        let files = ModuleFiles::below(folder.path(), "6.1");
        let (build_id, size) = (info.build_id().expect("a build-id").to_string(), begin.size);
        Self {
            lines: FrameLines::new(
                LineFiles {
                    kernel: Err("it is not here".to_owned()),
                    modules: files,
                },
                SymbolTable::default(),
            ),
            folder,
            build_id,
            size,
        }
    }

    /// The lines of the first instruction of `function` in a module with this build-id.
    fn line(&mut self, function: &str, build_id: Option<&str>) -> Option<u64> {
        let size = self.size;
        let mut frames = [StackFrame {
            address: Gva(0).into(),
            symbol: Some(format!("{function}+0x0/{size:#x}")),
            is_return_address: false,
            module: Some("m".to_owned()),
            build_id: build_id.map(str::to_owned),
            source: None,
        }];
        self.lines.stack(&mut frames);
        let [frame] = frames;
        Some(frame.source?.line)
    }
}

#[test]
fn frame_in_a_module_has_its_line_also_if_a_thread_opens_the_file() {
    for on_thread in [false, true] {
        let mut fixture = WithModule::build();
        if on_thread {
            fixture.lines.open_on_thread().expect("a thread");
        }
        let build_id = fixture.build_id.clone();
        let is_within = |line: Option<u64>, lines: [u64; 2]| {
            line.is_some_and(|line| (lines[0]..=lines[1]).contains(&line))
        };
        assert!(is_within(fixture.line("begin", Some(&build_id)), [2, 3]));
        // The size of a section's last function is another in a running module.
        assert!(is_within(fixture.line("end", Some(&build_id)), [6, 7]));
        assert_eq!(fixture.line("no_function", Some(&build_id)), None);
        assert_eq!(fixture.line("begin", None), None);
        assert_eq!(fixture.lines.take_notes(), [] as [&str; 0]);
        // The file is not opened again.
        fs::remove_dir_all(fixture.folder.path().join("lib")).expect("removed");
        assert!(fixture.line("begin", Some(&build_id)).is_some());
    }
}

#[test]
fn file_of_another_build_of_a_module_gives_no_line_and_a_note_with_both_build_ids() {
    let mut fixture = WithModule::build();
    assert_eq!(fixture.line("begin", Some("00ab")), None);
    assert_eq!(fixture.line("end", Some("00ab")), None);
    let notes = fixture.lines.take_notes();
    let [note] = &notes[..] else {
        panic!("{notes:?}");
    };
    for part in ["module `m`", "00ab", &fixture.build_id, "m.ko"] {
        assert!(note.contains(part), "{note}");
    }
}

#[test]
fn frame_of_a_kernel_without_debug_file_has_one_note_with_the_reason() {
    let mut fixture = WithModule::build();
    let kernel = StackFrame {
        address: Gva(0).into(),
        symbol: Some("begin+0x0/0x1".to_owned()),
        is_return_address: false,
        module: None,
        build_id: None,
        source: None,
    };
    fixture.lines.stack(&mut [kernel.clone(), kernel]);
    assert_eq!(
        fixture.lines.take_notes(),
        ["frames of the kernel have no source lines: it is not here"]
    );
    let build_id = fixture.build_id.clone();
    assert!(fixture.line("begin", Some(&build_id)).is_some());
}
