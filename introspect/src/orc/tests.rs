use std::collections::BTreeMap;

use address::Gva;

use super::format::RULE_BYTES;
use super::*;

const TEXT: u64 = 0xffff_ffff_8100_0000;
const STACK: u64 = 0xffff_c900_0000_3000;
/// The code of a tracer: the first instruction behind that of another function.
const TRACER: u64 = TEXT + 0x200;
const IPS: Gva = Gva(0xffff_ffff_8200_0000);

/// The bytes of a rule.
fn bytes(sp_offset: i16, bp_offset: i16, bits: u16) -> [u8; RULE_BYTES] {
    let ([a, b], [c, d], [e, f]) = (
        sp_offset.to_le_bytes(),
        bp_offset.to_le_bytes(),
        bits.to_le_bytes(),
    );
    [a, b, c, d, e, f]
}

/// A table with a rule at each offset from [`TEXT`].
fn table(rules: &[(u64, [u8; RULE_BYTES])]) -> OrcTable {
    let distance = |(number, (offset, _)): (usize, &(u64, [u8; RULE_BYTES]))| {
        let at = IPS.0 + 4 * number as u64;
        let distance = (TEXT + offset).wrapping_sub(at).cast_signed();
        i32::try_from(distance).expect("near").to_le_bytes()
    };
    let distances: Vec<u8> = rules.iter().enumerate().flat_map(distance).collect();
    let rules = rules.iter().flat_map(|(_, rule)| *rule).collect();
    OrcTable::new(IPS, &distances, rules).expect("a table")
}

/// The bits of kernels with processor numbers: base, frame pointer, type, interrupted.
const fn new_bits(base: u16, bp: u16, kind: u16, interrupted: bool) -> u16 {
    base | bp << 4 | kind << 8 | (interrupted as u16) << 11
}

fn call(base: Base, offset: i16, bp: PreviousBp) -> Rule {
    Rule::Frame(FrameRule {
        base,
        offset,
        bp,
        kind: FrameKind::Call,
        interrupted: false,
    })
}

#[test]
fn format_follows_the_numbers_of_most_rules() {
    // Linux 5.10 and 6.1: the stack pointer is 5, a call is 0, bit 10 is the end.
    let old = table(&[
        (0, bytes(8, 0, 0x005)),
        (1, bytes(16, -16, 0x015)),
        (2, bytes(16, -16, 0x014)),
        (3, bytes(0, 0, 0x105)),
        (4, bytes(0, 0, 0x205)),
        (5, bytes(-40, 0, 0x048)),
        (6, bytes(0, 0, 0x400)),
        (7, bytes(0, 0, 0)),
    ]);
    // Linux 6.12: a call is 2, the end is 1, bit 11 says that the caller was interrupted.
    let middle = table(&[
        (0, bytes(8, 0, 0x205)),
        (1, bytes(16, -16, 0x215)),
        (2, bytes(16, -16, 0x214)),
        (3, bytes(0, 0, 0xb05)),
        (4, bytes(0, 0, 0xc05)),
        (5, bytes(-40, 0, 0x248)),
        (6, bytes(0, 0, 0x100)),
        (7, bytes(0, 0, 0)),
    ]);
    // Linux 7.2: the stack pointer is 3.
    let new = table(&[
        (0, bytes(8, 0, new_bits(3, 0, 2, false))),
        (1, bytes(16, -16, new_bits(3, 8, 2, false))),
        (2, bytes(16, -16, new_bits(4, 8, 2, false))),
        (3, bytes(0, 0, new_bits(3, 0, 3, true))),
        (4, bytes(0, 0, new_bits(3, 0, 4, true))),
        (5, bytes(-40, 0, new_bits(10, 4, 2, false))),
        (6, bytes(0, 0, new_bits(0, 0, 1, false))),
        (7, bytes(0, 0, 0)),
    ]);
    let interrupted = |kind| {
        Rule::Frame(FrameRule {
            base: Base::Sp,
            offset: 0,
            bp: PreviousBp::Unchanged,
            kind,
            interrupted: true,
        })
    };
    for table in [old, middle, new] {
        let expected = [
            call(Base::Sp, 8, PreviousBp::Unchanged),
            call(Base::Sp, 16, PreviousBp::FromPreviousSp(-16)),
            call(Base::Bp, 16, PreviousBp::FromPreviousSp(-16)),
            interrupted(FrameKind::Registers),
            interrupted(FrameKind::InterruptFrame),
            call(Base::BpIndirect, -40, PreviousBp::FromBp(0)),
            Rule::EndOfStack,
            Rule::Undefined,
        ];
        let rules = (0..8).map(|offset| table.rule(Gva(TEXT + offset)));
        assert!(rules.eq(expected.map(Some)), "{:?}", table.format());
        assert_eq!(table.rule(Gva(TEXT - 1)), None);
        assert_eq!(table.rule(Gva(TEXT + 0x1000)), Some(Rule::Undefined));
    }
}

