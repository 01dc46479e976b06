//! The sites of probes: accepted, refused, and as reported in the status.

use events::ProbeState;
use manifest::{Action, ProbeConfig, ProbeSpec, SpecProblem};
use probes::{Engine, RegisterError, ResolveProblem};

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::{Ran, new};
use super::text;

pub(super) const CASES: [Case; 5] = [
    Case::new("addresses", Plants::Each, &[1], addresses),
    Case::new("refusals", Plants::Chosen, &[1], refusals),
    Case::new("entry-code", Plants::Each, &[1], entry_code),
    Case::new("entry-fault", Plants::Each, &[1], entry_fault),
    Case::new("status", Plants::Each, &[1], status),
];

/// A symbol, a symbol with an offset and an address are the same place; and an address has no offset.
fn addresses(here: &Here<'_>) {
    let kernel = here.kernel();
    let symbol = kernel.symbols().lookup("fn_recurse").expect("fn_recurse");
    let inside = kernel.instructions(&symbol).nth(2);
    let inside = inside.expect("it has three").expect("code");
    let offset = inside.at().0 - symbol.address.0;
    let probes = [
        "kprobe:fn_recurse".to_owned(),
        "kprobe:fn_recurse+0".to_owned(),
        format!("kprobe:{}", symbol.address),
        format!("kprobe:fn_recurse+{offset}"),
        format!("kprobe:fn_recurse+{offset:#x}"),
        format!("kprobe:{}", inside.at()),
    ];
    let ran = here.guest("run=recurse=9").probes(&probes).run();
    ran.assert_good();
    let ips: Vec<u64> = ran
        .summary
        .probes
        .iter()
        .map(|probe| {
            assert_eq!(probe.hits, 10, "{probe:?}");
            probe.ip.expect("it is armed").0
        })
        .collect();
    let (at, inside) = (symbol.address.0, inside.at().0);
    assert_eq!(ips, [at, at, at, inside, inside, inside]);
    for (text, problem) in [
        (
            format!("kprobe:{}+4", symbol.address),
            SpecProblem::OffsetFromAddress,
        ),
        (
            format!("kprobe:fn_recurse:{}", symbol.address),
            SpecProblem::AddressInModule,
        ),
    ] {
        let refused = text.parse::<ProbeSpec>();
        assert_eq!(refused.map_err(|error| error.problem), Err(problem));
    }
}

fn refused(engine: &Engine, control: &vmm::Control, spec: &str) -> (ResolveProblem, String) {
    let probe = new(spec);
    match engine.register(&control.pause_all(), &[probe]) {
        Err(RegisterError::Resolve(error)) => {
            let said = error.to_string();
            (error.problem, said)
        }
        other => panic!("{spec}: {other:?}"),
    }
}

/// If a specification cannot be resolved, the engine refuses the probe and reports the reason; the guest is unchanged.
fn refusals(here: &Here<'_>) {
    let kernel = here.kernel();
    let symbol = kernel.symbols().lookup("fn_mov_imm").expect("fn_mov_imm");
    let size = symbol.size;
    let guest = here.guest("run=calls=2,checksum").with([]).prepare();
    let (engine, control) = (guest.session.engine().clone(), guest.session.control());
    let refused = |spec: &str| refused(&engine, &control, spec);
    // `mov $…, %eax` is five bytes long: the error names the boundaries around an offset inside the instruction.
    for offset in 1..5 {
        let (problem, said) = refused(&format!("kprobe:fn_mov_imm+{offset}"));
        assert!(matches!(problem, ResolveProblem::Boundary(_)), "{said}");
        assert!(said.contains("begins at offset 0x0"), "{said}");
        assert!(said.contains("next one begins at offset 0x5"), "{said}");
    }
    let (problem, said) = refused(&format!("kprobe:fn_mov_imm+{size}"));
    assert!(matches!(problem, ResolveProblem::Boundary(_)), "{said}");
    let (problem, said) = refused("kprobe:fn_memory");
    assert!(
        matches!(problem, ResolveProblem::NotAFunction { .. }),
        "{said}"
    );
    let (problem, said) = refused("kprobe:fn_mov_imn");
    match problem {
        ResolveProblem::NoSymbol { near, .. } => {
            assert!(near.iter().any(|name| name == "fn_mov_imm"), "{near:?}");
        }
        _ => panic!("{said}"),
    }
    let (problem, said) = refused("kprobe:0x1000");
    assert!(matches!(problem, ResolveProblem::NotCode { .. }), "{said}");
    let (problem, said) = refused("kprobe:nothing_like_it_*");
    assert!(matches!(problem, ResolveProblem::NoMatch { .. }), "{said}");
    let (problem, said) = refused("kprobe:some_module:some_function");
    assert!(matches!(problem, ResolveProblem::Module { .. }), "{said}");
    let offset_of_return = "kretprobe:fn_recurse+4".parse::<ProbeSpec>();
    let problem = offset_of_return
        .expect_err("a return has no offset")
        .problem;
    assert_eq!(problem, SpecProblem::OffsetOfReturn);
    let ran = guest.run();
    ran.assert_good();
    assert_eq!(text::sums(&ran), [text::own_sum(here)]);
}

