use address::Gva;
use introspect::insn::NotABoundary;
use introspect::int3::HANDLER;
use introspect::optimise::WhyNot;

use super::synthetic::{SyntheticKernel, TEXT};
use super::{
    PATTERN_HELP, Place, PlantTime, Refusal, ResolveError, ResolveProblem, Resolved, Via,
    functions, resolve,
};
use crate::{ArgumentSource, Kernel};

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// A call of another function.
const CALL: [u8; 5] = [0xe8, 0, 0x10, 0, 0];
/// `push rbp; mov rbp, rsp; pop rbp; ret`
const PLAIN: [u8; 6] = [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3];
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
const RET: u8 = 0xc3;

fn try_resolve(kernel: &Kernel, spec: &str) -> Result<Vec<Resolved>, ResolveError> {
    resolve(kernel, &spec.parse().expect("a probe"), 0)
}

fn place(kernel: &Kernel, spec: &str) -> Place {
    let mut found = try_resolve(kernel, spec).expect("it resolves");
    assert_eq!(found.len(), 1);
    let found = found.remove(0);
    assert_eq!(&*found.name, spec);
    found.place.expect("it can be probed")
}

fn problem(kernel: &Kernel, spec: &str) -> ResolveError {
    try_resolve(kernel, spec).expect_err("it cannot be meant")
}

/// A kernel with one function, whose code has an ftrace call at its start or behind an `endbr64`.
fn traced(code: &[u8]) -> (Kernel, Gva, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("traced", code);
    let call = at.wrapping_add(if code.starts_with(&ENDBR64) { 4 } else { 0 });
    kernel.ftrace_calls(&[call]);
    (kernel.kernel(), at, call)
}

#[test]
fn a_plain_function_is_planted_where_it_begins() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("before", &PLAIN);
    let at = kernel.function("plain", &PLAIN);
    let kernel = kernel.kernel();
    let expected = Place {
        ip: at,
        symbol: "plain+0x0".into(),
        via: Via::Plant { at, len: 1 },
        when: PlantTime::TextPresent,
        init: false,
        module: None,
        arguments: ArgumentSource::Registers,
    };
    assert_eq!(place(&kernel, "kprobe:plain"), expected);
    let address = format!("kprobe:{at}");
    assert_eq!(place(&kernel, &address), expected);
    let inside = place(&kernel, "kprobe:plain+0x1");
    assert_eq!(
        inside.via,
        Via::Plant {
            at: at.wrapping_add(1),
            len: 3
        }
    );
    assert_eq!(&*inside.symbol, "plain+0x1");
}

#[test]
fn the_entry_is_behind_an_endbr64() {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("guarded", &[&ENDBR64[..], &PLAIN].concat());
    let kernel = kernel.kernel();
    let behind = at.wrapping_add(4);
    let entry = place(&kernel, "kprobe:guarded");
    assert_eq!((entry.ip, &*entry.symbol), (behind, "guarded+0x4"));
    assert_eq!(entry.via, Via::Plant { at: behind, len: 1 });
    // An address is taken literally.
    assert_eq!(place(&kernel, &format!("kprobe:{at}")).ip, at);
}

#[test]
fn a_probe_on_an_ftrace_call_sits_behind_it() {
    for prefix in [&[][..], &ENDBR64] {
        let (kernel, _, call) = traced(&[prefix, &CALL, &PLAIN].concat());
        let entry = place(&kernel, "kprobe:traced");
        assert_eq!(entry.ip, call);
        assert_eq!(
            entry.via,
            Via::Plant {
                at: call.wrapping_add(5),
                len: 1
            }
        );
        assert_eq!(entry.when, PlantTime::TextPresent);
    }
}

