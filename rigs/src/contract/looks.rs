//! The guest looks for traces of probes: what it finds is what `invisibility` says.

use std::collections::{BTreeMap, BTreeSet};

use invisibility::{Kind, LOOKS, Look};
use manifest::Stealth;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::{Guest, Ran, new};
use super::optimised::{ROOMY, counts};
use super::watch::WORD;
use crate::way::Way;

pub(super) const CASES: [Case; 6] = [
    Case::new("looks-unprobed", Plants::Nothing, &[1], |here| {
        let unprobed = look(here).run();
        let again = look(here).run();
        assert_eq!(differing(&again, &unprobed), BTreeSet::new());
        let values = found(&unprobed);
        assert_ne!(values[Look::OwnBreakpoints.name()], 0);
        assert_ne!(values[Look::OwnInt3.name()], 0);
        let breaks_at_data = values[Look::OwnWatchpoints.name()] != 0;
        assert!(breaks_at_data || !here.bench.facts().debug_data);
        // The guest sees its own kprobe.
        let own = here.guest(&format!("run=ownkprobe,{LOOKED}"));
        let seen = differing(&own.with([]).run(), &unprobed);
        for look in [Look::Text, Look::Alias, Look::Copy, Look::Vectors] {
            assert!(seen.contains(&look), "{seen:?}");
        }
    }),
    Case::new("looks-kprobe", Plants::Each, &[1], |here| {
        let guest = look(here).probes(["kprobe:fn_*", "kprobe:rs_div", "kprobe:rs_rdmsr"]);
        check(here, Kind::Kprobe, level(here), guest.without_jumps());
    }),
    Case::new("looks-registers", Plants::Chosen, &[1], |here| {
        let probes = ["fn_nop", "fn_mov_store", "fn_pop", "fn_patched"];
        let guest = look(here).probes(probes.map(|function| format!("kprobe:{function}")));
        let level = Stealth::Registers;
        check(here, Kind::Kprobe, level, guest.at_level(level));
    }),
    Case::new("looks-kretprobe", Plants::Each, &[1], |here| {
        let guest = look(here).probes(["kretprobe:fn_*"]);
        check(here, Kind::Kretprobe, level(here), guest.without_jumps());
    }),
    Case::new("looks-jump", Plants::Chosen, &[1], |here| {
        // The first hits show where the page tables are.
        let guest = here.guest(&format!("run=calls=200,{LOOKED}"));
        check(here, Kind::Jump, level(here), guest.with(ROOMY.map(counts)));
    }),
    Case::new("looks-watch", Plants::Chosen, &[1], |here| {
        check(here, Kind::Watch, level(here), look(here).with([new(WORD)]));
    }),
];

/// The scenarios of a guest that looks. Frames of exceptions come from those before the last.
const LOOKED: &str = "calls=2,raise=3,look";

fn level(here: &Here<'_>) -> Stealth {
    here.way.map(Way::stealth).unwrap_or_default()
}

fn look<'a>(here: &'a Here<'a>) -> Guest<'a> {
    here.guest(&format!("run={LOOKED}")).with([])
}

/// The values that the guest has found.
fn found(ran: &Ran) -> BTreeMap<&str, u64> {
    ran.assert_good();
    let passed = &ran.outcome.passed;
    let look = passed.iter().find(|(scenario, _)| scenario == "look");
    let (_, fields) = look.expect("the guest has looked");
    let value = |text: &str| {
        let digits = text.strip_prefix("0x").expect("a hexadecimal number");
        u64::from_str_radix(digits, 16).expect("a number")
    };
    let fields = fields.iter();
    fields
        .map(|(name, text)| (name.as_str(), value(text)))
        .collect()
}

/// The looks whose values differ.
fn differing(probed: &Ran, unprobed: &Ran) -> BTreeSet<Look> {
    let (probed, unprobed) = (found(probed), found(unprobed));
    let differs = |look: &Look| probed[look.name()] != unprobed[look.name()];
    LOOKS.into_iter().filter(differs).collect()
}

/// Runs `guest`, and a guest without probes, and compares what differs with the table.
fn check(here: &Here<'_>, kind: Kind, level: Stealth, guest: Guest<'_>) {
    let (probed, unprobed) = (guest.run(), look(here).run());
    // Where KVM raises no data breakpoints, the guest has none to lose.
    let breaks_at_data = found(&unprobed)[Look::OwnWatchpoints.name()] != 0;
    let documented = LOOKS
        .into_iter()
        .filter(|look| invisibility::is_seen(*look, kind, level))
        .filter(|look| *look != Look::OwnWatchpoints || breaks_at_data);
    let documented: BTreeSet<Look> = documented.collect();
    let seen = differing(&probed, &unprobed);
    assert_eq!(seen, documented, "{kind:?} at the level {level:?}");
}
