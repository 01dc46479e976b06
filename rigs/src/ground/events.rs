//! The events, and the functions probed during the events.

/// How the run of a guest ends in which the event takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The booted kernel powers the machine off.
    PowersOff,
    /// The booted kernel starts another kernel, which powers off. The first kernel's counts end at the start of the other.
    HandsOver,
    /// The machine resets; the guest's counts are not known.
    Resets,
}

/// A change that a guest makes to its own kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroundEvent {
    /// The name, which the guest uses, too.
    pub(super) name: &'static str,
    /// The number of rounds, and further words for the kernel's command line.
    pub(super) parameters: &'static str,
    pub(super) ending: Ending,
    /// Patterns of functions with entry probes; functions missing in a kernel are left out.
    pub(super) entered: &'static str,
    /// Patterns of functions with return probes.
    pub(super) returned: &'static str,
    /// The same in modules, as specifications.
    pub(super) in_modules: &'static [&'static str],
}

/// Functions that run in every guest. Some calls are then always in flight, and some processors in a detour.
const ALWAYS: &str = "vfs_* hrtimer_* tick_* rcu_* __x64_sys_poll do_syscall_64 asm_* exc_nmi";
/// The same for a guest that starts another kernel, in which each hit exits: a dozen exits at each tick of the timer take longer than the tick
/// on a slow host, and the kernel would do nothing else.
const ALWAYS_EXITING: &str = "vfs_* tick_handle_periodic tick_sched_timer tick_nohz_highres_handler tick_nohz_handler __x64_sys_poll do_syscall_64 asm_* exc_nmi";
pub(super) const ALWAYS_RETURNED: &str = "schedule do_sys_poll hrtimer_interrupt default_idle_call";

impl GroundEvent {
    /// Patterns of functions that run in every guest, to be probed at the entry.
    pub(super) const fn always_entered(&self) -> &'static str {
        match self.ending {
            Ending::HandsOver => ALWAYS_EXITING,
            Ending::PowersOff | Ending::Resets => ALWAYS,
        }
    }
}

