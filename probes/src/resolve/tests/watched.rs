//! Data that can be watched.

use introspect::btf::synthetic::Blob;
use manifest::WatchedAccess;

use super::*;

#[test]
fn watched_data_is_a_place_on_a_protected_page() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    let at = kernel.variable("counter", 5);
    let kernel = kernel.kernel();
    let found = place(&kernel, "watch:counter+0x4:2");
    assert_eq!(found.ip, at.wrapping_add(4));
    assert_eq!(&*found.symbol, "counter+0x4");
    let access = WatchedAccess::Writes;
    assert_eq!(found.via, Via::Data { len: 2, access });
    let by_address = place(&kernel, &format!("watch:{at}:8:rw"));
    let access = WatchedAccess::Both;
    assert_eq!(
        (by_address.ip, by_address.via),
        (at, Via::Data { len: 8, access })
    );
}

#[test]
fn reads_of_a_page_that_the_processor_reads_are_not_watched() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.variable("counter", 5);
    kernel.variable("idt_table", 0);
    let kernel = kernel.kernel();
    place(&kernel, "watch:counter:8");
    for spec in ["watch:counter:8:r", "watch:counter:8:rw"] {
        let error = problem(&kernel, spec);
        assert_eq!(
            error.problem.to_string(),
            "its page holds `idt_table`, which the processor reads without an instruction of the guest"
        );
        assert_eq!(
            error.help().as_deref(),
            Some("watch the writes alone: leave out `r`, or write `w`")
        );
    }
}

#[test]
fn unsuitable_data_is_refused_with_a_remedy() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    let init = kernel.init_function("setup", &PLAIN);
    let at = kernel.variable("counter", 5);
    kernel.variable("counter", 6);
    kernel.variable("single", 7);
    let per_cpu = kernel.variable("__per_cpu_start", 0);
    kernel.variable("__per_cpu_end", 0);
    let kernel = kernel.kernel();
    for (spec, message, help) in [
        (
            "watch:single",
            "the type of `single` is not known".to_owned(),
            Some("write its length in bytes, like watch:single:8".to_owned()),
        ),
        (
            "watch:singel:8",
            "the kernel has no variable `singel`".to_owned(),
            Some("near names: single".to_owned()),
        ),
        (
            "watch:plain:8",
            "it is code, and the writes to code are not watched".to_owned(),
            Some("write kprobe:SYMBOL for its executions".to_owned()),
        ),
        (
            "watch:counter:8",
            "the kernel has 2 variables called `counter`".to_owned(),
            Some(format!(
                "name one by its address: watch:{at}:LENGTH, watch:{}:LENGTH",
                at.wrapping_add(8)
            )),
        ),
        (
            &format!("watch:{init}:8"),
            "the kernel frees it after boot, and uses its memory for other data".to_owned(),
            Some("write kprobe:FUNCTION for a function that writes it".to_owned()),
        ),
        (
            &format!("watch:{per_cpu}:8"),
            format!(
                "{per_cpu} is in the section of per-CPU variables, which the kernel has copied for each processor"
            ),
            Some("write watch:NAME:LENGTH, for the copies of all processors".to_owned()),
        ),
        (
            "watch:0x1000:8",
            "0x1000 is not in the data of the kernel's image, whose pages alone can be protected"
                .to_owned(),
            Some("`hyprobe symbols --kernel FILE PATTERN` lists the symbols".to_owned()),
        ),
    ] {
        let error = problem(&kernel, spec);
        assert_eq!(error.problem.to_string(), message);
        assert_eq!(error.help(), help);
    }
}

/// A kernel with a per-CPU variable `count`, and `others` of 8 bytes in the section, too.
fn with_per_cpu(others: &[&str], has_table: bool) -> Kernel {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.variable("__per_cpu_start", 0);
    kernel.variable("count", 0);
    others.iter().for_each(|name| {
        kernel.variable(name, 0);
    });
    kernel.variable("__per_cpu_end", 0);
    if has_table {
        kernel.variable("__per_cpu_offset", 0);
    }
    kernel.kernel()
}

#[test]
fn per_cpu_variable_is_watched_once_the_processors_have_copies() {
    let found = place(&with_per_cpu(&[], true), "watch:count+0x4:4");
    assert_eq!(found.owner, MemoryOwner::Processors);
    assert_eq!(found.when, PlantTime::BootPatched);
    let of_kernel = place(&with_per_cpu(&[], true), "watch:__per_cpu_offset:8");
    assert_eq!(of_kernel.owner, MemoryOwner::Kernel);
}

