//! A probe at every instruction of every function at once.

use std::collections::BTreeMap;

use introspect::Gva;
use introspect::insn::Decoded;
use probes::{Kernel, ProbeSpec};

use crate::guest::{Guest, Ran, kernel, plant_bytes};

/// The instructions of each function whose name matches.
fn functions(kernel: &Kernel, pattern: &str) -> BTreeMap<String, Vec<Decoded>> {
    kernel
        .symbols()
        .matching(pattern)
        .filter(|symbol| symbol.is_text() && symbol.size > 0 && !symbol.name.ends_with("_next"))
        .map(|symbol| {
            let code = kernel.instructions(&symbol);
            (
                symbol.name.to_string(),
                code.map(|decoded| decoded.expect("code")).collect(),
            )
        })
        .collect()
}

/// As it is reported.
fn probe(function: &str, code: &[Decoded], at: &Decoded) -> String {
    let offset = at.at().0 - code[0].at().0;
    let spec: ProbeSpec = format!("kprobe:{function}+{offset:#x}")
        .parse()
        .expect("a probe");
    spec.to_string()
}

fn is_return(decoded: &Decoded) -> bool {
    let text = decoded.text();
    text.starts_with("ret") || text.starts_with("iret")
}

fn probes_at(functions: &BTreeMap<String, Vec<Decoded>>) -> Vec<String> {
    functions
        .iter()
        .flat_map(|(name, code)| code.iter().map(|at| probe(name, code, at)))
        .collect()
}

/// What comes into an instruction must have gone out of others. What an entry gets is what the guest counts.
fn assert_flow(ran: &Ran, function: &str, code: &[Decoded]) {
    let hits = |decoded: &Decoded| ran.probe(&probe(function, code, decoded)).hits;
    let mut inflow: BTreeMap<Gva, u64> = BTreeMap::new();
    for (i, from) in code.iter().enumerate() {
        let instruction = from.instruction();
        let next = code.get(i + 1);
        let out = hits(from);
        if instruction.is_jcc_short_or_near() {
            let next = next.expect("a conditional jump is not the end");
            // Nothing else leads to the instruction behind one.
            *inflow.entry(next.at()).or_default() += hits(next);
            let target = from.branch_target().expect("direct");
            *inflow.entry(target).or_default() += out - hits(next);
        } else if instruction.is_jmp_short_or_near() {
            *inflow
                .entry(from.branch_target().expect("direct"))
                .or_default() += out;
        } else if !is_return(from)
            && let Some(next) = next
        {
            *inflow.entry(next.at()).or_default() += out;
        }
    }
    let counted = ran.outcome.counts.get(function).copied().unwrap_or(0);
    assert_eq!(hits(&code[0]), counted, "{function}");
    for decoded in &code[1..] {
        let came = inflow.get(&decoded.at()).copied().unwrap_or(0);
        assert_eq!(hits(decoded), came, "{}", probe(function, code, decoded));
    }
}

#[test]
fn each_instruction_is_hit_as_often_as_it_runs() {
    let functions = functions(&kernel(), "fn_*");
    let probes = probes_at(&functions);
    assert!(probes.len() > 150, "{} probes", probes.len());
    for plant in plant_bytes() {
        let ran = Guest::new("run=calls=10,recurse=20,flags,int3=4,smp=10")
            .cpus(2)
            .probes(probes.clone())
            .plant(plant)
            .run();
        ran.assert_good();
        for (name, code) in &functions {
            assert_flow(&ran, name, code);
        }
    }
}

/// The instruction that rewrites a probed one is itself probed: whoever executes it, the guest's text changes.
#[test]
fn those_who_rewrite_text_may_be_probed_too() {
    let kernel = kernel();
    let mut writers = functions(&kernel, "write_*");
    writers.extend(functions(&kernel, "exchange"));
    assert_eq!(writers.len(), 6, "one for each way to write");
    let mut probes = probes_at(&writers);
    probes.push("kprobe:fn_patched".to_owned());
    for plant in plant_bytes() {
        let ran = Guest::new("run=selfpatch=2")
            .probes(probes.clone())
            .plant(plant)
            .run();
        ran.assert_good();
        assert_eq!(ran.hits("fn_patched"), ran.outcome.counts["fn_patched"]);
        for (name, code) in &writers {
            assert_eq!(ran.probe(&probe(name, code, &code[0])).hits, 10, "{name}");
        }
    }
}
