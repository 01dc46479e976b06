use address::{Gva, PAGE_BYTES};
use inspect::expression::Printed;
use inspect::stacks::StacksOf;
use inspect::{Log, ModuleList, TaskList};
use introspect::kallsyms::synthetic::TEXT;

use super::*;
use crate::synthetic::{BANNER, Machine, RUNNING, SLIDE, file, open, part};

#[test]
fn kernel_is_found_in_the_memory_of_the_dump() {
    let kernel = Machine::new().open().expect("a kernel");
    assert_eq!(kernel.slide, SLIDE.cast_signed());
    let view = kernel.view();
    let at = view.address_of("init_task").expect("a symbol");
    assert_eq!(at, Gva(RUNNING + part::TASKS));
    let linked = kernel.symbols.address_of("init_task");
    assert_eq!(linked, Some(Gva(TEXT + part::TASKS)));
    assert_eq!(kernel.banner().as_deref(), Some(BANNER));
    let id = kernel.build_id().map(|id| id.to_string());
    assert_eq!(id.as_deref(), Some("abcd"));
    let expression = "*(struct task_struct *)&init_task";
    let printed = Printed::evaluate(&view, expression, None, None).expect("a value");
    assert_eq!(printed.value["comm"], "task-0");
    assert_eq!(printed.address, Some(at));
}

#[test]
fn vcpus_have_the_stacks_and_tasks_of_their_registers() {
    let kernel = Machine::new().open().expect("a kernel");
    let stacks = kernel.stacks(StacksOf::Vcpus).expect("stacks");
    let [in_kernel, in_program, reset] = &stacks[..] else {
        panic!("{stacks:?}");
    };
    let names: Vec<&str> = in_kernel
        .stack
        .frames
        .iter()
        .filter_map(|frame| frame.symbol.as_deref())
        .collect();
    let [inner, outer] = names[..] else {
        panic!("{in_kernel:?}");
    };
    assert_eq!(inner, "vfs_read_0+0x5/0x30");
    assert!(outer.starts_with("vfs_read_6_x7") && outer.ends_with("+0x15/0x30"));
    assert_eq!(in_kernel.stack.incomplete, None);
    let task = |stack: &inspect::stacks::ListedStack| {
        let task = stack.task.as_ref()?;
        Some((task.tid, task.pid, task.comm.clone()))
    };
    assert_eq!(task(in_kernel), Some((11, 1, "task-0".to_owned())));
    // The program has put the base of the first processor into its own `gs`.
    assert_eq!(task(in_program), Some((12, 2, "task-1".to_owned())));
    assert!(in_program.user_mode && in_program.stack.frames.is_empty());
    assert_eq!(task(reset), None);
    let why = reset.stack.incomplete.as_deref();
    assert_eq!(why, Some("the guest has not started the vCPU"));
    let missing = kernel.stacks(StacksOf::Vcpu(3)).expect_err("three vCPUs");
    assert_eq!(
        missing.to_string(),
        "the machine has 3 vCPUs, and no number 3"
    );
}

#[test]
fn kernel_with_page_tables_of_five_levels_has_the_same_answers() {
    let mut machine = Machine::new();
    machine.write_tables(5);
    let kernel = machine.open().expect("a kernel");
    let four = Machine::new().open().expect("a kernel");
    assert_ne!(kernel.paging, four.paging);
    let [five, four] = [&kernel, &four].map(|kernel| {
        let view = kernel.view();
        let expression = "*(struct task_struct *)&init_task";
        let printed = Printed::evaluate(&view, expression, None, None).expect("a value");
        let stacks = kernel.stacks(StacksOf::Vcpus).expect("stacks");
        (printed.value, format!("{stacks:?}"))
    });
    assert_eq!(five, four);
}

#[test]
fn file_that_is_cut_after_it_was_opened_is_an_error_of_the_file() {
    let core = Machine::new().core();
    let file = file(&core);
    let kernel = DumpedKernel::open(file.try_clone().expect("a file"), core.len() as u64);
    let kernel = kernel.expect("a kernel");
    kernel.check_reads().expect("no failure");
    file.set_len(0x1000).expect("cut");
    ask(&kernel);
    let failure = kernel.check_reads().expect_err("the file is cut");
    assert!(failure.offset >= 0x1000, "{failure}");
    kernel.check_reads().expect("reported once");
}

#[test]
fn failed_read_while_the_kernel_is_searched_is_an_error_of_the_file() {
    let core = Machine::new().core();
    // The file has its headers and half of its memory, and is cut between the look at its size and the reads.
    let cut = file(&core[..core.len() / 8]);
    let error = DumpedKernel::open(cut, core.len() as u64).expect_err("half of a file");
    assert!(matches!(error, OpenDumpError::Read(_)), "{error:?}");
}