#[test]
fn bit_for_interrupted_callers_is_found_beside_calls_of_zero() {
    // Linux 6.3: bit 10 says that the caller was interrupted, bit 11 is the end.
    let table = table(&[
        (0, bytes(8, 0, 0x005)),
        (1, bytes(0, 0, 0x505)),
        (2, bytes(0, 0, 0x105)),
        (3, bytes(0, 0, 0x800)),
    ]);
    let interrupted = |offset| match table.rule(Gva(TEXT + offset)) {
        Some(Rule::Frame(rule)) => Some(rule.interrupted),
        _ => None,
    };
    assert_eq!(
        [0, 1, 2].map(interrupted),
        [Some(false), Some(true), Some(false)]
    );
    assert_eq!(table.rule(Gva(TEXT + 3)), Some(Rule::EndOfStack));
}

#[test]
fn tables_that_make_no_sense_are_refused() {
    let rules = bytes(8, 0, 0x205);
    let unsorted = [0_i32, -8].map(i32::to_le_bytes).concat();
    let two = [rules, rules].concat();
    assert_eq!(
        OrcTable::new(IPS, &unsorted, two).err(),
        Some(NoOrc::Unsorted)
    );
    let none = bytes(0, 0, 0).to_vec();
    let one = 0_i32.to_le_bytes();
    assert_eq!(OrcTable::new(IPS, &one, none).err(), Some(NoOrc::Format));
}

/// A kernel with a table, words in memory, and injected code.
struct Fake {
    table: OrcTable,
    words: BTreeMap<u64, u64>,
    injected: BTreeMap<u64, Displaced>,
}

impl Fake {
    fn new(words: &[(u64, u64)]) -> Self {
        Self {
            table: table(&[
                // A function at its entry, and behind `push`.
                (0x000, bytes(8, 0, new_bits(3, 0, 2, false))),
                (0x001, bytes(16, 0, new_bits(3, 0, 2, false))),
                // A function with a frame pointer.
                (0x100, bytes(16, -16, new_bits(4, 8, 2, false))),
                // The entry of an interrupt.
                (0x200, bytes(0, 0, new_bits(3, 0, 3, true))),
                (0x300, bytes(0, 0, new_bits(3, 0, 4, true))),
                // The change of stacks: the former stack pointer is on top.
                (0x400, bytes(16, 0, new_bits(9, 0, 2, false))),
                // An aligned stack.
                (0x500, bytes(0, 0, new_bits(6, 0, 2, false))),
                (0x600, bytes(0, 0, new_bits(0, 0, 1, false))),
                (0x700, bytes(0, 0, 0)),
            ]),
            words: words.iter().copied().collect(),
            injected: BTreeMap::new(),
        }
    }

    fn stack(&self, start: StartRegisters) -> (Vec<u64>, Option<Incomplete>) {
        self.stack_from(Start::Stopped(start))
    }

    fn stack_from(&self, start: Start) -> (Vec<u64>, Option<Incomplete>) {
        let stack = unwind(self, start, 8);
        let ips = stack.frames.iter().map(|frame| frame.ip.0).collect();
        (ips, stack.incomplete)
    }
}

impl StackSource for Fake {
    fn rule(&self, at: Gva) -> Option<Rule> {
        self.table.rule(at).filter(|_| at.0 < TEXT + 0x800)
    }

    fn word(&self, at: Gva) -> Option<u64> {
        self.words.get(&at.0).copied()
    }

