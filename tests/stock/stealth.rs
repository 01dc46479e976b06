//! At the level `reads`, a stock guest reads its own text through every mapping while probes are hit: `docs/invisibility.md`.

use std::collections::BTreeMap;

use control::Client;
use control::api::{AddProbe, AddProbes};
use guest_images::workload;
use manifest::{ProbeAction, Stealth, Word};

use crate::boot::{Boot, Ran, Running, Stock, probe};

const SOCKET: &str = "x.sock";
/// Functions that the kernel executes for system calls of the detector. No page has code of the scheduler or of the timer.
const CALLED: &str = "\
    anon_vma_clone copy_creds copy_fpstate_to_sigframe copy_fs_struct copy_namespaces copy_page_to_iter copy_process \
    copy_semundo copy_string_kernel d_absolute_path d_find_any_alias d_invalidate d_lru_del d_walk do_brk_flags \
    do_close_on_exec do_dec_rlimit_put_ucounts do_dentry_open do_exit do_filp_open do_group_exit do_mas_munmap do_mmap \
    do_notify_parent do_open_execat do_sigaction do_sys_openat2 do_wait exec_mm_release exit_aio exit_creds exit_files \
    exit_fs exit_itimers exit_mm_release exit_mmap exit_sem exit_shm exit_signals exit_task_stack_account \
    exit_tasks_rcu_finish exit_tasks_rcu_start get_arg_page get_mm_exe_file get_old_pud get_random_bytes get_random_u16 \
    get_random_u32 get_random_u64 get_seccomp_filter get_signal get_task_pid get_ucounts get_unmapped_area \
    get_unused_fd_flags get_user_pages_remote get_vfs_caps_from_disk get_zeroed_page kernel_clone kernel_fpu_begin_mask \
    kernel_fpu_end kernel_read kernel_wait4 mm_alloc mm_init mm_put_huge_zero_page mm_release mm_update_next_owner \
    mmap_address_hint_valid mmap_region path_get path_init path_lookupat path_noexec path_openat path_put proc_evict_inode \
    proc_exec_connector proc_exit_connector proc_flush_pid proc_fork_connector proc_free_inode \
    proc_invalidate_siblings_dcache proc_misc_d_revalidate proc_pid_evict_inode proc_reg_open security_bprm_check \
    security_bprm_committed_creds security_bprm_committing_creds security_bprm_creds_for_exec security_bprm_creds_from_file \
    security_capable security_cred_free security_cred_getsecid security_current_getsecid_subj security_file_alloc \
    security_file_free security_file_open security_inode_free security_locked_down security_mmap_addr security_mmap_file \
    security_prepare_creds security_task_alloc security_task_free setup_arg_pages setup_new_exec vfs_open \
    vma_adjust_trans_huge vma_interval_tree_insert_after vma_is_secretmem vma_link vma_merge vma_set_page_prot \
    vma_wants_writenotify";
/// Calls of `getppid` in a round of the detector: `CALLS` in `guest-images/workload/detector.c`, each three times.
const PARENTS_ASKED: u64 = 3000;
const COUNTED: &str = "kprobe:__x64_sys_getppid";
/// The detector sums the text in two mappings: the kernel image and the direct map. The probes come and go while the script sleeps.
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc
$b mount -t proc proc /proc
at() { $b sed -n "s/ . $1\$//p" /proc/kallsyms; }
direct() { $b printf %x $((0x$1 - 0xffffffff80000000 + 0xffff888000000000)); }
first=$(at _stext)
last=$(at _etext)
while :; do
    round=$((round + 1))
    /bin/detector memory $round text $first $last ffffffffffffffff || echo "wrong: text"
    /bin/detector memory $round direct $(direct $first) $(direct $last) ffffffffffffffff || echo "wrong: direct"
    /bin/detector program $round || echo "wrong: program"
    echo "looked $round."
    $b sleep 5
done
"#;

/// The values that the detector has found in a round, but for times. The sums of the text are equal in both mappings.
fn found(ran: &Ran, round: u64) -> BTreeMap<&str, &str> {
    let start = format!("detected {round} ");
    let lines = ran.console.lines();
    let values = lines.filter_map(|line| line.strip_prefix(&start)?.trim().split_once(' '));
    let values: BTreeMap<&str, &str> = values.filter(|(what, _)| *what != "time").collect();
    for (what, value) in &values {
        if let Some(block) = what.strip_prefix("text") {
            assert_eq!(
                values.get(&*format!("direct{block}")),
                Some(value),
                "{what}"
            );
        }
    }
    assert!(values.len() > 20, "{values:?}");
    values
}