/// An exit changes the clock's version, which keeps the loop going.
#[test]
fn an_instruction_in_the_loop_that_reads_the_clock_is_refused() {
    // push rbp; mov ebp, [rdi]; rdtsc; cmp ebp, [rdi]; jne to the mov; test eax, eax; je to the nop; pop rbp; ret; nop; jmp to the pop
    let code = [
        0x55, 0x8b, 0x2f, 0x0f, 0x31, 0x3b, 0x2f, 0x75, 0xf8, 0x85, 0xc0, 0x74, 0x02, 0x5d, 0xc3,
        0x90, 0xeb, 0xfb,
    ];
    let mut kernel = SyntheticKernel::new();
    for name in [
        "pvclock_clocksource_read",
        "pvclock_read_flags.part.0",
        "other",
    ] {
        kernel.function(name, &code);
    }
    let kernel = kernel.kernel();
    let refused = |spec: String| {
        let found = try_resolve(&kernel, &spec).expect("it resolves").remove(0);
        match found.place {
            Ok(_) => false,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::ClockLoop, "{spec}");
                true
            }
        }
    };
    for name in ["pvclock_clocksource_read", "pvclock_read_flags.part.0"] {
        let at = |offset| refused(format!("kprobe:{name}+{offset:#x}"));
        assert_eq!([1, 3, 5, 7].map(at), [true; 4], "{name}");
        assert_eq!([0, 9, 11, 13, 14, 15, 16].map(at), [false; 7], "{name}");
    }
    assert!(!refused("kprobe:other+0x3".to_owned()));
}

/// A branch to the instruction behind the call would be counted as an entry.
#[test]
fn a_call_that_can_be_bypassed_needs_a_debug_register() {
    // jmp to the push behind the call.
    let (kernel, _, call) = traced(&[&CALL[..], &PLAIN[..5], &[0xeb, 0xf9]].concat());
    let entry = place(&kernel, "kprobe:traced");
    assert_eq!((entry.ip, entry.via), (call, Via::DebugRegister));
}

#[test]
fn site_patched_at_run_time_needs_a_debug_register() {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("keyed", &[&NOP5[..], &PLAIN].concat());
    kernel.jump_labels(&[at]);
    let kernel = kernel.kernel();
    let entry = place(&kernel, "kprobe:keyed");
    assert_eq!(
        (entry.via, entry.when),
        (Via::DebugRegister, PlantTime::TextPresent)
    );
    let behind = place(&kernel, "kprobe:keyed+0x5");
    assert_eq!(
        behind.via,
        Via::Plant {
            at: at.wrapping_add(5),
            len: 1
        }
    );
}

#[test]
fn a_call_before_another_patched_place_needs_a_debug_register() {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("both", &[&CALL[..], &NOP5, &PLAIN].concat());
    kernel.ftrace_calls(&[at]);
    kernel.jump_labels(&[at.wrapping_add(5)]);
    assert_eq!(
        place(&kernel.kernel(), "kprobe:both").via,
        Via::DebugRegister
    );
}

#[test]
fn site_patched_at_boot_waits() {
    let mut kernel = SyntheticKernel::new();
    let jump = [0xe9, 0, 0x10, 0, 0];
    let at = kernel.function("thunked", &jump);
    let called = kernel.function("called", &[&CALL[..], &jump].concat());
    kernel.return_sites(&[at, called.wrapping_add(5)]);
    kernel.ftrace_calls(&[called]);
    let kernel = kernel.kernel();
    let entry = place(&kernel, "kprobe:thunked");
    assert_eq!(
        (entry.via, entry.when),
        (Via::Plant { at, len: 5 }, PlantTime::BootPatched)
    );
    // A plant behind an ftrace call waits as well.
    let entry = place(&kernel, "kprobe:called");
    assert_eq!((entry.ip, entry.when), (called, PlantTime::BootPatched));
    assert_eq!(
        entry.via,
        Via::Plant {
            at: called.wrapping_add(5),
            len: 5
        }
    );
}

#[test]
fn init_text_is_known_to_go() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("stays", &PLAIN);
    let at = kernel.init_function("goes", &PLAIN);
    let kernel = kernel.kernel();
    assert!(!place(&kernel, "kprobe:stays").init);
    let goes = place(&kernel, "kprobe:goes");
    assert!(goes.init);
    assert_eq!(goes.ip, at);
}