    fn replaces_returns(&self, at: Gva) -> bool {
        at.0 == TRACER
    }

    fn displaced(&self, at: Gva) -> Option<Displaced> {
        self.injected.get(&at.0).copied()
    }
}

fn at(offset: u64) -> StartRegisters {
    StartRegisters {
        ip: TEXT + offset,
        sp: STACK,
        bp: STACK + 0x20,
        ..StartRegisters::default()
    }
}

#[test]
fn calls_are_followed_to_the_end_of_the_stack() {
    let fake = Fake::new(&[
        (STACK, TEXT + 0x110),
        (STACK + 0x20, STACK + 0x80),
        (STACK + 0x28, TEXT + 0x601),
    ]);
    let expected = vec![TEXT, TEXT + 0x110, TEXT + 0x601];
    assert_eq!(fake.stack(at(0)), (expected, None));
    // The byte in front of a return address selects the rule.
    let fake = Fake::new(&[
        (STACK, TEXT + 0x101),
        (STACK + 0x20, 0),
        (STACK + 0x28, TEXT + 0x700),
    ]);
    assert_eq!(fake.stack(at(0)).0.len(), 3);
}

#[test]
fn task_that_was_switched_out_begins_behind_a_call_or_at_a_function() {
    let fake = Fake::new(&[(STACK, TEXT + 0x601), (STACK + 8, TEXT + 0x601)]);
    let frame = |ip, is_new| {
        Start::SwitchedOut(SwitchFrame {
            ip,
            sp: STACK,
            bp: 0,
            is_new,
        })
    };
    // The rule of the call, one byte before, has two words.
    let words = fake.stack_from(frame(TEXT + 0x100, false));
    assert_eq!(words, (vec![TEXT + 0x100, TEXT + 0x601], None));
    let words = fake.stack_from(frame(TEXT, true));
    assert_eq!(words, (vec![TEXT, TEXT + 0x601], None));
    // No register is known that an interrupt would have saved.
    let unknown = Some(Incomplete::NoRegister(Gva(TEXT + 0x500)));
    let words = fake.stack_from(frame(TEXT + 0x500, true));
    assert_eq!(words, (vec![TEXT + 0x500], unknown));
}

/// The words of a `struct pt_regs` at `at`.
fn registers(at: u64, ip: u64, cs: u64, sp: u64) -> Vec<(u64, u64)> {
    let mut words: Vec<_> = (0..21)
        .map(|number| (at + 8 * number, 0x1000 + number))
        .collect();
    words[4].1 = STACK + 0x500;
    words[7].1 = STACK + 0x700;
    words[16].1 = ip;
    words[17].1 = cs;
    words[19].1 = sp;
    words
}

#[test]
fn interrupted_code_has_its_own_registers() {
    // Interrupted at an instruction whose rule needs r10, in the middle of a function.
    let mut words = registers(STACK, TEXT + 0x500, 0x10, STACK + 0x400);
    words.push((STACK + 0x700 - 8, TEXT + 0x601));
    let expected = vec![TEXT + 0x200, TEXT + 0x500, TEXT + 0x601];
    assert_eq!(Fake::new(&words).stack(at(0x200)), (expected, None));
    // At the first instruction of a function: the rule is that instruction's, not that of the byte before.
    let mut words = registers(STACK, TEXT + 0x300, 0x33, 0);
    assert_eq!(
        Fake::new(&words).stack(at(0x200)),
        (vec![TEXT + 0x200], None)
    );
    words = registers(STACK, TEXT, 0x10, STACK + 0x400);
    words.push((STACK + 0x400, TEXT + 0x601));
    let expected = vec![TEXT + 0x200, TEXT, TEXT + 0x601];
    assert_eq!(Fake::new(&words).stack(at(0x200)), (expected, None));
}

#[test]
fn call_through_a_null_pointer_has_its_caller() {
    let mut words = registers(STACK, 0, 0x10, STACK + 0x400);
    words.push((STACK + 0x400, TEXT + 0x601));
    let expected = vec![TEXT + 0x200, 0, TEXT + 0x601];
    assert_eq!(Fake::new(&words).stack(at(0x200)), (expected, None));
    // A return to 0 is no such call.
    let user = Some(Incomplete::NotKernel(Gva(0)));
    let fake = Fake::new(&[(STACK, 0)]);
    assert_eq!(fake.stack(at(0)), (vec![TEXT], user));
}

