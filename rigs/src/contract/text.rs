//! The guest's text, as the guest reads the text.

use std::collections::BTreeMap;

use guest_images::testguest::text_checksum;
use iced_x86::FlowControl;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::Ran;

/// The least number of probes with hits in the case of many probes.
const LEAST_HIT: usize = 100;

pub(super) const CASES: [Case; 5] = [
    Case::new("text-unprobed", Plants::Nothing, &[1], |here| {
        let ran = here.guest("run=checksum").with([]).run();
        ran.assert_good();
        assert_eq!(sums(&ran), [own_sum(here)]);
    }),
    Case::new("text-planted", Plants::Bytes, &[1], |here| {
        let ran = here
            .guest("run=checksum,calls=3,checksum")
            .probes(["kprobe:fn_nop"])
            .run();
        // The same sum twice, or the guest would have complained.
        ran.assert_good();
        let [first, second] = &sums(&ran)[..] else {
            panic!("two sums")
        };
        assert_eq!(first, second);
        assert_ne!(*first, own_sum(here));
    }),
    Case::new("text-hidden", Plants::Hidden, &[1, 2], hidden),
    Case::new("text-afterwards", Plants::Each, &[1], |here| {
        afterwards(here, "run=calls=60,checksum,calls=2,checksum", 500);
    }),
    Case::new("text-afterwards-smp", Plants::Each, &[2], |here| {
        afterwards(here, "run=smp=60,checksum", 1000);
    }),
];

/// Many probes of all kinds on all kinds of instructions, and the text is the file's text in each reading.
fn hidden(here: &Here<'_>) {
    let scenarios = match here.cpus {
        1 => "run=checksum,calls=5,checksum,calls=5,checksum",
        // The text is also read in other ways, while the other processor hits the probes.
        _ => "run=checksum,textsmp=3,checksum",
    };
    let probes = ["kprobe:fn_*", "kretprobe:fn_*"].map(str::to_owned);
    let second = second_instructions(here);
    let ran = here
        .guest(scenarios)
        .probes(probes.into_iter().chain(second))
        .run();
    ran.assert_good();
    let sums = sums(&ran);
    assert!(sums.len() >= 2);
    for sum in sums {
        assert_eq!(sum, own_sum(here));
    }
    let mut reported: BTreeMap<String, u64> = BTreeMap::new();
    for hit in ran.observer.hits() {
        *reported.entry(hit.probe.to_string()).or_default() += 1;
    }
    let mut hit = 0;
    for probe in &ran.summary.probes {
        let (kind, place) = probe.probe.split_once(':').expect("a kind");
        let function = place.split('+').next().unwrap_or(place);
        assert_eq!(probe.hits, ran.counted(function), "{}", probe.probe);
        if kind == "kprobe" {
            let reported = reported.get(&probe.probe).copied().unwrap_or(0);
            assert_eq!(reported, probe.hits, "{}", probe.probe);
        }
        hit += usize::from(probe.hits > 0);
    }
    assert!(hit >= LEAST_HIT, "only {hit} probes are hit");
}

/// The second instruction of each function whose first instruction goes on to it, once for each execution.
fn second_instructions(here: &Here<'_>) -> Vec<String> {
    let kernel = here.bench.kernel();
    let functions = kernel.symbols().matching("fn_*");
    functions
        .filter(|symbol| symbol.is_text() && symbol.size > 0)
        .filter_map(|symbol| {
            let first = kernel.instructions(&symbol).next()?.ok()?;
            let goes_on = matches!(
                first.instruction().flow_control(),
                FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall
            );
            goes_on.then(|| format!("kprobe:{}+{}", symbol.name, first.len()))
        })
        .collect()
}

/// The `sum` of each checksum taken by the guest, whether the guest reports success or failure.
pub(super) fn sums(ran: &Ran) -> Vec<String> {
    let console = ran.observer.console();
    console
        .lines()
        .filter(|line| line.starts_with("testguest: checksum "))
        .filter_map(|line| line.split(' ').find_map(|word| word.strip_prefix("sum=")))
        .map(str::to_owned)
        .collect()
}

/// The checksum of the file's text.
pub(super) fn own_sum(here: &Here<'_>) -> String {
    let sum = text_checksum(here.bench.elf()).expect("it has a text");
    format!("{sum:#x}")
}

/// Disarms every probe after `hits` hits, in the middle of the run: the text equals the file's text, and nothing is hit.
fn afterwards(here: &Here<'_>, cmdline: &str, hits: usize) {
    let guest = here.guest(cmdline).prepare();
    let (control, engine) = (guest.session.control(), guest.session.engine().clone());
    let observer = guest.observer.clone();
    let (ran, at_disarming) = std::thread::scope(|scope| {
        let disarming = scope.spawn(|| {
            observer.wait_for_hits(hits);
            let paused = control.pause_all();
            engine.disarm_all(&paused).expect("every byte is put back");
            engine.inventory().summaries()
        });
        let ran = guest.run();
        (ran, disarming.join().expect("disarmed"))
    });
    ran.assert_good();
    let sums = sums(&ran);
    assert!(!sums.is_empty());
    for sum in sums {
        assert_eq!(sum, own_sum(here));
    }
    // A vCPU that was paused in a detour, in front of its count, counts afterwards.
    let probes = at_disarming.iter().zip(&ran.summary.probes);
    let late: u64 = probes.map(|(then, end)| end.hits - then.hits).sum();
    let in_flight = u64::from(here.cpus);
    assert!(
        late <= in_flight,
        "{late} hits after the probes were disarmed"
    );
    assert!(ran.hits("fn_nop") < ran.counted("fn_nop"));
}