/// Probes every instruction of the entry and exit of exceptions: code that runs before the guest has set up anything.
fn at_entries(here: &Here<'_>, stubs: &[&str], scenarios: &str) -> (Ran, u64) {
    let kernel = here.kernel();
    let (mut probes, mut back) = (Vec::new(), String::new());
    for function in stubs.iter().chain(&["trap_entry"]) {
        let symbol = kernel.symbols().lookup(function).expect(function);
        for decoded in kernel.instructions(&symbol) {
            let decoded = decoded.expect("code");
            let offset = decoded.at().0 - symbol.address.0;
            let probe = ProbeConfig {
                action: Action::Count.into(),
                ..new(&format!("kprobe:{function}+{offset:#x}"))
            };
            if decoded.text().starts_with("iret") {
                back = probe.at.to_string();
            }
            probes.push(probe);
        }
    }
    let ran = here.guest(scenarios).with(probes).run();
    ran.assert_good();
    let back = ran.probe(&back).hits;
    (ran, back)
}

/// Breakpoints of the kernel's own and of ring 3's, which is left by an invalid instruction.
fn entry_code(here: &Here<'_>) {
    let (ran, back) = at_entries(here, &["stub_3", "stub_6"], "run=int3=4,ring3=3");
    assert_eq!((ran.hits("stub_3"), ran.hits("stub_6")), (7, 1));
    assert_eq!((ran.hits("trap_entry"), back), (8, 7));
}

fn entry_fault(here: &Here<'_>) {
    let (ran, back) = at_entries(here, &["stub_14"], "run=fault=5");
    assert_eq!(ran.hits("stub_14"), 5);
    assert_eq!((ran.hits("trap_entry"), back), (5, 5));
}

/// The status of each probe: the location, the state with the reason, the counts, and the tier.
fn status(here: &Here<'_>) {
    let disabled = ProbeConfig {
        enabled: false,
        ..new("kprobe:fn_sub")
    };
    let counting = ProbeConfig {
        action: Action::Count.into(),
        ..new("kprobe:fn_add")
    };
    let kernel = here.kernel();
    let probes = [
        new("kprobe:fn_push+1"),
        counting,
        disabled,
        new("kretprobe:fn_call"),
        new("kprobe:fn_recurse"),
    ];
    let ran = here.guest("run=calls=6").with(probes).run();
    ran.assert_good();
    let address = |function: &str| {
        let symbol = kernel.symbols().lookup(function).expect(function);
        symbol.address.0
    };
    let [inside, counting, disabled, returns, never] = &ran.summary.probes[..] else {
        panic!("five probes: {:?}", ran.summary.probes);
    };
    assert_eq!(inside.probe, "kprobe:fn_push+0x1");
    assert_eq!(inside.ip.map(|ip| ip.0), Some(address("fn_push") + 1));
    assert_eq!((inside.state, inside.hits), (ProbeState::Armed, 6));
    assert!(inside.tier.is_some() && inside.exits >= 6, "{inside:?}");
    assert_eq!((counting.state, counting.hits), (ProbeState::Armed, 6));
    assert_eq!(disabled.state, ProbeState::Disabled);
    assert_eq!((disabled.hits, disabled.exits, disabled.tier), (0, 0, None));
    assert_eq!((returns.returns, returns.in_flight), (Some(6), Some(0)));
    assert!(returns.exits >= 12, "entries and returns exit: {returns:?}");
    assert_eq!(never.ip.map(|ip| ip.0), Some(address("fn_recurse")));
    assert_eq!(
        (never.state, never.hits, never.tier),
        (ProbeState::Armed, 0, None)
    );
    for probe in &ran.summary.probes {
        assert_eq!(probe.reason, None, "{probe:?}");
    }
    let told: Vec<String> = ran
        .observer
        .hits()
        .iter()
        .map(|hit| hit.symbol.to_string())
        .collect();
    assert_eq!(told, vec!["fn_push+0x1"; 6], "one is counted only");
}
