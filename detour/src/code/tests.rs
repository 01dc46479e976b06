//! Tests that programs have the same results in a detour as in the VMM. The emulator executes the detour, instruction by instruction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use address::Gpa;
use introspect::PhysMemory as _;
use introspect::insn::{Features, MAX_LENGTH_BYTES, decode};
use manifest::program::{
    Comparison, Condition, Linear, NameCondition, Operand, TaskName, TaskNumber, ValueCondition,
    Values,
};
use proptest::prelude::*;
use text::testing::{FakeMemory, FakeVcpu};
use text::{GuestMemory, Passed, PlantByte, Planter, pass};

use super::*;
use crate::{TaskFields, UserFields, register_value, ring};

/// Two megabytes at address 0, mapped one to one by the table at [`ROOT`].
const ROOT: u64 = 0x1000;
const DETOUR: Gva = Gva(0x10000);
const TEXT: Gva = Gva(0x20000);
const WORDS: Gva = Gva(0x30000);
const NUMBER: u64 = 0x40000;
const TASK: u64 = 0x40008;
const STACK: u64 = 0x50000;
const RING: Gva = Gva(0x60000);
/// The emulator leaves `rdtsc` to the processor.
const RDTSC: [u8; 2] = [0x0f, 0x31];
const TIME: u64 = 0x1234_5678;
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
const CPU_NUMBER: u64 = 5;
const CURRENT_TASK: u64 = 0x70000;
const FIELDS: TaskFields = TaskFields {
    numbers: 8,
    comm: 0x20,
    user: Some(UserFields {
        flags: 4,
        cred: 0x30,
        uid: 8,
    }),
};
const CRED: u64 = 0x70100;
const UID: u32 = 0xffff_fffe;
/// The group, behind the user.
const GID: u32 = 4321;
const TASK_FLAGS: u32 = 0x0040_0100;
const TID: u32 = 312;
const PID: u32 = 300;
const COMM: [u8; 16] = *b"fifteen-letters\0";
/// The flags of arithmetic, interrupts, and the flag that is always set.
const FLAGS: u64 = 0xad7;

struct Machine {
    memory: Arc<FakeMemory>,
    vcpu: FakeVcpu,
}

impl Machine {
    fn with(code: &Code) -> Self {
        let memory = FakeMemory::new(vec![0; 2 << 20]);
        let table = 0x23_u64;
        for (at, entry) in [
            (ROOT, 0x2000 | table),
            (0x2000, 0x3000 | table),
            (0x3000, 0xe3),
        ] {
            memory.put(at, &entry.to_le_bytes());
        }
        memory.put(DETOUR.0, &code.bytes);
        memory.put(NUMBER, &CPU_NUMBER.to_le_bytes());
        memory.put(TASK, &CURRENT_TASK.to_le_bytes());
        memory.put(CURRENT_TASK + 8, &TID.to_le_bytes());
        memory.put(CURRENT_TASK + 12, &PID.to_le_bytes());
        memory.put(CURRENT_TASK + 0x20, &COMM);
        memory.put(CURRENT_TASK + 4, &TASK_FLAGS.to_le_bytes());
        memory.put(CURRENT_TASK + 0x30, &CRED.to_le_bytes());
        memory.put(CRED + 8, &UID.to_le_bytes());
        memory.put(CRED + 12, &GID.to_le_bytes());
        Self {
            memory: Arc::new(memory),
            vcpu: FakeVcpu::at(DETOUR, ROOT),
        }
    }

    fn word(&self, index: usize) -> u64 {
        let at = Gpa(WORDS.0 + 8 * index as u64);
        self.memory.read_u64(at).expect("memory")
    }

    /// Executes from the detour's beginning to one of `stops`. Returns the stop.
    fn run(&mut self, stops: &[Gva]) -> Gva {
        self.executed(stops).0
    }

    /// Same as [`run`](Self::run); also returns the number of instructions.
    fn executed(&mut self, stops: &[Gva]) -> (Gva, u64) {
        self.executed_from(DETOUR, stops)
    }

