//! Names, patterns and addresses.

use super::*;

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
