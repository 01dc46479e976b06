//! Watchpoints of reads: each read of a watched word by the test guest, with the value.

use events::{DataRead, Hit};
use vmm::PortDelivery;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::Ran;
use super::watch::{WORD, assert_chained, writes};

pub(super) const CASES: [Case; 4] = [
    Case::new("watch-reads", Plants::Chosen, &[1], reads_in_sequence),
    Case::new("watch-reads-smp", Plants::Chosen, &[2], reads_of_two),
    Case::new("watch-reads-vector", Plants::Chosen, &[1], vector_reads),
    Case::new("watch-odd", Plants::Chosen, &[1], odd),
];

const READS: &str = "watch:watch_word:8:r";
const BOTH: &str = "watch:watch_word:8:rw";
/// The value that each instruction of `watch_reads` finds in the word, up to the repeated one.
const READ_VALUES: [u64; 12] = [
    0x1122_3344_5566_7788, // mov, 8 bytes
    0x1122_3344_5566_7788, // mov, 4 bytes
    0x1122_3344_5566_7788, // movzx of byte 7
    0x1122_3344_5566_7788, // add to a register
    0x1122_3344_5566_7788, // cmp
    0x1122_3344_5566_7788, // test
    0x1122_3344_5566_7788, // push
    0x1122_3344_5566_7788, // lods
    0x1122_3344_5566_7788, // the upper half of a mov from byte -2
    0x1122_3344_5566_7788, // inc
    0x1122_3344_5566_7789, // lock xadd
    0x1122_3344_5566_7799, // xchg
];
/// The values that the writes of `watch_reads` leave.
const WRITTEN_VALUES: [u64; 5] = [
    0x1122_3344_5566_7788,
    0x1122_3344_5566_7789,
    0x1122_3344_5566_7799,
    5,
    6,
];

fn reads(ran: &Ran, probe: &str) -> Vec<(Hit, DataRead)> {
    let hits = ran.observer.hits().into_iter();
    let of_probe = hits.filter(|hit| &*hit.probe == probe);
    of_probe
        .filter_map(|hit| hit.read.map(|read| (hit, read)))
        .collect()
}

fn reads_in_sequence(here: &Here<'_>) {
    const LOADS: usize = 20;
    let ran = here
        .guest(&format!("run=watchread={LOADS}"))
        .probes([READS, BOTH, WORD])
        .run();
    ran.assert_good();
    let all = reads(&ran, READS);
    let (sequence, rest) = all.split_at(READ_VALUES.len());
    let values: Vec<u64> = sequence.iter().map(|(_, read)| read.value.0).collect();
    assert_eq!(values, READ_VALUES);
    // The instructions are distinct, and in their order.
    let ips: Vec<u64> = sequence.iter().map(|(hit, _)| hit.ip.0).collect();
    assert!(ips.is_sorted_by(|one, next| one < next), "{ips:x?}");
    for (hit, read) in sequence {
        assert!(hit.symbol.starts_with("watch_reads+"), "{hit:?}");
        assert_eq!((read.bytes, hit.write), (8, None));
    }
    let (repeated, loads) = rest.split_at(rest.len() - LOADS);
    // A KVM that emulates the guest reads, and reports, each byte.
    assert!(matches!(repeated.len(), 1 | 4), "{repeated:?}");
    assert!(rest.iter().all(|(_, read)| read.value.0 == 6), "{rest:?}");
    for (hit, _) in loads {
        assert!(hit.symbol.starts_with("scenario_watchread+"), "{hit:?}");
    }
    let probe = ran.probe(READS);
    assert_eq!(probe.hits, all.len() as u64);
    assert!(probe.missed.is_empty(), "{probe:?}");
    for watched in [BOTH, WORD] {
        let written = writes(&ran, watched);
        assert_chained(&written);
        let new: Vec<u64> = written.iter().map(|(_, write)| write.new.0).collect();
        assert_eq!(new, WRITTEN_VALUES);
    }
    // The three instructions that read and write are writes there.
    assert_eq!(all.len() - reads(&ran, BOTH).len(), 3);
}

