//! Stock Debian kernels, probed by the command, nested: the probes' counts equal the guest's own counts.
//!
//! Built with the feature `test-nested`, which promises QEMU and a network or a filled image cache.

#![cfg(feature = "test-nested")]

mod allocations;
mod boot;
mod breakpoints;
mod clocks;
mod confined;
mod counts;
mod cpus;
mod detector;
mod detours;
mod documented;
mod dump;
mod dumped;
mod ends;
mod judged;
mod kaslr;
mod live;
mod many;
mod module_lines;
mod module_reload;
mod module_tracepoints;
mod module_types;
mod modules;
mod overlays;
mod own_kprobes;
mod print;
mod program_stacks;
mod python_marks;
mod remote;
mod returns;
mod same_boot;
mod schema;
mod sleeping;
mod source_lines;
mod stacks;
mod stealth;
mod syscalls;
mod tasks;
mod tracepoint_fields;
mod tracepoints;
mod turns;
mod typed;
mod uprobes;
mod users;
mod views;
mod warns;
mod watch;
mod watch_per_cpu;
mod watch_tasks;
