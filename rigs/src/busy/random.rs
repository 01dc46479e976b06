//! The random probes of a soak.

use introspect::Symbol;
use introspect::insn::Decoded;
use manifest::{Action, ProbeConfig, ProbeSpec};
use probes::Kernel;

/// xorshift: repeatable, and good enough to choose addresses.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // The generator never leaves the state zero.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1))
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit.max(1) as u64).unwrap_or(0)
    }
}

/// The kernel's functions, to choose probes from.
#[derive(Debug)]
pub(super) struct FunctionChoice<'k> {
    kernel: &'k Kernel,
    functions: Vec<Symbol>,
    /// The functions with permanent probes.
    watched: Vec<Symbol>,
    /// The most frequently executed functions; empty if `roomy` is false.
    busiest: Vec<Symbol>,
}

/// Functions of the scheduler, timer interrupts, page faults, system calls and the allocator. Not every kernel has every function.
const BUSIEST: [&str; 24] = [
    "schedule",
    "__schedule",
    "pick_next_task_fair",
    "enqueue_task_fair",
    "dequeue_task_fair",
    "update_curr",
    "update_load_avg",
    "try_to_wake_up",
    "scheduler_tick",
    "finish_task_switch*",
    "hrtimer_interrupt",
    "__hrtimer_run_queues",
    "tick_sched_timer",
    "update_process_times",
    "sysvec_apic_timer_interrupt",
    "clockevents_program_event",
    "exc_page_fault",
    "handle_mm_fault",
    "__handle_mm_fault",
    "do_syscall_64",
    "syscall_exit_to_user_mode",
    "kmem_cache_alloc",
    "kmem_cache_free",
    "kfree",
];
/// Bytes of a jump.
const ROOM: usize = 5;

impl<'k> FunctionChoice<'k> {
    /// `roomy` prefers instructions with room for a jump, and the most frequently executed functions.
    pub(super) fn new(kernel: &'k Kernel, watched: Vec<Symbol>, roomy: bool) -> Self {
        let functions = kernel
            .symbols()
            .iter()
            .filter(|symbol| symbol.is_text() && symbol.size > 0)
            .filter(|symbol| kernel.holds_code(symbol.address) && !kernel.is_init(symbol.address))
            .collect();
        let named = BUSIEST.iter().filter(|_| roomy);
        let busiest = named.flat_map(|name| kernel.symbols().matching(name));
        Self {
            kernel,
            functions,
            watched,
            busiest: busiest.filter(Symbol::is_text).collect(),
        }
    }

    /// A probe at a random instruction of a random function. One in eight is in a function with permanent probes; one in four is a return
    /// probe.
    pub(super) fn probe(&self, random: &mut Random) -> Option<ProbeConfig> {
        let among = match random.below(8) {
            0 => &self.watched,
            1..4 if !self.busiest.is_empty() => &self.busiest,
            _ => &self.functions,
        };
        let function = among.get(random.below(among.len()))?;
        let code: Vec<_> = self
            .kernel
            .instructions(function)
            .map_while(Result::ok)
            .collect();
        let is_roomy = |at: &&Decoded| std::ptr::eq(*at, &code[0]) || at.len() >= ROOM;
        let roomy: Vec<_> = code.iter().filter(is_roomy).collect();
        let at = if self.busiest.is_empty() || random.below(2) == 0 {
            code.get(random.below(code.len()))?.at()
        } else {
            roomy.get(random.below(roomy.len()))?.at()
        };
        let follow =
            random.below(4) == 0 && self.kernel.symbols().lookup_all(&function.name).len() == 1;
        let spec = if follow {
            format!("kretprobe:{}", function.name)
        } else {
            format!("kprobe:{at}")
        };
        Some(ProbeConfig {
            action: Action::Count,
            ..ProbeConfig::from(spec.parse::<ProbeSpec>().ok()?)
        })
    }
}