#[test]
fn unsuitable_per_cpu_data_is_refused() {
    let message = |kernel: &Kernel, spec| problem(kernel, spec).problem.to_string();
    assert_eq!(
        message(&with_per_cpu(&[], false), "watch:count:8"),
        "it is a per-CPU variable, and the kernel has no symbol `__per_cpu_offset`, which says where the processors' copies are"
    );
    // The label is no variable, but has the bytes up to the next.
    let outside = message(&with_per_cpu(&[], true), "watch:count+4:8");
    assert_eq!(
        outside,
        "its bytes are not all in `count`, which has 8 bytes"
    );
    for object in [
        "exception_stacks",
        "kvm_apic_eoi",
        "irq_stack_backing_store",
    ] {
        let kernel = with_per_cpu(&[object], true);
        let expected = format!(
            "its page holds `{object}`, which the processor or KVM writes without an instruction of the guest"
        );
        assert_eq!(message(&kernel, "watch:count:8"), expected);
    }
    let kernel = with_per_cpu(&["gdt_page"], true);
    place(&kernel, "watch:count:8");
    let expected =
        "its page holds `gdt_page`, which the processor reads without an instruction of the guest";
    assert_eq!(message(&kernel, "watch:count:8:r"), expected);
}

/// The types of a kernel with tasks, as the engine needs them, or without a member.
fn with_tasks(has_leader: bool) -> Kernel {
    let mut blob = Blob::new();
    let int = blob.int("int", 4);
    let char = blob.int("char", 1);
    let pointer = blob.pointer(char);
    let links = [("next", pointer, 0), ("prev", pointer, 8)];
    let list = blob.structure("list_head", 16, &links);
    let head = [("next", pointer, 0), ("func", pointer, 8)];
    let head = blob.structure("callback_head", 16, &head);
    let comm = blob.array(char, 16);
    let user = blob.structure("kuid_t", 4, &[("val", int, 0)]);
    blob.structure("cred", 16, &[("uid", user, 0), ("euid", user, 8)]);
    blob.structure("signal_struct", 32, &[("thread_head", list, 16)]);
    let leader = if has_leader { "group_leader" } else { "leader" };
    let task = [
        ("flags", int, 0),
        ("__state", int, 4),
        ("comm", comm, 8),
        ("exit_state", int, 0x18),
        ("tasks", list, 0x20),
        ("thread_node", list, 0x30),
        ("pid", int, 0x40),
        ("tgid", int, 0x44),
        (leader, pointer, 0x48),
        ("real_parent", pointer, 0x50),
        ("real_cred", pointer, 0x58),
        ("signal", pointer, 0x60),
        ("mm", pointer, 0x68),
        ("rcu", head, 0x70),
    ];
    blob.structure("task_struct", 0x80, &task);
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.types(&blob.finish());
    kernel.kernel()
}

fn member(spec: &str) -> TaskMember {
    let spec = spec.parse().expect("a probe");
    let mut found = resolve(&with_tasks(true), &spec, 0).expect("resolved");
    match found.pop().map(|site| site.place) {
        Some(Err(Refusal::NotStarted { member })) => member,
        other => panic!("{other:?}"),
    }
}

#[test]
fn member_of_a_task_has_a_place_once_the_process_is_started() {
    let of = member("watch:struct task_struct.comm@pid:7");
    assert_eq!((of.pid, of.words()), (7, 3));
    let reason = Refusal::NotStarted { member: of.clone() };
    assert!(reason.is_pending());
    assert_eq!(
        reason.to_string(),
        "the guest has not started a process with the number 7"
    );
    let found = in_task(&of, Gva(0x1000));
    let access = WatchedAccess::Writes;
    assert_eq!(found.ip, Gva(0x1008));
    assert_eq!(found.owner, MemoryOwner::Task(Gva(0x1000)));
    assert_eq!(found.via, Via::Data { len: 16, access });
    let of = in_task(
        &member("watch:struct task_struct.comm@pid:7:4"),
        Gva(0x1000),
    );
    assert_eq!(of.via, Via::Data { len: 4, access });
}

#[test]
fn unknown_member_of_a_task_is_refused() {
    let kernel = with_tasks(true);
    let message = |kernel: &Kernel, spec| problem(kernel, spec).problem.to_string();
    assert_eq!(
        message(&kernel, "watch:struct task_struct.state@pid:1"),
        "`struct task_struct` has no member `state`"
    );
    let reads = message(&kernel, "watch:struct task_struct.flags@pid:1:r");
    assert!(reads.ends_with("reads of tasks are not watched"), "{reads}");
    let others = message(&with_tasks(false), "watch:struct task_struct.flags@pid:1");
    assert!(
        others.starts_with("the kernel's types do not describe tasks: "),
        "{others}"
    );
    assert_eq!(
        message(&kernel, "watch:struct task_struct.flags@pid:1:8"),
        "its bytes are not all in `flags`, which has 4 bytes"
    );
    let mut untyped = SyntheticKernel::new();
    untyped.function("plain", &PLAIN);
    let untyped = message(&untyped.kernel(), "watch:struct task_struct.flags@pid:1");
    assert!(
        untyped.starts_with("the kernel's types do not describe tasks: "),
        "{untyped}"
    );
}

