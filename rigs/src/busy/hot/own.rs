//! Counters of the guest's kernel, and the functions that the kernel calls once for each count.
//!
//! The kernel shows the counters in `/proc` (`stat`, `interrupts`, `softirqs`, `vmstat`). The case reads the counters from the guest's
//! memory while all vCPUs are paused, together with the probes' hits: while a task reads a file, both go on counting.

use address::Gva;
use introspect::btf::Type;
use introspect::{Btf, KernelImage, SymbolTable};
use probes::{At, Engine, Kernel};

use super::super::guest::Live;
use errors::chain;

/// A counter of the kernel.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) what: &'static str,
    /// The kernel counts each call of one of these functions.
    pub(super) functions: Vec<String>,
    /// The address of the counter on each processor, or the only address.
    at: Vec<Gva>,
    bytes: usize,
}

impl Own {
    /// The number now. The vCPUs are paused.
    pub(super) fn read(&self, engine: &Engine) -> Result<u64, String> {
        let mut sum = 0;
        for at in &self.at {
            sum += word(engine, *at, self.bytes)?;
        }
        Ok(sum)
    }
}

fn word(engine: &Engine, at: Gva, bytes: usize) -> Result<u64, String> {
    let mut word = [0; 8];
    let wanted = word.get_mut(..bytes).ok_or("no number is so long")?;
    engine
        .inventory()
        .read(At::Virtual(at), wanted)
        .map_err(chain)?;
    Ok(u64::from_le_bytes(word))
}

/// Where the kernel's numbers are.
#[derive(Debug)]
struct Places<'a> {
    types: Btf,
    symbols: &'a SymbolTable,
    slide: u64,
    /// From per-CPU symbols to each processor's own.
    processors: Vec<u64>,
}

impl Places<'_> {
    /// The address of a symbol in the running kernel, which may have moved. Up to 6.14 the symbols of per-CPU data are offsets.
    fn address(&self, name: &str) -> Option<Gva> {
        let linked = self.symbols.address_of(name)?;
        let is_address = linked.0.cast_signed() < 0;
        Some(linked.wrapping_add(if is_address { self.slide } else { 0 }))
    }

    /// The addresses of a member of a per-CPU struct, one for each processor, and the member's size.
    fn member(&self, symbol: &str, of: &str, path: &str) -> Option<(Vec<Gva>, usize)> {
        let ty = self.types.struct_named(of);
        let ty = ty.or_else(|| self.types.as_struct(self.types.type_named(of)?))?;
        let member = self.types.member(ty, path)?;
        let at = self.address(symbol)?.wrapping_add(member.offset_bytes);
        Some((
            self.everywhere(at),
            usize::try_from(member.size_bytes).ok()?,
        ))
    }

    fn everywhere(&self, at: Gva) -> Vec<Gva> {
        let processors = self.processors.iter();
        processors.map(|base| at.wrapping_add(*base)).collect()
    }
}

const OFFSETS: &str = "__per_cpu_offset";
const POINTER_BYTES: usize = 8;

/// A counter for each processor: name, symbol, struct, member, functions.
type Counted = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

/// The kernel changes each counter with interrupts off, in or around the call of the functions: between count and call, a processor does
/// nothing else.
const ON_PROCESSORS: [Counted; 5] = [
    (
        "timer interrupts",
        "irq_stat",
        "irq_cpustat_t",
        "apic_timer_irqs",
        &["__sysvec_apic_timer_interrupt"],
    ),
    // The handler of the clock event, once the kernel has high resolution.
    (
        "clock events",
        "irq_stat",
        "irq_cpustat_t",
        "apic_timer_irqs",
        &["hrtimer_interrupt"],
    ),
    (
        "calls from other processors",
        "irq_stat",
        "irq_cpustat_t",
        "irq_call_count",
        &["__sysvec_call_function", "__sysvec_call_function_single"],
    ),
    // The task that has been switched to cleans up behind the previous task.
    (
        "context switches",
        "runqueues",
        "rq",
        "nr_switches",
        &["finish_task_switch*"],
    ),
    (
        "task switches",
        "runqueues",
        "rq",
        "nr_switches",
        &["__switch_to"],
    ),
];

