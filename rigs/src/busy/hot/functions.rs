//! The most frequently executed functions, in the busiest parts of the kernel.

use std::collections::BTreeSet;

use address::Gva;
use manifest::ProbeConfig;
use probes::Kernel;

use super::super::counting::only_counts;

/// A part of the kernel, and name patterns of the part's functions. Not every kernel has every function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) name: &'static str,
    patterns: &'static str,
}

pub(super) const PARTS: [Part; 7] = [
    Part {
        name: "scheduler",
        patterns: "schedule __schedule schedule_* pick_next_* put_prev_* set_next_* enqueue_task* dequeue_task* \
                   enqueue_entity* dequeue_entity* update_curr* update_rq_clock* update_load_avg* try_to_wake_up \
                   ttwu_* wake_up_* __wake_up* select_task_rq* check_preempt_* wakeup_preempt* sched_* psi_* \
                   cpuacct_* reweight_* place_entity* task_tick_* scheduler_tick resched_* activate_task* \
                   deactivate_task* default_wake_function autoremove_wake_function prepare_to_wait* finish_wait \
                   __update_load_avg* load_balance* sched_balance_* newidle_balance* do_idle* *_mm_cid*",
    },
    Part {
        name: "timer interrupt",
        patterns: "hrtimer_* __hrtimer_* tick_* __tick_* timerqueue_* clockevents_* ktime_get* \
                   update_process_times account_* update_wall_time timekeeping_* run_local_timers run_timer_* \
                   __run_timers* lapic_* irq_enter* irq_exit* __sysvec_* __do_softirq* handle_softirqs* \
                   calc_*load* run_posix_cpu_timers perf_event_task_tick profile_tick raise_softirq* \
                   __raise_softirq* get_next_timer* timer_* mod_timer* enqueue_timer* add_timer* process_timeout",
    },
    Part {
        name: "page fault",
        patterns: "handle_mm_fault __handle_mm_fault handle_pte_fault do_anonymous_page* do_fault* do_wp_page* \
                   wp_page* do_user_addr_fault* *_rmap* lru_* __lru_* __alloc_pages* __alloc_frozen* \
                   get_page_from_freelist* rmqueue* free_unref_* free_pages* __free_* find_vma* mas_* mmap_* \
                   unmap_* __mod_*state* mod_*_page_state* *mem_cgroup_charge* charge_memcg* try_charge* \
                   copy_page_range* do_cow* filemap_map* flush_tlb* folio_* page_add* page_remove* pte_* __pte_* \
                   pmd_* __pmd_* __pud_* vm_area_* do_mmap* tlb_* zap_*",
    },
    Part {
        name: "system calls",
        patterns: "__x64_sys_* do_sys_* ksys_* syscall_* exit_to_user* do_filp_open getname* putname kernel_clone \
                   copy_process* do_exit do_wait* wait_task_* release_task* do_signal* send_signal* \
                   __send_signal* dup_* copy_* exit_* task_work_* __task_pid* get_task_*",
    },
    Part {
        name: "slab",
        patterns: "kmem_cache_* kmalloc* __kmalloc* kfree* __slab_* ___slab_* slab_* memcg_slab* __memcg_slab* \
                   obj_cgroup* allocate_slab* new_slab* discard_slab* get_partial* put_cpu_partial* __unfreeze* \
                   deactivate_slab* refill_obj* drain_obj* __kmem_cache_*",
    },
    Part {
        name: "RCU",
        patterns: "rcu_* __rcu_* call_rcu* __call_rcu* note_gp* invoke_rcu*",
    },
    Part {
        name: "files",
        patterns: "vfs_* rw_verify* fput* __fput* fget* __fget* alloc_file* alloc_empty* do_dentry_open \
                   link_path_walk* lookup_* walk_component* step_into* dput* d_* __d_* mntput* path_* \
                   terminate_walk* inode_permission* generic_permission* security_* may_open* *_zero",
    },
];

/// A function to probe.
#[derive(Debug)]
pub(super) struct Function {
    /// Index in [`PARTS`].
    pub(super) part: usize,
    pub(super) spec: String,
    pub(super) probe: ProbeConfig,
}

/// The functions of all parts, except the functions at `taken`. A function of two parts belongs to the first part. A function with an
/// ambiguous name is left out.
pub(super) fn all(kernel: &Kernel, taken: &BTreeSet<Gva>) -> Result<Vec<Function>, String> {
    let mut seen = taken.clone();
    let mut found = Vec::new();
    for (part, of) in PARTS.iter().enumerate() {
        for pattern in of.patterns.split_ascii_whitespace() {
            for symbol in kernel.symbols().matching(pattern) {
                let is_code = symbol.is_text()
                    && symbol.size > 0
                    && kernel.holds_code(symbol.address)
                    && !kernel.is_init(symbol.address)
                    && !symbol.name.contains(".cold");
                let is_alone = || kernel.symbols().lookup_all(&symbol.name).len() == 1;
                if is_code && is_alone() && seen.insert(symbol.address) {
                    let spec = format!("kprobe:{}", symbol.name);
                    let probe = only_counts(&spec)?;
                    found.push(Function { part, spec, probe });
                }
            }
        }
    }
    Ok(found)
}