pub(super) const EVENTS: [GroundEvent; 11] = [
    GroundEvent {
        name: "hotplug",
        parameters: "rounds=20",
        ending: Ending::PowersOff,
        entered: "cpuhp_* cpu_down* cpu_up* _cpu_down _cpu_up take_cpu_down native_cpu_disable native_cpu_up \
                  native_kick_ap do_boot_cpu play_dead* native_play_dead* hlt_play_dead mwait_play_dead* \
                  start_secondary smp_callin load_current_idt cpu_init* cr4_init load_ucode_ap identify_secondary_cpu \
                  multi_cpu_stop stop_machine* notify_cpu_starting set_cpu_online sched_cpu_* migrate_tasks \
                  fixup_irqs irq_migrate_all_off_this_cpu clear_local_APIC apic_ap_setup setup_local_APIC",
        returned: "_cpu_down _cpu_up cpuhp_invoke_callback multi_cpu_stop take_cpu_down sched_cpu_deactivate \
                   cpuhp_thread_fun",
        in_modules: &[],
    },
    GroundEvent {
        name: "modules",
        parameters: "rounds=4 listen=1",
        ending: Ending::PowersOff,
        entered: "load_module do_init_module free_module delete_module* module_* text_poke* layout_and_allocate \
                  vfree execmem_* apply_relocate_add ftrace_module_* jump_label_module_notify",
        returned: "load_module do_init_module free_module rtnl_link_register rtnl_link_unregister",
        in_modules: &[
            "kretprobe:tun:tun_chr_read_iter",
            "kprobe:tun:tun_chr_*",
            "kprobe:dummy:dummy_init_module",
            "kretprobe:dummy:dummy_dev_init",
        ],
    },
    GroundEvent {
        name: "kexec",
        parameters: "",
        ending: Ending::HandsOver,
        entered: "kernel_kexec machine_kexec* machine_shutdown native_machine_shutdown native_stop_other_cpus \
                  stop_this_cpu kexec_* kimage_* __do_sys_kexec_file_load migrate_to_reboot_cpu",
        returned: "kernel_kexec machine_shutdown kimage_load_segment",
        in_modules: &[],
    },
    GroundEvent {
        name: "crash",
        parameters: "crashkernel=160M",
        ending: Ending::HandsOver,
        entered: "__crash_kexec crash_* machine_kexec* native_machine_crash_shutdown nmi_shootdown_cpus \
                  crash_nmi_callback kdump_nmi_* native_machine_emergency_restart panic vpanic sysrq_handle_crash \
                  default_do_nmi nmi_handle*",
        returned: "__crash_kexec crash_save_cpu nmi_shootdown_cpus sysrq_handle_crash",
        in_modules: &[],
    },
    GroundEvent {
        name: "ftrace",
        parameters: "rounds=1",
        ending: Ending::PowersOff,
        entered: "ftrace_* text_poke* arch_ftrace_* __ftrace_* update_ftrace_function tracing_set_tracer \
                  smp_text_poke* on_each_cpu*",
        returned: "ftrace_modify_all_code ftrace_startup ftrace_shutdown tracing_set_tracer text_poke_bp_batch",
        in_modules: &[],
    },
    GroundEvent {
        name: "kprobes",
        parameters: "rounds=10",
        ending: Ending::PowersOff,
        entered: "register_kprobe register_kretprobe unregister_kprobe* arm_kprobe __arm_kprobe kprobe_* \
                  kretprobe_* pre_handler_kretprobe opt_pre_handler optimized_callback ksys_read __x64_sys_getpid",
        returned: "register_kprobe unregister_kprobes kprobe_ftrace_handler kprobe_int3_handler __x64_sys_openat",
        in_modules: &[],
    },
    GroundEvent {
        name: "bpf",
        parameters: "rounds=10",
        ending: Ending::PowersOff,
        entered: "bpf_* trace_call_bpf perf_event_* kprobe_perf_func kprobe_dispatcher __sys_bpf array_map_* \
                  perf_kprobe_*",
        returned: "trace_call_bpf perf_event_attach_bpf_prog bpf_prog_load kprobe_ftrace_handler",
        in_modules: &[],
    },
    GroundEvent {
        name: "keys",
        parameters: "rounds=40",
        ending: Ending::PowersOff,
        entered: "static_key_* jump_label_* arch_jump_label_* text_poke* smp_text_poke* __schedule try_to_wake_up \
                  update_stats_* enqueue_task_* dequeue_task_* sysctl_schedstats set_schedstats",
        returned: "sysctl_schedstats jump_label_update __schedule try_to_wake_up enqueue_task_fair \
                   dequeue_task_fair",
        in_modules: &[],
    },
    GroundEvent {
        name: "perf",
        parameters: "rounds=2",
        ending: Ending::PowersOff,
        entered: "perf_* __perf_* get_perf_callchain unwind_* __unwind_* hrtimer_interrupt __hrtimer_run_queues \
                  cpu_clock_event_*",
        returned: "perf_swevent_hrtimer perf_callchain_kernel get_perf_callchain unwind_next_frame hrtimer_interrupt",
        in_modules: &[],
    },
    GroundEvent {
        name: "sysrq",
        parameters: "rounds=3",
        ending: Ending::PowersOff,
        entered: "__handle_sysrq sysrq_* show_* sched_show_task dump_stack* nmi_* default_do_nmi \
                  arch_trigger_cpumask_backtrace show_regs __show_mem unwind_* vprintk* printk*",
        returned: "__handle_sysrq sched_show_task nmi_cpu_backtrace show_state_filter default_do_nmi",
        in_modules: &[],
    },
    GroundEvent {
        name: "panic",
        parameters: "panic=1",
        ending: Ending::Resets,
        entered: "panic vpanic emergency_restart machine_* native_machine_* kmsg_dump* bust_spinlocks \
                  sysrq_handle_crash native_stop_other_cpus stop_this_cpu smp_send_stop crash_smp_send_stop",
        returned: "sysrq_handle_crash bust_spinlocks smp_send_stop kmsg_dump",
        in_modules: &[],
    },
];
