//! A probe at every instruction of every function at once.

use std::collections::BTreeMap;

use events::Tier;
use introspect::insn::Decoded;
use probes::Kernel;

use super::bench::Here;
use super::case::{Case, Plants};
use super::flow;
use super::guest::Ran;

pub(super) const CASES: [Case; 7] = [
    Case::new("instructions", Plants::Each, &[1], |here| {
        let scenarios = "calls=10,recurse=20,flags,int3=4";
        each_instruction(here, scenarios, &[("fn_int3_next", 4)]);
    }),
    Case::new("instructions-smp", Plants::Each, &[2], |here| {
        each_instruction(here, "smp=10", &[]);
    }),
    Case::new("instructions-ring3", Plants::Each, &[1], |here| {
        each_instruction(here, "syscall=6,sysret=6", &[]);
    }),
    Case::new("instructions-wait", Plants::Each, &[1], |here| {
        waits(here, "wait=1000");
    }),
    Case::new("instructions-nmi", Plants::Each, &[1], |here| {
        waits(here, "nmi=20");
    }),
    Case::new("nmi-watched", Plants::Each, &[1], |here| {
        // A debug register is in use while NMIs wait for each other.
        let guest = here.guest("run=nmi=20").probes(["kprobe:st_patched"]);
        let ran = guest.run();
        ran.assert_good();
        assert_eq!(ran.hits("st_patched"), 1);
    }),
    Case::new("writers", Plants::Each, &[1], writers),
];

/// The instructions of each function with a name that matches `pattern`.
fn functions(kernel: &Kernel, pattern: &str) -> BTreeMap<String, Vec<Decoded>> {
    let mut functions = BTreeMap::new();
    for symbol in kernel.symbols().matching(pattern) {
        if symbol.is_text() && symbol.size > 0 {
            let code = kernel.instructions(&symbol).collect::<Result<_, _>>();
            functions.insert(symbol.name.to_string(), code.expect(&symbol.name));
        }
    }
    functions
}

fn probes_at(functions: &BTreeMap<String, Vec<Decoded>>) -> Vec<String> {
    functions
        .iter()
        .flat_map(|(name, code)| code.iter().map(|at| flow::probe(name, code, at)))
        .collect()
}

fn each_instruction(here: &Here<'_>, scenarios: &str, extra: &[(&str, u64)]) -> Ran {
    let functions = functions(&here.kernel(), "fn_*");
    let probes = probes_at(&functions);
    assert!(probes.len() > 150, "{} probes", probes.len());
    let ran = here
        .guest(&format!("run={scenarios}"))
        .probes(&probes)
        .run();
    ran.assert_good();
    assert_flow(&ran, &functions, extra);
    ran
}

/// The engine emulates the instructions that enable interrupts: no hit is lost.
fn waits(here: &Here<'_>, scenarios: &str) {
    let ran = each_instruction(here, scenarios, &[]);
    for (name, code) in functions(&here.kernel(), "fn_*") {
        for at in &code {
            let probe = ran.probe(&flow::probe(&name, &code, at));
            if probe.hits > 0 && ["sti", "hlt", "iretq"].contains(&at.text().as_str()) {
                assert_eq!(probe.tier, Some(Tier::Emulated), "{probe:?}");
                assert_eq!(probe.exits, probe.hits, "{probe:?}");
            }
        }
    }
}

fn assert_flow(ran: &Ran, functions: &BTreeMap<String, Vec<Decoded>>, extra: &[(&str, u64)]) {
    let hits: BTreeMap<&str, u64> = ran
        .summary
        .probes
        .iter()
        .map(|probe| (&*probe.probe, probe.hits))
        .collect();
    let wrong: Vec<String> = functions
        .iter()
        .flat_map(|(name, code)| {
            let extra = extra.iter().find(|(function, _)| function == name);
            let entered = ran.counted(name) + extra.map_or(0, |(_, more)| *more);
            flow::mismatches(name, code, entered, |at| {
                hits[&*flow::probe(name, code, at)]
            })
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}

/// Probes the instructions that rewrite a probed instruction. Whether the guest or the engine executes them, the guest's text changes.
fn writers(here: &Here<'_>) {
    let kernel = here.kernel();
    let mut writers = functions(&kernel, "write_*");
    writers.extend(functions(&kernel, "exchange"));
    assert_eq!(writers.len(), 6, "one for each way to write");
    let mut probes = probes_at(&writers);
    probes.push("kprobe:fn_patched".to_owned());
    let ran = here.guest("run=selfpatch=2").probes(&probes).run();
    ran.assert_good();
    assert_eq!(ran.hits("fn_patched"), ran.counted("fn_patched"));
    for name in writers.keys() {
        assert_eq!(ran.hits(name), 10, "{name}");
    }
}
