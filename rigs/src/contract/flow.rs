//! Compares the hits of each instruction with the hits of the instructions that lead to it.

use std::collections::BTreeMap;

use address::Gva;
use introspect::insn::Decoded;

/// The name, in a summary, of the probe at `at`.
pub(super) fn probe(function: &str, code: &[Decoded], at: &Decoded) -> String {
    match at.at().0 - code[0].at().0 {
        0 => format!("kprobe:{function}"),
        offset => format!("kprobe:{function}+{offset:#x}"),
    }
}

fn is_return(decoded: &Decoded) -> bool {
    let text = decoded.text();
    text.starts_with("ret") || text.starts_with("iret") || text.starts_with("sysret")
}

/// Reports each instruction with other hits than its predecessors imply. `entered` is the number of executions of the first instruction,
/// by calls and by jumps.
pub(super) fn mismatches(
    function: &str,
    code: &[Decoded],
    entered: u64,
    hits: impl Fn(&Decoded) -> u64,
) -> Vec<String> {
    let mut inflow: BTreeMap<Gva, i128> = BTreeMap::new();
    let mut flow = |to: Gva, count: i128| *inflow.entry(to).or_default() += count;
    for (i, from) in code.iter().enumerate() {
        let instruction = from.instruction();
        let out = i128::from(hits(from));
        let next = code.get(i + 1);
        match (from.branch_target(), next) {
            (Some(target), Some(next)) if instruction.is_jcc_short_or_near() => {
                // Nothing else leads to the instruction behind a conditional jump.
                let straight = i128::from(hits(next));
                flow(next.at(), straight);
                flow(target, out - straight);
            }
            (Some(target), _) if instruction.is_jmp_short_or_near() => flow(target, out),
            (_, Some(next)) if !is_return(from) => flow(next.at(), out),
            _ => (),
        }
    }
    inflow.insert(code[0].at(), i128::from(entered));
    code.iter()
        .filter_map(|decoded| {
            let (hit, came) = (
                hits(decoded),
                inflow.get(&decoded.at()).copied().unwrap_or(0),
            );
            (i128::from(hit) != came).then(|| {
                format!(
                    "{}: {hit} hits, {came} expected",
                    probe(function, code, decoded)
                )
            })
        })
        .collect()
}