#[test]
fn return_probe_on_entry_code_is_refused() {
    let mut kernel = SyntheticKernel::new();
    let function = kernel.function("asm_exc_page_fault", &[0x55, 0xc3]);
    kernel.function("asm_load_gs_index", &[0x55, 0xc3]);
    let behind = kernel.function("exc_page_fault", &[0x55, 0xc3]);
    kernel.symbol("__entry_text_start", function);
    kernel.symbol("__entry_text_end", behind);
    let kernel = kernel.kernel();
    for spec in ["kretprobe:asm_exc_page_fault", "kretprobe:*exc_page_fault"] {
        let found = try_resolve(&kernel, spec).expect(spec);
        assert_eq!(found[0].place, Err(Refusal::NoReturnAddress), "{spec}");
        assert!(found.iter().skip(1).all(|found| found.place.is_ok()));
    }
    for spec in [
        "kprobe:asm_exc_page_fault",
        "kretprobe:asm_load_gs_index",
        "kretprobe:exc_page_fault",
    ] {
        assert!(try_resolve(&kernel, spec).expect(spec)[0].place.is_ok());
    }
}

#[test]
fn an_offset_inside_an_instruction_names_its_neighbours() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    let error = problem(&kernel.kernel(), "kprobe:plain+0x2");
    assert!(matches!(
        error.problem,
        ResolveProblem::Boundary(NotABoundary::Inside {
            before: 1,
            after: 4,
            ..
        })
    ));
    assert_eq!(error.help().as_deref(), Some("probe +0x1 or +0x4"));
    assert!(error.to_string().contains("`kprobe:plain+0x2`"), "{error}");
}

#[test]
fn an_offset_behind_the_function_is_refused() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.function("next", &PLAIN);
    let error = problem(&kernel.kernel(), "kprobe:plain+0x100");
    assert!(matches!(
        error.problem,
        ResolveProblem::Boundary(NotABoundary::PastTheEnd { .. })
    ));
}

#[test]
fn an_unknown_name_is_answered_with_near_ones() {
    let mut kernel = SyntheticKernel::new();
    for name in ["vfs_read", "vfs_write", "panic"] {
        kernel.function(name, &PLAIN);
    }
    let error = problem(&kernel.kernel(), "kprobe:vfs_raed");
    let ResolveProblem::NoSymbol { near, .. } = &error.problem else {
        panic!("{error}");
    };
    assert_eq!(near[0], "vfs_read");
    assert!(!near.iter().any(|name| name == "panic"));
    assert!(
        error
            .help()
            .is_some_and(|help| help.starts_with("near names: vfs_read"))
    );
}