#[test]
fn missing_part_is_an_error_of_its_own() {
    let refused = |change: &dyn Fn(&mut Machine)| {
        let mut machine = Machine::new();
        change(&mut machine);
        machine.open().expect_err("a part is missing")
    };
    let error = refused(&|machine| machine.guest.kernel.text = None);
    assert!(matches!(error, OpenDumpError::NoText), "{error:?}");
    let error = refused(&|machine| machine.guest.kernel.vmcoreinfo = b"OSRELEASE=6\n".to_vec());
    assert!(matches!(error, OpenDumpError::NoOffset), "{error:?}");
    let error = refused(&|machine| machine.put(part::SYMBOLS, &[0; 0x2_0000]));
    assert!(matches!(error, OpenDumpError::Symbols(_)), "{error:?}");
    let error = refused(&|machine| machine.put(part::TABLES, &[0; 0x3000]));
    assert!(
        matches!(error, OpenDumpError::PageTables { .. }),
        "{error:?}"
    );
    let error = refused(&|machine| {
        let text = machine.guest.kernel.text.as_mut().expect("text");
        text.at = text.at.wrapping_add(PAGE_BYTES);
    });
    assert!(
        matches!(error, OpenDumpError::OtherKernel { .. }),
        "{error:?}"
    );
}

#[test]
fn truncated_file_is_an_error_at_each_length() {
    let core = Machine::new().core();
    let lengths = (0..0x1000).step_by(7);
    let lengths = lengths.chain((0x1000..core.len()).step_by(0x1_2345));
    for len in lengths.chain([core.len() - 1]) {
        let error = open(&core[..len]).expect_err("not complete");
        let is_known = match error {
            OpenDumpError::NotACore => len < 64,
            OpenDumpError::Truncated { bytes, described } => {
                bytes == len as u64 && described > bytes
            }
            _ => false,
        };
        assert!(is_known, "{len}: {error:?}");
    }
    open(&core).expect("complete");
}

#[test]
fn other_files_are_no_dumps() {
    let core = Machine::new().core();
    let refused = |at: usize, byte: u8| {
        let mut core = core.clone();
        core[at] = byte;
        matches!(open(&core), Err(OpenDumpError::NotACore))
    };
    // Magic number, 32 bits, big-endian, an executable, another processor.
    for (at, byte) in [(0, 0), (4, 1), (5, 2), (16, 2), (18, 3), (54, 32)] {
        assert!(refused(at, byte), "{at}");
    }
}

/// All that a command may ask.
fn ask(kernel: &DumpedKernel) -> usize {
    let view = kernel.view();
    let tasks = TaskList::new(&view).and_then(|list| list.read(&view, true));
    let modules = ModuleList::new(&view).and_then(|list| list.read(&view));
    let printed = Printed::evaluate(&view, "(struct task_struct *)&init_task", None, None);
    let answers = [
        tasks.is_ok(),
        modules.is_ok(),
        Log::read(&view).is_ok(),
        printed.is_ok(),
        kernel.stacks(StacksOf::Vcpus).is_ok(),
        kernel.stacks(StacksOf::All).is_ok(),
        kernel.banner().is_some(),
        kernel.build_id().is_some(),
    ];
    answers.into_iter().filter(|answer| *answer).count()
}

#[test]
fn damaged_file_is_refused_or_answers() {
    let core = Machine::new().core();
    let first = core.len() - (8 << 20) + (2 << 20);
    let parts: [std::ops::Range<usize>; 3] = [
        0..0x600,
        first + 0x2_0000..first + 0x3_4000,
        first + 0x4_0000..first + 0x5_0000,
    ];
    let (mut refused, mut answers) = (0, 0);
    // Xorshift: the same damage each time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("small")
    };
    for round in 0..150 {
        let mut damaged = core.clone();
        let part = parts[round % parts.len()].clone();
        for _ in 0..=random(8) {
            let at = part.start + random(part.len() - 8);
            match random(3) {
                0 => damaged[at..at + 8].fill(0xff),
                1 => damaged[at..at + 8].fill(0),
                _ => damaged[at] ^= 1 << random(8),
            }
        }
        match open(&damaged) {
            Ok(kernel) => answers += ask(&kernel),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 10 && answers > 100, "{refused} {answers}");
}

#[test]
fn huge_numbers_in_headers_take_no_memory() {
    let core = Machine::new().core();
    let with = |at: usize, word: u64| {
        let mut core = core.clone();
        core[at..at + 8].copy_from_slice(&word.to_le_bytes());
        open(&core).expect_err("no such file")
    };
    // The place of the program headers; the place and the length of the notes, and of the first segment of memory.
    for at in [32, 64 + 8, 64 + 32, 64 + 56 + 8, 64 + 56 + 32] {
        for word in [u64::MAX, u64::MAX - 63, 1 << 62, 1 << 40] {
            let error = with(at, word);
            let is_known = matches!(
                error,
                OpenDumpError::Truncated { .. } | OpenDumpError::TooMany { .. }
            );
            assert!(is_known, "{at} {word:#x}: {error:?}");
        }
    }
    let mut core = core.clone();
    core[56..58].fill(0xff);
    let error = open(&core).expect_err("too many segments");
    assert!(matches!(error, OpenDumpError::TooMany { .. }), "{error:?}");
}