/// The counters of calls in the guest's kernel. The kernel has booted, and is not paused.
pub(super) fn numbers(
    live: &Live<'_>,
    kernel: &Kernel,
    vmlinux: &[u8],
    cpus: u8,
) -> Result<Vec<Own>, String> {
    let image = KernelImage::parse(vmlinux).map_err(chain)?;
    let symbols = kernel.symbols();
    let mut places = Places {
        types: Btf::from_image(&image, symbols).map_err(chain)?,
        symbols,
        slide: live.engine.inventory().slide().unwrap_or(0).cast_unsigned(),
        processors: Vec::new(),
    };
    let offsets = places.address(OFFSETS).ok_or("no per-CPU data")?;
    for cpu in 0..u64::from(cpus) {
        let at = offsets.wrapping_add(cpu * POINTER_BYTES as u64);
        places
            .processors
            .push(word(live.engine, at, POINTER_BYTES)?);
    }
    let mut found = Vec::new();
    for (what, symbol, of, path, functions) in ON_PROCESSORS {
        let functions: Vec<String> = functions
            .iter()
            .flat_map(|pattern| symbols.matching(pattern))
            .filter(|symbol| symbol.is_text() && !symbol.name.ends_with(".cold"))
            .map(|symbol| symbol.name)
            .collect();
        if let Some((at, bytes)) = places
            .member(symbol, of, path)
            .filter(|_| !functions.is_empty())
        {
            found.push(Own {
                what,
                functions,
                at,
                bytes,
            });
        }
    }
    found.extend(soft_interrupts(live, &places)?);
    found.extend(forks(&places));
    found.extend(faults(&places, kernel));
    Ok(found)
}

/// The kernel counts each soft interrupt before the call of the only function for the interrupt's kind.
fn soft_interrupts(live: &Live<'_>, places: &Places<'_>) -> Result<Vec<Own>, String> {
    let types = &places.types;
    let kinds = types.struct_named("kernel_stat").and_then(|of| {
        match types.get(types.member(of, "softirqs")?.ty)? {
            Type::Array { len, .. } => Some(len),
            _ => None,
        }
    });
    let counts = places.member("kstat", "kernel_stat", "softirqs");
    let (Some(kinds), Some((counts, bytes)), Some(actions)) =
        (kinds, counts, places.address("softirq_vec"))
    else {
        return Ok(Vec::new());
    };
    let each = bytes / usize::try_from(kinds.max(1)).map_err(chain)?;
    let mut found = Vec::new();
    for kind in 0..u64::from(kinds) {
        let action = actions.wrapping_add(kind * POINTER_BYTES as u64);
        let action = word(live.engine, action, POINTER_BYTES)?;
        let linked = Gva(action.wrapping_sub(places.slide));
        let Some(function) = places.symbols.resolve(linked).filter(|at| at.offset == 0) else {
            continue;
        };
        found.push(Own {
            what: "soft interrupts",
            functions: vec![function.symbol.name],
            at: counts
                .iter()
                .map(|at| at.wrapping_add(kind * each as u64))
                .collect(),
            bytes: each,
        });
    }
    Ok(found)
}

/// The kernel counts each successful fork a few instructions before waking the new task; nothing sleeps between.
fn forks(places: &Places<'_>) -> Option<Own> {
    Some(Own {
        what: "forks",
        functions: vec!["wake_up_new_task".to_owned()],
        at: vec![places.address("total_forks")?],
        bytes: POINTER_BYTES,
    })
}

/// Up to 6.3 the kernel counts each call, at the beginning. Since then, calls that have to be repeated are not counted.
fn faults(places: &Places<'_>, kernel: &Kernel) -> Option<Own> {
    let kinds = places.types.enum_named("vm_event_item")?;
    let kind = places.types.as_enum(kinds)?.value("PGFAULT")?;
    let at = places.address("vm_event_states")?;
    let at = at.wrapping_add(u64::try_from(kind).ok()? * POINTER_BYTES as u64);
    (version(kernel.banner()?)? < (6, 4)).then(|| Own {
        what: "page faults",
        functions: vec!["handle_mm_fault".to_owned()],
        at: places.everywhere(at),
        bytes: POINTER_BYTES,
    })
}

fn version(banner: &str) -> Option<(u32, u32)> {
    let version = banner.strip_prefix("Linux version ")?;
    let mut numbers = version.split(|byte: char| !byte.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_two_numbers_of_the_banner() {
        let of = |rest: &str| version(&format!("Linux version {rest}"));
        assert_eq!(of("6.1.0-50-cloud-amd64 (x@y) #1 SMP"), Some((6, 1)));
        assert_eq!(of("7.2.13+deb14-cloud-amd64 (x@y)"), Some((7, 2)));
        assert_eq!(of("next"), None);
    }
}