#[test]
fn a_variable_is_no_function() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    let at = kernel.variable("jiffies", 0);
    let kernel = kernel.kernel();
    let error = problem(&kernel, "kprobe:jiffies");
    assert!(
        matches!(error.problem, ResolveProblem::NotAFunction { .. }),
        "{error}"
    );
    for address in [at, Gva(TEXT.0 - 1), Gva(0)] {
        let error = problem(&kernel, &format!("kprobe:{address}"));
        assert!(
            matches!(error.problem, ResolveProblem::NotCode { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_name_of_two_functions_is_ambiguous() {
    let mut kernel = SyntheticKernel::new();
    let first = kernel.function("twin", &PLAIN);
    let second = kernel.function("twin", &PLAIN);
    let kernel = kernel.kernel();
    let error = problem(&kernel, "kprobe:twin");
    let ResolveProblem::Ambiguous { addresses, .. } = &error.problem else {
        panic!("{error}");
    };
    assert_eq!(addresses[..], [first, second]);
    // The help names the addresses, and each can be probed.
    let help = error.help().expect("help");
    for at in [first, second] {
        let spec = format!("kprobe:{at}");
        assert!(help.contains(&spec), "{help}");
        assert_eq!(place(&kernel, &spec).ip, at);
    }
}

#[test]
fn a_glob_stands_for_the_functions_that_match() {
    let mut kernel = SyntheticKernel::new();
    for name in [
        "vfs_read",
        "vfs_write",
        "__pfx_vfs_open",
        "vfs_open.cold",
        "sys_vfs_x",
    ] {
        kernel.function(name, &PLAIN);
    }
    kernel.variable("vfs_table", 0);
    let kernel = kernel.kernel();
    let names = |pattern: &str| -> Vec<String> {
        let found = try_resolve(&kernel, pattern).expect("something matches");
        found.iter().map(|found| found.name.to_string()).collect()
    };
    assert_eq!(
        names("kprobe:vfs_*"),
        ["kprobe:vfs_read", "kprobe:vfs_write"]
    );
    assert_eq!(names("kprobe:*_vfs_*"), ["kprobe:sys_vfs_x"]);
    let error = problem(&kernel, "kprobe:vfs_table*");
    assert!(
        matches!(error.problem, ResolveProblem::NoMatch { .. }),
        "{error}"
    );
    assert_eq!(error.help().as_deref(), Some(PATTERN_HELP));
}

/// The other matches are still armed.
#[test]
fn a_match_that_cannot_be_probed_is_refused_by_itself() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("good", &PLAIN);
    // No instruction in 64-bit mode.
    kernel.function("gone_bad", &[0x06, RET]);
    let found = try_resolve(&kernel.kernel(), "kprobe:go*").expect("one matches");
    let names: Vec<_> = found
        .iter()
        .map(|found| (&*found.name, found.place.is_ok()))
        .collect();
    assert_eq!(names, [("kprobe:good", true), ("kprobe:gone_bad", false)]);
}

#[test]
fn kernel_without_module_symbols_is_refused_with_the_reason() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    let error = problem(&kernel.kernel(), "kprobe:ext4:plain");
    assert_eq!(
        error.to_string(),
        "cannot probe `kprobe:ext4:plain`: it is in the module `ext4`, and modules cannot be probed here: the kernel \
         has no function `do_init_module`"
    );
}

#[test]
fn an_address_of_a_kernel_that_has_moved_is_moved_back() {
    const SLIDE: i64 = 0x1240_0000;
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("plain", &PLAIN);
    let kernel = kernel.kernel();
    let moved = at.wrapping_add(SLIDE.cast_unsigned());
    let spec = format!("kprobe:{moved}").parse().expect("a probe");
    let found = resolve(&kernel, &spec, SLIDE).expect("it resolves");
    assert_eq!(found[0].place.as_ref().expect("it can be probed").ip, at);
    assert!(resolve(&kernel, &spec, 0).is_err());
}

#[test]
fn every_function_is_judged_where_its_plant_would_be() {
    let mut kernel = SyntheticKernel::new();
    let traced = kernel.function("traced", &[&ENDBR64[..], &NOP5, &PLAIN].concat());
    // A branch goes back to the instruction behind the call.
    let looped = kernel.function("looped", &[&NOP5[..], &[0x55, 0xeb, 0xfd, RET]].concat());
    let plain = kernel.function("plain", &PLAIN);
    kernel.function("plain.cold", &PLAIN);
    let faults = kernel.function("faults", &PLAIN);
    kernel.ftrace_calls(&[traced.wrapping_add(4), looped]);
    kernel.exceptions(&[faults.wrapping_add(1)]);
    let kernel = kernel.kernel();
    let found = functions(&kernel);
    let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
    // The linker's label behind the functions looks like a function.
    assert_eq!(names, ["traced", "looped", "plain", "faults", "_etext"]);

    let (call, behind) = (traced.wrapping_add(4), traced.wrapping_add(9));
    assert_eq!(
        (found[0].ip, found[0].at, found[0].traced),
        (call, behind, true)
    );
    let region = found[0].verdict.expect("optimisable");
    assert_eq!((region.region_len, region.instructions), (5, 3));
    assert_eq!((found[1].at, found[1].traced), (looped, true));
    let patched = found[1].verdict.expect_err("it is patched");
    assert_eq!(patched.name(), "patched-by-ftrace");
    assert_eq!((found[2].at, found[2].traced), (plain, false));
    assert!(found[2].verdict.is_ok());
    let at = faults.wrapping_add(1);
    assert_eq!(found[3].verdict, Err(WhyNot::MayFault { at }));
}

#[test]
fn glob_refuses_the_handler_of_int3_and_its_name_does_not() {
    let mut kernel = SyntheticKernel::new();
    kernel.function(HANDLER, &PLAIN);
    kernel.function("asm_exc_divide_error", &PLAIN);
    let kernel = kernel.kernel();
    let found = try_resolve(&kernel, "kprobe:asm_exc_*").expect("two functions");
    assert_eq!(found.len(), 2);
    for found in found {
        let is_handler = found.name.contains(HANDLER);
        assert_eq!(
            found.place.err(),
            is_handler.then_some(Refusal::Int3Handler)
        );
    }
    assert!(
        try_resolve(&kernel, "kprobe:asm_exc_int3").expect("named")[0]
            .place
            .is_ok()
    );
}

#[test]
fn watched_data_is_a_place_on_a_protected_page() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    let at = kernel.variable("counter", 5);
    let kernel = kernel.kernel();
    let found = place(&kernel, "watch:counter+0x4:2");
    assert_eq!(found.ip, at.wrapping_add(4));
    assert_eq!(&*found.symbol, "counter+0x4");
    assert_eq!(found.via, Via::ProtectedPage { len: 2 });
    let by_address = place(&kernel, &format!("watch:{at}:8"));
    assert_eq!(
        (by_address.ip, by_address.via),
        (at, Via::ProtectedPage { len: 8 })
    );
}

#[test]
fn unsuitable_data_is_refused_with_a_remedy() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    let init = kernel.init_function("setup", &PLAIN);
    let at = kernel.variable("counter", 5);
    kernel.variable("counter", 6);
    kernel.variable("single", 7);
    let per_cpu = kernel.variable("__per_cpu_start", 0);
    kernel.variable("__per_cpu_end", 0);
    let kernel = kernel.kernel();
    for (spec, message, help) in [
        (
            "watch:single",
            "the type of `single` is not known".to_owned(),
            Some("write its length in bytes, like watch:single:8".to_owned()),
        ),
        (
            "watch:singel:8",
            "the kernel has no variable `singel`".to_owned(),
            Some("near names: single".to_owned()),
        ),
        (
            "watch:plain:8",
            "it is code, and the writes to code are not watched".to_owned(),
            Some("write kprobe:SYMBOL for its executions".to_owned()),
        ),
        (
            "watch:counter:8",
            "the kernel has 2 variables called `counter`".to_owned(),
            Some(format!(
                "name one by its address: watch:{at}:LENGTH, watch:{}:LENGTH",
                at.wrapping_add(8)
            )),
        ),
        (
            &format!("watch:{init}:8"),
            "the kernel frees it after boot, and uses its memory for other data".to_owned(),
            Some("write kprobe:FUNCTION for a function that writes it".to_owned()),
        ),
        (
            &format!("watch:{per_cpu}:8"),
            "it is a per-CPU variable, and this version watches variables of the kernel's image only"
                .to_owned(),
            Some("write kprobe:FUNCTION for a function that writes it".to_owned()),
        ),
        (
            "watch:0x1000:8",
            "0x1000 is not in the data of the kernel's image, and this version watches no other memory"
                .to_owned(),
            Some("`hyprobe symbols --kernel FILE PATTERN` lists the symbols".to_owned()),
        ),
    ] {
        let error = problem(&kernel, spec);
        assert_eq!(error.problem.to_string(), message);
        assert_eq!(error.help(), help);
    }
}