#[test]
fn page_that_the_hardware_writes_is_not_watched() {
    for object in [
        "init_top_pgt",
        "espfix_pud_page",
        "bm_pte",
        "init_stack",
        "hv_clock_boot",
    ] {
        let mut kernel = SyntheticKernel::new();
        kernel.function("plain", &PLAIN);
        kernel.variable("counter", 5);
        kernel.variable(object, 0);
        // A debug register has no page.
        place(&kernel.kernel(), "watch:counter:8:hw");
        let itself = problem(&kernel.kernel(), &format!("watch:{object}:8:hw"));
        assert!(itself.problem.to_string().contains(object));
        let error = problem(&kernel.kernel(), "watch:counter:8");
        assert_eq!(
            error.problem.to_string(),
            format!(
                "its page holds `{object}`, which the processor or KVM writes without an instruction of the guest"
            )
        );
    }
}

#[test]
fn memory_that_the_kernel_frees_is_not_watched() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.variable("__end_rodata", 0);
    kernel.variable("_sdata", 0);
    kernel.variable("__smp_locks", 0);
    kernel.variable("__smp_locks_end", 0);
    kernel.variable("last", 5);
    let brk = kernel.variable("__bss_stop", 0);
    kernel.variable("__brk_base", 0);
    let kernel = kernel.kernel();
    for (spec, message) in [
        (
            "watch:__end_rodata:8",
            "the kernel frees it after boot, and uses its memory for other data".to_owned(),
        ),
        (
            "watch:__smp_locks:8",
            "the kernel frees it after boot, and uses its memory for other data".to_owned(),
        ),
        (
            "watch:__bss_stop:8",
            format!(
                "{brk} is behind the end of the kernel's data (`__bss_stop`), where the kernel has page tables and memory that it frees"
            ),
        ),
        (
            "watch:__brk_base:8",
            format!(
                "{} is behind the end of the kernel's data (`__bss_stop`), where the kernel has page tables and memory that it frees",
                brk.wrapping_add(8)
            ),
        ),
    ] {
        assert_eq!(problem(&kernel, spec).problem.to_string(), message);
    }
    for spec in ["watch:_sdata:8", "watch:__smp_locks_end:8", "watch:last:8"] {
        place(&kernel, spec);
    }
}

#[test]
fn data_on_a_page_with_code_is_not_watched() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.variable("counter", 5);
    kernel.end_text(0x810);
    let kernel = kernel.kernel();
    let beside = kernel.text().expect("labels").end.wrapping_add(8);
    let error = problem(&kernel, &format!("watch:{beside}:8"));
    assert_eq!(
        error.problem.to_string(),
        "its page also has code, and writes to such a page are not watched"
    );
    let next = beside.page().wrapping_add(0x1000);
    place(&kernel, &format!("watch:{next}:8"));
}

#[test]
fn address_between_two_segments_is_not_watched() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.variable("counter", 5);
    let hole = kernel.hole();
    let kernel = kernel.kernel();
    assert!(kernel.image().contains(&hole));
    let error = problem(&kernel, &format!("watch:{hole}:8"));
    assert_eq!(
        error.problem.to_string(),
        format!(
            "{hole} is not in the data of the kernel's image, whose pages alone can be protected"
        )
    );
}

#[test]
fn watched_bytes_are_inside_the_variable() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    kernel.variable("neighbour", 0);
    kernel.variable("counter", 5);
    kernel.variable("behind", 0);
    let kernel = kernel.kernel();
    for spec in [
        "watch:counter+0xfffffffffffffff8:8",
        "watch:counter+0xffffffffffffffff:2",
        "watch:counter+0x8:1",
        "watch:counter+0x4:8",
    ] {
        let error = problem(&kernel, spec);
        assert_eq!(
            error.problem.to_string(),
            "its bytes are not all in `counter`, which has 8 bytes"
        );
        assert_eq!(
            error.help().as_deref(),
            Some(
                "write an offset and a length that end at byte 8 or before, or watch:0xADDRESS:LENGTH for other bytes"
            )
        );
    }
    place(&kernel, "watch:counter+0x6:2");
}

#[test]
fn remedy_for_namesakes_has_addresses_that_resolve() {
    const SLIDE: i64 = -0x20_0000;
    let mut kernel = SyntheticKernel::new();
    kernel.function("plain", &PLAIN);
    let linked = kernel.variable("counter", 5);
    kernel.variable("counter", 6);
    let kernel = kernel.kernel();
    let resolve = |spec: &str| resolve(&kernel, &spec.parse().expect("a probe"), SLIDE);
    let help = resolve("watch:counter:8").expect_err("two").help();
    let help = help.expect("a remedy");
    let named = help
        .strip_prefix("name one by its address: ")
        .expect("addresses");
    let first = named.split(", ").next().expect("an address");
    let found = resolve(&first.replace("LENGTH", "8")).expect("it resolves");
    let place = found[0].place.as_ref().expect("it can be watched");
    assert_eq!(place.ip, linked);
}
