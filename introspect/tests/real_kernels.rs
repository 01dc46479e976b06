//! Symbols, types and patch sites of real kernels.
//!
//! `HYPROBE_TEST_KERNELS` lists decompressed kernels (vmlinux ELF files), separated by colons.
//! Without the variable, the tests have no kernels, and say so.

use std::{env, fs};

use address::{Gpa, Gva};
use hyprobe_introspect::{
    Btf, FlatMemory, GuestImage, KernelImage, KernelLayout, ModuleEvent, Modules, PatchKind,
    PatchSites, PatchTime, SymbolTable,
    btf::Type,
    insn::branch_into,
    kallsyms,
    kaslr::kaslr_slide,
    optimise::{MAX_REGION_BYTES, Survey},
};
use iced_x86::{Decoder, DecoderOptions, FlowControl};

const KERNELS: &str = "HYPROBE_TEST_KERNELS";
/// Fewer symbols than in any probeable kernel.
const FEW_SYMBOLS: usize = 10_000;

/// Calls `check` with every kernel and its symbols.
fn each_kernel(check: impl Fn(&str, &KernelImage, &SymbolTable)) {
    let list = env::var(KERNELS).unwrap_or_default();
    if list.is_empty() {
        eprintln!("skipped: {KERNELS} lists no kernels");
    }
    for path in list.split(':').filter(|path| !path.is_empty()) {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let image = KernelImage::parse(bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
        let symbols = kallsyms::from_image(&image);
        let symbols = symbols.unwrap_or_else(|error| panic!("{path}: {error}"));
        check(path, &image, &symbols);
    }
}

fn address(symbols: &SymbolTable, name: &str) -> Gva {
    symbols
        .address_of(name)
        .unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn the_image_gives_symbols() {
    each_kernel(|path, image, symbols| {
        assert!(symbols.len() > FEW_SYMBOLS, "{path}: {}", symbols.len());
        assert_eq!(
            address(symbols, "_text"),
            image.link_virtual_base(),
            "{path}"
        );
        assert!(
            image
                .banner()
                .is_some_and(|line| line.starts_with("Linux version ")),
            "{path}"
        );

        let read = symbols
            .lookup("vfs_read")
            .expect("every kernel reads files");
        assert!(
            read.is_text() && (16..16 << 10).contains(&read.size),
            "{path}: {read:?}"
        );
        let inside = symbols
            .resolve(read.address.wrapping_add(5))
            .expect("inside a function");
        assert_eq!(inside.to_string(), "vfs_read+0x5", "{path}");
        assert!(
            symbols
                .nearest_names("vfs_raed", 3)
                .contains(&"vfs_read".to_owned()),
            "{path}"
        );
        assert!(symbols.matching("vfs_*").count() > 20, "{path}");

        let layout = KernelLayout::from_symbols(symbols).expect("labels");
        let stray = symbols
            .iter()
            .find(|symbol| symbol.is_text() && !layout.holds_code(symbol.address));
        assert_eq!(stray, None, "{path}");
    });
}

#[test]
fn a_slide_is_found_from_the_system_call_entry() {
    each_kernel(|path, _, symbols| {
        let lstar = address(symbols, "entry_SYSCALL_64").wrapping_add(0x1a60_0000);
        let slide = kaslr_slide(lstar, symbols).unwrap_or_else(|error| panic!("{path}: {error}"));
        let moved = symbols.rebased(slide);
        assert_eq!(address(&moved, "entry_SYSCALL_64"), lstar, "{path}");
        assert_eq!(
            moved.resolve(lstar).map(|place| place.offset),
            Some(0),
            "{path}"
        );
    });
}

#[test]
fn guest_memory_gives_the_same_symbols() {
    each_kernel(|path, image, symbols| {
        let range = image.physical_range();
        let len = usize::try_from(range.end.0 - range.start.0).expect("it fits");
        let mut memory = FlatMemory::new(range.start, vec![0; len]);
        for segment in image.segments() {
            let bytes = &image.bytes()[segment.file_offset..][..segment.file_size];
            memory
                .write(segment.physical, bytes)
                .expect("within the range");
        }
        let mapped_at = image
            .to_virtual(range.start)
            .expect("the first byte of the kernel");
        let found = kallsyms::from_guest(&memory, range, mapped_at);
        let found = found.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(found.iter().eq(symbols.iter()), "{path}");
        assert!(kallsyms::from_guest(&memory, Gpa(0)..Gpa(4096), mapped_at).is_err());
    });
}

#[test]
fn patch_sites_hold_instructions_of_their_kind() {
    each_kernel(|path, image, symbols| {
        let sites = PatchSites::read(image, symbols);
        let fentry = address(symbols, "__fentry__");
        for site in sites.iter() {
            let code = image.bytes_at(site.address, 15);
            let code = code.unwrap_or_else(|| panic!("{path}: {site:?} is not in the file"));
            let ip = site.address.0;
            let instruction = Decoder::with_ip(64, code, ip, DecoderOptions::NONE).decode();
            let place = symbols.resolve(site.address).map(|place| place.to_string());
            let branches = instruction.flow_control() != FlowControl::Next;
            let right = match site.kind {
                PatchKind::Ftrace => instruction.near_branch_target() == fentry.0,
                PatchKind::JumpLabel => {
                    branches || instruction.mnemonic() == iced_x86::Mnemonic::Nop
                }
                PatchKind::ReturnThunk | PatchKind::Retpoline | PatchKind::CallThunk => branches,
                // An operand-size prefix may stand first; the kernel then leaves the lock alone.
                PatchKind::SmpLock => code[..2].contains(&0xf0),
                PatchKind::Endbr => code[..4] == [0xf3, 0x0f, 0x1e, 0xfa],
                _ => true,
            };
            assert!(right, "{path}: {site:?} at {place:?} holds {code:02x?}");
        }
        for kind in [
            PatchKind::Ftrace,
            PatchKind::JumpLabel,
            PatchKind::Alternative,
        ] {
            let count = sites.iter().filter(|site| site.kind == kind).count();
            assert!(count > 100, "{path}: {count} of {kind:?}");
        }
    });
}

/// The offset and size of a member, in bytes.
fn place(btf: &Btf, name: &str, path: &str) -> (u64, u64) {
    let id = btf
        .struct_named(name)
        .unwrap_or_else(|| panic!("no struct {name}"));
    let member = btf
        .member(id, path)
        .unwrap_or_else(|| panic!("no {name}.{path}"));
    assert!(
        member.offset_bytes + member.size_bytes <= btf.size_of(id).unwrap_or(0),
        "{name}.{path}: {member:?}"
    );
    (member.offset_bytes, member.size_bytes)
}

#[test]
fn types_are_laid_out_as_the_kernel_has_them() {
    each_kernel(|path, image, symbols| {
        let btf = Btf::from_image(image, symbols).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(btf.is_complete() && btf.len() > FEW_SYMBOLS, "{path}");
        let size = |name| btf.struct_named(name).and_then(|id| btf.size_of(id));
        assert_eq!(size("list_head"), Some(16), "{path}");
        assert_eq!(place(&btf, "list_head", "prev"), (8, 8), "{path}");
        assert_eq!(place(&btf, "pt_regs", "ip").0, 128, "{path}");

        assert_eq!(place(&btf, "module", "list").1, 16, "{path}");
        assert_eq!(place(&btf, "module", "name").1, 56, "{path}");
        assert_eq!(place(&btf, "module", "kallsyms").1, 8, "{path}");
        assert_eq!(place(&btf, "task_struct", "comm").1, 16, "{path}");
        let pid = place(&btf, "task_struct", "pid");
        assert_eq!(place(&btf, "task_struct", "tgid"), (pid.0 + 4, 4), "{path}");
        assert_eq!(place(&btf, "task_struct", "stack").1, 8, "{path}");
        // In a nested struct, and through an anonymous one.
        let (se, _) = place(&btf, "task_struct", "se");
        let (load, _) = place(&btf, "task_struct", "se.load.weight");
        assert!(load >= se, "{path}");
        place(&btf, "page", "mapping");

        let states = btf.enum_named("module_state").expect("an enum");
        let states = btf.as_enum(states).expect("an enum");
        let name = |value| states.name(value);
        let expected = ["LIVE", "COMING", "GOING", "UNFORMED"];
        for (value, expected) in (0..).zip(expected) {
            assert!(name(value).is_some_and(|name| name.ends_with(expected)));
        }
    });
}

#[test]
fn functions_have_typed_parameters() {
    each_kernel(|path, image, symbols| {
        let btf = Btf::from_image(image, symbols).unwrap_or_else(|error| panic!("{path}: {error}"));
        let read = btf
            .func_proto("vfs_read")
            .expect("every kernel reads files");
        let names: Vec<_> = read
            .params
            .iter()
            .filter_map(|param| param.name.as_deref())
            .collect();
        assert_eq!(names, ["file", "buf", "count", "pos"], "{path}");
        let Some(Type::Pointer(file)) = btf.get(read.params[0].ty) else {
            panic!("{path}: {read:?}");
        };
        assert_eq!(btf.name_of(file), Some("file"), "{path}");
        assert_eq!(btf.size_of(read.returns), Some(8), "{path}");
    });
}

#[test]
fn modules_can_be_read_and_caught() {
    each_kernel(|path, image, symbols| {
        let btf = Btf::from_image(image, symbols).unwrap_or_else(|error| panic!("{path}: {error}"));
        Modules::new(&btf).unwrap_or_else(|error| panic!("{path}: {error}"));
        for event in ModuleEvent::ALL {
            let symbol = symbols.lookup(event.function());
            assert!(
                symbol.is_some_and(|symbol| symbol.is_text()),
                "{path}: {event:?}"
            );
        }
    });
}

#[test]
fn guest_memory_gives_the_same_types() {
    each_kernel(|path, image, symbols| {
        let btf = Btf::from_image(image, symbols).unwrap_or_else(|error| panic!("{path}: {error}"));
        let base = image.link_physical_base();
        let segment = image
            .segments()
            .iter()
            .find(|segment| segment.physical == base)
            .expect("the first");
        let bytes = &image.bytes()[segment.file_offset..][..segment.file_size];
        let memory = FlatMemory::new(base, bytes.to_vec());
        let guest = GuestImage::new(memory, image.link_virtual_base(), base, 0);
        let found =
            Btf::from_source(&guest, symbols).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(found.len(), btf.len(), "{path}");
    });
}

#[test]
fn retpolines_are_optimisable_and_other_thunks_are_not() {
    const REGISTERS: [&str; 15] = [
        "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    const OTHERS: [&str; 6] = [
        "__x86_return_thunk",
        "srso_safe_ret*",
        "srso_return_thunk",
        "*_untrain_ret",
        "its_return_thunk",
        "__x86_indirect_call_thunk_*",
    ];
    each_kernel(|path, image, symbols| {
        let sites = PatchSites::read(image, symbols);
        let survey = Survey::of_kernel(image, symbols);
        let verdict = |at| {
            let code = image.bytes_at(at, MAX_REGION_BYTES).expect("code");
            survey.verdict(&sites, at, code)
        };
        for register in REGISTERS {
            let name = format!("__x86_indirect_thunk_{register}");
            let at = symbols.address_of(&name).expect("each kernel has them");
            let found = verdict(at).unwrap_or_else(|why| panic!("{path}: {name}: {why}"));
            assert_eq!(
                (found.region_len, found.instructions),
                (5, 1),
                "{path}: {name}"
            );
        }
        for thunk in OTHERS.iter().flat_map(|name| symbols.matching(name)) {
            let found = verdict(thunk.address);
            assert!(found.is_err(), "{path}: {}: {found:?}", thunk.name);
        }
    });
}

#[test]
fn a_jump_fits_behind_most_ftrace_calls() {
    each_kernel(|path, image, symbols| {
        let sites = PatchSites::read(image, symbols);
        let survey = Survey::of_kernel(image, symbols);
        let (mut all, mut optimisable) = (0, 0);
        for call in sites.iter().filter(|site| site.kind == PatchKind::Ftrace) {
            all += 1;
            let at = call.end();
            let code = image.bytes_at(at, MAX_REGION_BYTES).expect("code");
            let on_call = image
                .bytes_at(call.address, MAX_REGION_BYTES)
                .expect("code");
            assert!(
                survey.verdict(&sites, call.address, on_call).is_err(),
                "{path}: {call:?}"
            );
            let Ok(region) = survey.verdict(&sites, at, code) else {
                continue;
            };
            optimisable += 1;

            let function = symbols.resolve(at).expect("a function").symbol;
            let end = at.wrapping_add(region.region_len as u64);
            assert!(
                function.end().is_some_and(|last| end <= last),
                "{path}: {at}"
            );
            let mut decoder = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE);
            while decoder.ip() < end.0 {
                assert!(!decoder.decode().is_invalid(), "{path}: {at}");
            }
            assert_eq!(decoder.ip(), end.0, "{path}: {at}: whole instructions");
            let mut patched = sites.all_overlapping(at, region.region_len as u64);
            assert!(
                patched.all(|site| site.kind.when() == PatchTime::BootOnly),
                "{path}: {at}"
            );
            let len = usize::try_from(function.size).expect("it fits");
            let bytes = image.bytes_at(function.address, len).expect("code");
            let inside = at.wrapping_add(1)..end;
            let branch = branch_into(bytes, function.address, &inside);
            assert_eq!(branch, Ok(None), "{path}: {function}");
        }
        assert!(optimisable * 10 > all * 8, "{path}: {optimisable} of {all}");
    });
}