    /// Same as [`executed`](Self::executed), from another instruction on.
    fn executed_from(&mut self, from: Gva, stops: &[Gva]) -> (Gva, u64) {
        let memory: Arc<dyn GuestMemory> = self.memory.clone();
        let planter = Planter::new(Arc::clone(&memory), PlantByte::Port);
        self.vcpu.regs.rip = from.0;
        for number in 0..1000 {
            let rip = Gva(self.vcpu.regs.rip);
            if stops.contains(&rip) {
                return (rip, number);
            }
            let mut bytes = [0; MAX_LENGTH_BYTES];
            memory.read(Gpa(rip.0), &mut bytes).expect("memory");
            let decoded = decode(&bytes, rip).expect("an instruction");
            if decoded.bytes() == RDTSC {
                (self.vcpu.regs.rax, self.vcpu.regs.rdx) = (TIME, 0);
                self.vcpu.regs.rip += RDTSC.len() as u64;
                continue;
            }
            let passed = pass(
                &mut self.vcpu,
                memory.as_ref(),
                &planter,
                Features::ALL,
                None,
                &decoded,
            );
            assert_eq!(passed.expect("executed"), Passed::Emulated, "{decoded:?}");
        }
        panic!("it goes on and on");
    }
}

fn assembled(filter: Option<&Filter>, does: Does<'_>) -> Code {
    assembled_of(&[work(filter, does)])
}

fn assembled_of(parts: &[Work<'_>]) -> Code {
    let nop = decode(&NOP5, TEXT).expect("an instruction");
    let jumped = Jumped::new(nop, None).expect("room");
    assemble(&jumped, parts, DETOUR).expect("it can be assembled")
}

fn work<'w>(filter: Option<&'w Filter>, does: Does<'w>) -> Work<'w> {
    Work {
        filter,
        does,
        processor: Processor {
            number: Some(NUMBER.cast_signed()),
            task: Some(TASK.cast_signed()),
            fields: Some(FIELDS),
        },
        plant: PlantByte::Port.value(),
    }
}

/// The value of an operand at the displaced instruction.
fn value(regs: &vmm::kvm_regs, operand: Operand) -> u64 {
    match operand {
        Operand::Cpu => CPU_NUMBER,
        Operand::CurrentTask => CURRENT_TASK,
        Operand::Task(TaskNumber::User) => UID.into(),
        Operand::Task(TaskNumber::Process) => PID.into(),
        Operand::Task(TaskNumber::Thread) => TID.into(),
        other => other
            .register()
            .map_or(0, |register| register_value(regs, register)),
    }
}

/// The values at the displaced instruction.
struct Seen<'r>(&'r vmm::kvm_regs);

impl Values for Seen<'_> {
    fn value(&mut self, operand: Operand) -> Option<u64> {
        Some(value(self.0, operand))
    }

    fn name(&mut self) -> Option<[u8; 16]> {
        Some(COMM)
    }
}

fn operand() -> impl Strategy<Value = Operand> {
    proptest::sample::select(Operand::all().collect::<Vec<_>>())
}

/// Small numbers, numbers with all bits, and negative numbers.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..20_u64,
        any::<u64>(),
        (-20..0_i64).prop_map(i64::cast_unsigned),
        (0..64_u32).prop_map(|bit| 1 << bit),
        (0..64_u32).prop_map(|bit| (1 << bit) - 1),
        Just(CPU_NUMBER),
        Just(CURRENT_TASK),
        proptest::sample::select(vec![UID, PID, TID]).prop_map(u64::from),
    ]
}

fn comparison() -> impl Strategy<Value = Comparison> {
    proptest::sample::select(vec![
        Comparison::Eq,
        Comparison::Ne,
        Comparison::Below,
        Comparison::BelowOrEqual,
        Comparison::Above,
        Comparison::AboveOrEqual,
        Comparison::Less,
        Comparison::LessOrEqual,
        Comparison::Greater,
        Comparison::GreaterOrEqual,
    ])
}