#[test]
fn replaced_return_address_ends_the_stack() {
    // The rule of the byte before would take the next word for a return address.
    let fake = Fake::new(&[(STACK, TRACER), (STACK + 0x28, TEXT + 0x601)]);
    let stack = unwind(&fake, Start::Stopped(at(0)), 8);
    let [first, tracer] = stack.frames[..] else {
        panic!("two frames: {stack:?}")
    };
    assert_eq!((first.ip, tracer.ip), (Gva(TEXT), Gva(TRACER)));
    assert!(!tracer.is_return_address);
    assert_eq!(stack.incomplete, Some(Incomplete::Replaced(Gva(TRACER))));
}

#[test]
fn interrupt_may_come_from_a_stack_below() {
    let below = STACK - 0x1000;
    let mut words = registers(STACK, TEXT, 0x10, below);
    words.push((below, TEXT + 0x601));
    let expected = vec![TEXT + 0x200, TEXT, TEXT + 0x601];
    assert_eq!(Fake::new(&words).stack(at(0x200)), (expected, None));
    let fake = Fake::new(&[(STACK, below), (below + 8, TEXT + 0x601)]);
    let expected = vec![TEXT + 0x400, TEXT + 0x601];
    assert_eq!(fake.stack(at(0x400)), (expected, None));
}

#[test]
fn interrupt_frames_and_changed_stacks_are_followed() {
    let frame = [TEXT + 0x600, 0x10, 0x202, STACK + 0x400, 0x18];
    let words: Vec<_> = (0..5).map(|n| (STACK + 8 * n as u64, frame[n])).collect();
    let expected = vec![TEXT + 0x300, TEXT + 0x600];
    assert_eq!(Fake::new(&words).stack(at(0x300)), (expected, None));
    let task = STACK + 0x10_0000;
    let fake = Fake::new(&[(STACK, task), (task + 8, TEXT + 0x601)]);
    let expected = vec![TEXT + 0x400, TEXT + 0x601];
    assert_eq!(fake.stack(at(0x400)), (expected, None));
}

#[test]
fn injected_code_counts_as_the_instruction_that_it_stands_for() {
    let detour = 0xffff_ffff_9000_0040;
    let mut fake = Fake::new(&registers(STACK, detour, 0x10, STACK + 0x400));
    fake.words.insert(STACK + 0x420, TEXT + 0x601);
    let ip = Gva(TEXT);
    let pushed_bytes = 0x20;
    fake.injected.insert(detour, Displaced { ip, pushed_bytes });
    let expected = vec![TEXT + 0x200, TEXT, TEXT + 0x601];
    assert_eq!(fake.stack(at(0x200)), (expected, None));
}

#[test]
fn broken_stacks_end_with_a_reason() {
    let fake = Fake::new(&[]);
    let unreadable = Some(Incomplete::Unreadable(Gva(STACK)));
    assert_eq!(fake.stack(at(0)), (vec![TEXT], unreadable));
    let none = Some(Incomplete::NoRule(Gva(TEXT + 0x700)));
    assert_eq!(fake.stack(at(0x700)), (vec![TEXT + 0x700], none));
    let fake = Fake::new(&[(STACK, 0x40_1000)]);
    let user = Some(Incomplete::NotKernel(Gva(0x40_1000)));
    assert_eq!(fake.stack(at(0)), (vec![TEXT], user));
    // The frame pointer points to itself.
    let fake = Fake::new(&[(STACK + 0x20, STACK + 0x20), (STACK + 0x28, TEXT + 0x101)]);
    let (ips, why) = fake.stack(at(0x100));
    assert_eq!(ips, [TEXT + 0x100, TEXT + 0x101]);
    assert_eq!(why, Some(Incomplete::WrongDirection(Gva(TEXT + 0x101))));
    // Every word of the stack is a return address.
    let words: Vec<_> = (0..100).map(|n| (STACK + 8 * n, TEXT + 1)).collect();
    let (ips, why) = Fake::new(&words).stack(at(0));
    assert_eq!((ips.len(), why), (8, Some(Incomplete::TooMany(8))));
}