#[test]
fn page_that_the_hardware_writes_is_not_watched() {
    for object in [
        "init_top_pgt",
        "espfix_pud_page",
        "bm_pte",
        "init_stack",
        "hv_clock_boot",
    ] {
        let mut kernel = SyntheticKernel::new();
        kernel.function("plain", &PLAIN);
        kernel.variable("counter", 5);
        kernel.variable(object, 0);
        let error = problem(&kernel.kernel(), "watch:counter:8");
        assert_eq!(
            error.problem.to_string(),
            format!(
                "its page holds `{object}`, which the processor or KVM writes without an instruction of the guest"
            )
        );
    }
}

#[test]
fn memory_that_the_kernel_frees_is_not_watched() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.variable("__end_rodata", 0);
    kernel.variable("_sdata", 0);
    kernel.variable("__smp_locks", 0);
    kernel.variable("__smp_locks_end", 0);
    kernel.variable("last", 5);
    let brk = kernel.variable("__bss_stop", 0);
    kernel.variable("__brk_base", 0);
    let kernel = kernel.kernel();
    for (spec, message) in [
        (
            "watch:__end_rodata:8",
            "the kernel frees it after boot, and uses its memory for other data".to_owned(),
        ),
        (
            "watch:__smp_locks:8",
            "the kernel frees it after boot, and uses its memory for other data".to_owned(),
        ),
        (
            "watch:__bss_stop:8",
            format!(
                "{brk} is behind the end of the kernel's data (`__bss_stop`), where the kernel has page tables and memory that it frees"
            ),
        ),
        (
            "watch:__brk_base:8",
            format!(
                "{} is behind the end of the kernel's data (`__bss_stop`), where the kernel has page tables and memory that it frees",
                brk.wrapping_add(8)
            ),
        ),
    ] {
        assert_eq!(problem(&kernel, spec).problem.to_string(), message);
    }
    for spec in ["watch:_sdata:8", "watch:__smp_locks_end:8", "watch:last:8"] {
        place(&kernel, spec);
    }
}