fn filter() -> impl Strategy<Value = Filter> {
    let condition = (
        operand(),
        proptest::option::of(number()),
        comparison(),
        number(),
    )
        .prop_map(|(operand, mask, comparison, value)| {
            Condition::Value(ValueCondition {
                operand,
                mask,
                comparison,
                value,
            })
        });
    // The task's name; a beginning of it, and other names.
    let names = vec![
        "fifteen-letters",
        "fifteen",
        "fifteen-",
        "fifteen-lettera",
        "a",
    ];
    let name = (proptest::sample::select(names), any::<bool>()).prop_map(|(name, is_equal)| {
        let name = TaskName::new(name).expect("a name");
        Condition::Name(NameCondition { name, is_equal })
    });
    let condition = prop_oneof![3 => condition, 1 => name];
    proptest::collection::vec(condition, 1..=3)
        .prop_map(|conditions| Filter::new(conditions).expect("few enough"))
}

fn aggregate() -> impl Strategy<Value = Aggregate> {
    let linear =
        (any::<i64>(), 1..2000_u64, 1..100_u64).prop_filter_map("ranges", |(min, range, step)| {
            let max = min.checked_add_unsigned(range)?;
            Linear::new(min, max, step).ok()
        });
    prop_oneof![
        operand().prop_map(Aggregate::Sum),
        operand().prop_map(Aggregate::Min),
        operand().prop_map(Aggregate::Max),
        operand().prop_map(Aggregate::Hist),
        (operand(), linear).prop_map(|(of, linear)| Aggregate::Lhist { of, linear }),
    ]
}

fn registers() -> impl Strategy<Value = vmm::kvm_regs> {
    (proptest::array::uniform15(number()), any::<u64>()).prop_map(|(values, flags)| {
        let [a, b, c, d, si, di, bp, n8, n9, n10, n11, n12, n13, n14, n15] = values;
        vmm::kvm_regs {
            rax: a,
            rbx: b,
            rcx: c,
            rdx: d,
            rsi: si,
            rdi: di,
            rbp: bp,
            rsp: STACK,
            r8: n8,
            r9: n9,
            r10: n10,
            r11: n11,
            r12: n12,
            r13: n13,
            r14: n14,
            r15: n15,
            rip: 0,
            rflags: flags & FLAGS | 2,
        }
    })
}

/// Sets registers to a value near the edges of the ranges, for a linear histogram.
fn near(aggregate: &Aggregate, mut regs: vmm::kvm_regs, by: i64) -> vmm::kvm_regs {
    if let Aggregate::Lhist { linear, .. } = aggregate {
        let value = linear.min().wrapping_add(by).cast_unsigned();
        (regs.rdi, regs.rsi, regs.rax, regs.rcx, regs.rdx) = (value, value, value, value, value);
    }
    regs
}

/// The number of instructions from the jump at the probed instruction to the next instruction, with room in the ring; and the size of the
/// detour.
fn cost_of_a_hit(filter: Option<&str>, does: Does<'_>) -> (u64, usize) {
    let filter = filter.map(|text| text.parse::<Filter>().expect(text));
    let code = assembled(filter.as_ref(), does);
    let mut machine = Machine::with(&code);
    let returns_to = Gva(0xffff_ffff_8123_4567);
    machine.memory.put(STACK, &returns_to.0.to_le_bytes());
    let site = RING.0 + ring::SITES + ring::site_offset(returns_to);
    machine.memory.put(site, &returns_to.0.to_le_bytes());
    machine.vcpu.regs.rsp = STACK;
    machine.vcpu.regs.rdi = 77;
    let (at, number) = machine.executed(&[TEXT.wrapping_add(5)]);
    assert_eq!(at, TEXT.wrapping_add(5));
    if let (None, Does::Record { part_number, .. }) = (&filter, does) {
        let slot = RING.0 + ring::FIRST;
        let word = |offset| machine.memory.read_u64(Gpa(slot + offset)).expect("memory");
        assert_eq!(
            word(ring::PART_NUMBER),
            u64::from(part_number) | CPU_NUMBER << 32
        );
        assert_eq!(word(ring::REGISTERS + 8 * 7), 77);
        assert_eq!(word(ring::TSC), TIME);
        assert_eq!(word(ring::TID), u64::from(TID) | u64::from(PID) << 32);
        let mut comm = [0; COMM.len()];
        let read = machine.memory.read(Gpa(slot + ring::COMM), &mut comm);
        read.expect("memory");
        assert_eq!(comm, COMM);
        let user = u64::from(UID) | u64::from(TASK_FLAGS) << 32;
        assert_eq!(word(ring::UID), user);
        let rsp = word(ring::REGISTERS + 8 * 4);
        assert_eq!(rsp.wrapping_add_signed(ring::RSP_BELOW.into()), STACK);
    }
    (1 + number, code.bytes.len())
}