fn boot(stock: &Stock, stealth: Stealth) -> Running {
    let folder = tempfile::tempdir().expect("a folder");
    let program = workload::build_detector(folder.path()).expect("it compiles");
    let boot = Boot::with_script(stock, SCRIPT).host_file_at("/bin/detector", &program);
    let boot = boot.cpus(2).option("--control", SOCKET);
    boot.option("--stealth", stealth.word()).start()
}

fn client(running: &Running) -> Client {
    Client::new(&running.folder().join(SOCKET)).expect("a client")
}

fn stop(running: Running) -> Ran {
    client(&running).command("stop").expect("stopped");
    let ran = running.finish();
    ran.assert_well();
    let console = &ran.console;
    assert!(
        !console.contains("wrong") && !console.contains(" failed "),
        "{console}"
    );
    ran
}

/// Waits for the end of a round, calls `change`, and makes sure that the next round has not begun by then.
fn after<T>(running: &mut Running, round: u64, change: impl FnOnce(&Client) -> T) -> T {
    running.wait_for_console(&format!("looked {round}."));
    let changed = change(&client(running));
    let next = format!("detected {} ", round + 1);
    assert!(
        !running.console().contains(&next),
        "the change took too long"
    );
    changed
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let mut running = boot(&stock, Stealth::Writes);
    running.wait_for_console("looked 1.");
    let unprobed = stop(running);
    let own = found(&unprobed, 1);

    let mut running = boot(&stock, Stealth::Reads);
    let called = CALLED
        .split_whitespace()
        .filter(|name| stock.is_function(name));
    let specs = called.map(|name| format!("kprobe:{name}"));
    let counted = specs.chain([COUNTED.to_owned()]).map(|spec| AddProbe {
        action: Some(ProbeAction::Count),
        ..AddProbe::new(&spec)
    });
    let probes = AddProbes::Many(counted.collect());
    after(&mut running, 1, |client| {
        client.add(&probes).expect("added");
    });
    let removed = after(&mut running, 2, |client| {
        client.remove_all().expect("removed").probes
    });
    running.wait_for_console("looked 3.");
    let ran = stop(running);

    let summaries = removed.iter().map(|probe| &probe.summary);
    let missed = summaries.clone().filter(|probe| !probe.missed.is_empty());
    assert_eq!(missed.count(), 0, "{removed:?}");
    let hit = summaries.clone().filter(|probe| probe.hits > 0).count();
    println!("{hit} of {} probes hit", removed.len());
    assert!(hit >= 100, "{removed:?}");
    let of_calls = summaries.clone().find(|probe| *probe.probe == *COUNTED);
    assert_eq!(of_calls.map(|probe| probe.hits), Some(PARENTS_ASKED));
    for round in 1..=3 {
        assert_eq!(found(&ran, round), own, "round {round}");
    }
}

/// Three functions whose calls the workload counts, and the hot function `schedule`.
const IN_REGISTERS: [&str; 4] = [
    "kprobe:do_sys_openat2",
    "kprobe:ksys_read",
    "kprobe:__x64_sys_getpid",
    "kprobe:schedule",
];

#[test]
fn four_probes_of_debian_6_1_are_exact_in_debug_registers() {
    let stock = Stock::fetch("debian-6.1");
    let mut boot = Boot::new(&stock, "opens=40 reads=31 getpids=23")
        .cpus(2)
        .option("--stealth", Stealth::Registers.word());
    for spec in IN_REGISTERS {
        boot = boot.probe(spec);
    }
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let (summary, counts) = (ran.summary(), ran.counts());
    let counted = [counts.openat, counts.read, counts.getpid];
    for (spec, counted) in IN_REGISTERS.into_iter().zip(counted) {
        let probe = probe(&summary, spec);
        assert_eq!(probe.hits, counted, "{probe:?}");
        assert!(probe.missed.is_empty(), "{probe:?}");
    }
    let hot = probe(&summary, IN_REGISTERS[3]);
    assert!(hot.hits > 100, "{hot:?}");
}

#[test]
fn text_of_debian_6_1_is_its_own_while_100_probes_are_hit() {
    check("debian-6.1");
}