#[test]
fn data_on_a_page_with_code_is_not_watched() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.variable("counter", 5);
    kernel.end_text(0x810);
    let kernel = kernel.kernel();
    let beside = kernel.text().expect("labels").end.wrapping_add(8);
    let error = problem(&kernel, &format!("watch:{beside}:8"));
    assert_eq!(
        error.problem.to_string(),
        "its page also has code, and writes to such a page are not watched"
    );
    let next = beside.page().wrapping_add(0x1000);
    place(&kernel, &format!("watch:{next}:8"));
}

#[test]
fn address_between_two_segments_is_not_watched() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.variable("counter", 5);
    let hole = kernel.hole();
    let kernel = kernel.kernel();
    assert!(kernel.image().contains(&hole));
    let error = problem(&kernel, &format!("watch:{hole}:8"));
    assert_eq!(
        error.problem.to_string(),
        format!(
            "{hole} is not in the data of the kernel's image, and this version watches no other memory"
        )
    );
}

#[test]
fn watched_bytes_are_inside_the_variable() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.variable("neighbour", 0);
    kernel.variable("counter", 5);
    kernel.variable("behind", 0);
    let kernel = kernel.kernel();
    for spec in [
        "watch:counter+0xfffffffffffffff8:8",
        "watch:counter+0xffffffffffffffff:2",
        "watch:counter+0x8:1",
        "watch:counter+0x4:8",
    ] {
        let error = problem(&kernel, spec);
        assert_eq!(
            error.problem.to_string(),
            "its bytes are not all in `counter`, which has 8 bytes"
        );
        assert_eq!(
            error.help().as_deref(),
            Some(
                "write an offset and a length that end at byte 8 or before, or watch:0xADDRESS:LENGTH for other bytes"
            )
        );
    }
    place(&kernel, "watch:counter+0x6:2");
}

#[test]
fn remedy_for_namesakes_has_addresses_that_resolve() {
    const SLIDE: i64 = -0x20_0000;
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    let linked = kernel.variable("counter", 5);
    kernel.variable("counter", 6);
    let kernel = kernel.kernel();
    let resolve = |spec: &str| resolve(&kernel, &spec.parse().expect("a probe"), SLIDE);
    let help = resolve("watch:counter:8").expect_err("two").help();
    let help = help.expect("a remedy");
    let named = help
        .strip_prefix("name one by its address: ")
        .expect("addresses");
    let first = named.split(", ").next().expect("an address");
    let found = resolve(&first.replace("LENGTH", "8")).expect("it resolves");
    let place = found[0].place.as_ref().expect("it can be watched");
    assert_eq!(place.ip, linked);
}
