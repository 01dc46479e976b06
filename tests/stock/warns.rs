//! A kernel that reads its own instruction to learn the instruction's meaning.

use events::Tier;

use crate::boot::{Boot, Stock, probe};

const IMAGE: &str = "debian-6.1";
/// The code with which Linux complains of a senseless parameter.
const COMPLAINS: &str = "rcu_init_geometry.cold";
const SENSELESS: &str = "rcutree.rcu_fanout_leaf=1";

/// A warning is an `ud2` whose bytes the handler of #UD compares: with a plant in place, the warning would be a crash.
#[test]
fn a_probed_warning_is_still_one() {
    let stock = Stock::fetch(IMAGE);
    let symbol = stock.kernel.symbols().lookup(COMPLAINS).expect(COMPLAINS);
    let ud2 = stock
        .kernel
        .instructions(&symbol)
        .map_while(Result::ok)
        .find(|decoded| decoded.bytes() == [0x0f, 0x0b])
        .expect("a warning");
    let spec = format!("kprobe:{COMPLAINS}+{:#x}", ud2.at().0 - symbol.address.0);
    // Behind the `ud2`, at the instruction where the handler of #UD resumes.
    let behind = format!("kprobe:{COMPLAINS}+{:#x}", ud2.next().0 - symbol.address.0);
    let workload = format!("getpids=1 {SENSELESS}");
    let ran = Boot::new(&stock, &workload)
        .probe(&spec)
        .probe(&behind)
        .run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.counts();
    let warned = ran.console.matches("WARNING: ").count();
    assert_eq!(warned, 1, "{}", ran.report());
    assert!(ran.console.contains(COMPLAINS), "{}", ran.report());
    let summary = ran.summary();
    for name in [&spec, &behind] {
        let probe = probe(&summary, name);
        assert_eq!((probe.hits, probe.missed.len()), (1, 0), "{probe:?}");
    }
    // The `ud2` never completed.
    assert_ne!(probe(&summary, &spec).tier, Some(Tier::Stepped));
}