/// The number at `offset` of the record that a detour writes with `fields`, in a slot with another record.
fn recorded_with(fields: Option<TaskFields>, offset: u64) -> i32 {
    let record = Does::Record {
        ring: RING,
        part_number: 3,
        of: Of::Hit,
        dropped: None,
    };
    let unknown = Processor {
        fields,
        ..work(None, record).processor
    };
    let code = assembled_of(&[Work {
        processor: unknown,
        ..work(None, record)
    }]);
    let mut machine = Machine::with(&code);
    let slot = RING.0 + ring::FIRST;
    // A record that was in the slot before.
    machine.memory.put(slot + ring::TID, &[1; 32]);
    machine.vcpu.regs.rsp = STACK;
    machine.run(&[TEXT.wrapping_add(5)]);
    let mut number = [0; 4];
    let read = machine.memory.read(Gpa(slot + offset), &mut number);
    read.expect("memory");
    i32::from_le_bytes(number)
}

#[test]
fn record_without_a_task_is_marked() {
    assert_eq!(recorded_with(None, ring::PID), ring::NO_PROCESS);
}

#[test]
fn record_without_a_user_is_marked() {
    let fields = TaskFields {
        user: None,
        ..FIELDS
    };
    assert_eq!(recorded_with(Some(fields), ring::UID), ring::NO_USER);
}

#[test]
fn program_needs_the_place_of_the_number_that_it_reads() {
    let filter = |text: &str| text.parse::<Filter>().expect(text);
    let not_kept = |text: &str, fields| {
        let filter = filter(text);
        let work = work(Some(&filter), Does::Count(WORDS));
        let processor = Processor {
            fields,
            ..work.processor
        };
        let nop = decode(&NOP5, TEXT).expect("an instruction");
        let jumped = Jumped::new(nop, None).expect("room");
        match assemble(&jumped, &[Work { processor, ..work }], DETOUR) {
            Err(DetourError::NotKept(what)) => Some(what),
            _ => None,
        }
    };
    let without_user = TaskFields {
        user: None,
        ..FIELDS
    };
    for (text, missing) in [
        ("uid == 0", NotKept::TaskUser),
        ("pid == 1", NotKept::TaskNumbers),
        ("tid == 1", NotKept::TaskNumbers),
        ("comm == \"a\"", NotKept::TaskName),
    ] {
        assert_eq!(not_kept(text, None), Some(missing), "{text}");
        assert_eq!(not_kept(text, Some(FIELDS)), None, "{text}");
    }
    assert_eq!(
        not_kept("uid == 0", Some(without_user)),
        Some(NotKept::TaskUser)
    );
    assert_eq!(not_kept("pid == 1", Some(without_user)), None);
}