/// The hardware executes the loads, alone.
fn vector_reads(here: &Here<'_>) {
    const LOADS: u64 = 50;
    let ran = here
        .guest(&format!("run=watchreadvector={LOADS}"))
        .probes([READS, BOTH, WORD])
        .run();
    ran.assert_good();
    for watched in [READS, BOTH] {
        let all = reads(&ran, watched);
        let of_loop = |hit: &Hit| hit.symbol.starts_with("scenario_watchreadvector+");
        let loads: Vec<_> = all.iter().filter(|(hit, _)| of_loop(hit)).collect();
        // Each round has two loads of the word; the second begins in front of it.
        assert_eq!(loads.len() as u64, 2 * LOADS, "{watched}");
        for (round, pair) in (1..).zip(loads.chunks(2)) {
            assert_eq!([pair[0].1.value.0, pair[1].1.value.0], [round; 2]);
            assert!(pair[0].0.ip < pair[1].0.ip);
        }
        assert!(ran.probe(watched).missed.is_empty());
    }
    assert_eq!(writes(&ran, WORD).len() as u64, LOADS);
}

/// Instructions that neither emulator executes: the load of a table of interrupts from the word, and unaligned locked instructions.
fn odd(here: &Here<'_>) {
    const ROUNDS: usize = 20;
    let guest = here.guest(&format!("run=watchodd={ROUNDS}"));
    let ran = guest.probes([READS, BOTH, WORD]).run();
    ran.assert_good();
    let table = writes(&ran, WORD)[0].1.new.0;
    let found: Vec<u64> = reads(&ran, READS)
        .iter()
        .map(|(_, read)| read.value.0)
        .collect();
    assert_eq!(found, [table, 0, 0x100, 0x300].repeat(ROUNDS));
    for watched in [BOTH, WORD] {
        let written = writes(&ran, watched);
        assert_chained(&written);
        let new: Vec<u64> = written.iter().map(|(_, write)| write.new.0).collect();
        assert_eq!(new, [table, 0, 0x100, 0x300].repeat(ROUNDS));
    }
    for watched in [READS, BOTH, WORD] {
        let probe = ran.probe(watched);
        assert!(probe.missed.is_empty(), "{probe:?}");
    }
}

/// Two vCPUs: each read has found what the last write before it has left.
fn reads_of_two(here: &Here<'_>) {
    const ROUNDS: u64 = 200;
    let ran = here
        .guest(&format!("run=watchreadsmp={ROUNDS}"))
        .probes([BOTH])
        .run();
    ran.assert_good();
    let mut last = 0;
    let mut seen = [[0; 2]; 2];
    let mut sum = 0;
    for hit in ran.observer.hits() {
        if let Some(write) = hit.write {
            assert_eq!((write.old.0, write.new.0), (last, last + 1), "{hit:?}");
            last = write.new.0;
            seen[hit.vcpu][0] += 1;
        }
        if let Some(read) = hit.read {
            assert_eq!(read.value.0, last, "{hit:?}");
            seen[hit.vcpu][1] += 1;
            if hit.symbol.starts_with("watch_read_round+") {
                sum += read.value.0;
            }
        }
    }
    // What the guest has read is what the events have. Where KVM interprets, another vCPU may write between a read and its event.
    if here.bench.facts().port != PortDelivery::AfterInstruction {
        let console = ran.observer.console();
        let reported = console.split(" sum=").nth(1).expect("a sum");
        let digits = reported.split_whitespace().next().expect("a number");
        assert_eq!(digits.parse::<u64>().ok(), Some(sum), "{reported}");
    }
    // Scenarios look at the word before and behind, on the first vCPU.
    assert_eq!([seen[0][0], seen[1][0]], [ROUNDS; 2]);
    assert_eq!(seen[1][1], ROUNDS);
    assert!(matches!(seen[0][1] - ROUNDS, 1..=3), "{seen:?}");
}
