//! Where the plant of a probe is, and what refuses a probe.

use super::*;

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
        owner: MemoryOwner::Kernel,
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