/// The numbers in the overhead table (`rigs/src/overhead/ways.rs`).
#[test]
fn cost_of_a_hit_matches_the_overhead_table() {
    let record = |of| Does::Record {
        ring: RING,
        part_number: 3,
        of,
        dropped: None,
    };
    let hist = "hist(arg0)".parse::<Aggregate>().expect("an aggregate");
    let hits = [
        (None, Does::Count(WORDS)),
        (None, record(Of::Hit)),
        (None, Does::Aggregate(&hist, WORDS)),
        (Some("arg0 == 0"), record(Of::Hit)),
        (None, record(Of::Call)),
    ];
    let costs = hits.map(|(filter, does)| cost_of_a_hit(filter, does));
    assert_eq!(costs, [(6, 20), (60, 270), (20, 63), (15, 285), (68, 313)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn executions_that_a_filter_accepts_are_counted(filter in filter(), sets in prop::collection::vec(registers(), 1..6)) {
        let code = assembled(Some(&filter), Does::Count(WORDS));
        let mut machine = Machine::with(&code);
        let mut expected = 0;
        for regs in sets {
            machine.vcpu.regs = regs;
            machine.run(&[TEXT.wrapping_add(5)]);
            let after = vmm::kvm_regs { rip: TEXT.0 + 5, ..regs };
            prop_assert_eq!(machine.vcpu.regs, after);
            expected += u64::from(filter.holds(&mut Seen(&regs)) == Some(true));
        }
        prop_assert_eq!(machine.word(0), expected);
    }

    #[test]
    fn executions_that_a_filter_accepts_exit(filter in filter(), regs in registers()) {
        let code = assembled(Some(&filter), Does::Exit);
        let exit = code.exits[0].expect("it leaves");
        let mut machine = Machine::with(&code);
        machine.vcpu.regs = regs;
        let at = machine.run(&[exit.at, exit.on]);
        let holds = filter.holds(&mut Seen(&regs)) == Some(true);
        prop_assert_eq!(at, if holds { exit.at } else { exit.on });
        prop_assert_eq!(machine.vcpu.regs, vmm::kvm_regs { rip: at.0, ..regs });
    }

    /// Each part acts alike alone and beside other parts, and the exit of a part continues at the next part.
    #[test]
    fn parts_act_together_as_alone(
        parts in prop::collection::vec((proptest::option::of(filter()), 0..3_usize), 1..5),
        regs in registers(),
    ) {
        let sum = "sum(rdi)".parse::<Aggregate>().expect("an aggregate");
        let words = |number: usize| WORDS.wrapping_add(64 * number as u64);
        let works: Vec<_> = parts.iter().enumerate().map(|(number, (filter, does))| {
            let does = match does {
                0 => Does::Count(words(number)),
                1 => Does::Aggregate(&sum, words(number)),
                _ => Does::Exit,
            };
            work(filter.as_ref(), does)
        }).collect();
        let code = assembled_of(&works);
        let mut machine = Machine::with(&code);
        machine.vcpu.regs = regs;
        let behind = TEXT.wrapping_add(5);
        let (mut from, mut expected) = (DETOUR, Vec::new());
        for (number, (work, exit)) in works.iter().zip(&code.exits).enumerate() {
            let holds = work.filter.is_none_or(|filter| filter.holds(&mut Seen(&regs)) == Some(true));
            prop_assert_eq!(exit.is_some(), work.does == Does::Exit);
            if let Some(exit) = exit && holds {
                prop_assert_eq!(machine.executed_from(from, &[exit.at, behind]).0, exit.at);
                prop_assert_eq!(machine.vcpu.regs, vmm::kvm_regs { rip: exit.at.0, ..regs });
                from = exit.on;
            }
            if let Does::Count(at) | Does::Aggregate(_, at) = work.does {
                let at = usize::try_from(at.0 - WORDS.0).expect("small") / 8;
                expected.push((at, u64::from(holds), number));
            }
        }
        prop_assert_eq!(machine.executed_from(from, &[behind]).0, behind);
        prop_assert_eq!(machine.vcpu.regs, vmm::kvm_regs { rip: behind.0, ..regs });
        for (at, count, number) in expected {
            prop_assert_eq!(machine.word(at), count, "part {}", number);
        }
    }

    #[test]
    fn aggregates_of_detours_equal_those_of_the_vmm(
        aggregate in aggregate(),
        sets in prop::collection::vec((registers(), -100..2200_i64), 1..8),
    ) {
        let code = assembled(None, Does::Aggregate(&aggregate, WORDS));
        let mut machine = Machine::with(&code);
        let words: Vec<_> = aggregate.initial().into_iter().map(AtomicU64::new).collect();
        for (index, word) in (0..).zip(&words) {
            let word = word.load(Ordering::Relaxed).to_le_bytes();
            machine.memory.put(WORDS.0 + 8 * index, &word);
        }
        for (regs, by) in sets {
            let regs = near(&aggregate, regs, by);
            machine.vcpu.regs = regs;
            machine.run(&[TEXT.wrapping_add(5)]);
            prop_assert_eq!(machine.vcpu.regs, vmm::kvm_regs { rip: TEXT.0 + 5, ..regs });
            aggregate.add(&words, value(&regs, aggregate.of()));
        }
        for (index, word) in words.iter().enumerate() {
            prop_assert_eq!(machine.word(index), word.load(Ordering::Relaxed), "word {}", index);
        }
        prop_assert_eq!(machine.word(words.len()), 0, "nothing behind them");
    }
}
