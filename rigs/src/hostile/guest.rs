//! The guests: the test guest on this machine's KVM, and a stock Debian kernel, nested.

use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_images::hostile::{self, ModuleTemplate, Targets};
use guest_images::{Progress, build_testguest};
use introspect::SymbolTable;
use object::{Object, ObjectSymbol, SymbolKind};
use probes::Kernel;
use vmm::boot::KernelFile;

use super::campaign::HostileError;
use crate::launch::file_error;
use crate::line::Backend;

const IMAGE: &str = "debian-6.1";
/// The module whose layout the guest's module has.
const TEMPLATE: &str = "dummy";
/// Data of the kernel that the guest overwrites. The tables of kallsyms lie between the banner and the next symbol.
const DATA: [&str; 10] = [
    "idt_table",
    "init_task",
    "linux_banner",
    "__start_BTF",
    "modules",
    "init_top_pgt",
    "level2_kernel_pgt",
    "level2_fixmap_pgt",
    "sys_call_table",
    "__per_cpu_offset",
];
/// The operator's probes in a stock guest: functions of system calls, of interrupts and of the guest's module.
const STOCK_PROBES: [&str; 37] = [
    "kprobe:do_sys_openat2",
    "kretprobe:do_sys_openat2",
    "kprobe:ksys_read",
    "kretprobe:ksys_read",
    "kretprobe:__x64_sys_getpid",
    "kprobe:vfs_*",
    "kprobe:load_module",
    "kretprobe:load_module",
    "kprobe:do_init_module",
    "kretprobe:do_one_initcall",
    "kprobe:free_module",
    "kprobe:hrtimer_interrupt",
    "kretprobe:hrtimer_interrupt",
    "kprobe:__schedule",
    "kretprobe:__schedule",
    "kprobe:exc_page_fault",
    "kprobe:exc_nmi",
    "kprobe:exc_general_protection",
    "kprobe:oops_enter",
    "kprobe:do_syscall_64",
    "kprobe:text_poke*",
    "kprobe:kmem_cache_alloc",
    "kretprobe:kmem_cache_free",
    "kprobe:hostile0:hostile_prey",
    "kretprobe:hostile0:hostile_prey",
    "kprobe:hostile1:hostile_prey",
    "kprobe:hostile0:act_*",
    "kretprobe:hostile1:act_*",
    "kprobe:hostile1:hostile_interrupt",
    "kprobe:do_sys_openat2+0x10",
    "kprobe:native_read_cr2",
    "kprobe:serial8250_*",
    "syscall:*",
    "retsyscall:openat",
    "tracepoint:sched:sched_switch",
    "tracepoint:syscalls:*",
    "tracepoint:irq:*",
];

/// A guest that can be booted with any seed.
#[derive(Clone, Debug)]
pub(super) struct HostileGuest {
    pub(super) kernel: PathBuf,
    pub(super) initrd: Option<PathBuf>,
    pub(super) memory_mib: u64,
    /// `hyprobe run --timeout`.
    pub(super) timeout: Duration,
    /// The time from the guest's first line to the earliest end by the rig.
    pub(super) attack: Duration,
    /// The probes of the manifest, and the operator's.
    pub(super) first: Vec<String>,
    pub(super) probes: Vec<String>,
    cmdline: fn(u64) -> String,
}

impl HostileGuest {
    /// Builds the guest of `backend` in `dir`.
    pub(super) fn build(backend: Backend, dir: &Path) -> Result<Self, HostileError> {
        match backend {
            Backend::Nested => Self::stock(dir),
            Backend::Local | Backend::Intel | Backend::Amd => Self::bare(dir),
        }
    }

    pub(super) fn cmdline(&self, seed: u64) -> String {
        (self.cmdline)(seed)
    }

    fn bare(dir: &Path) -> Result<Self, HostileError> {
        let kernel = build_testguest(dir)?;
        let bytes = std::fs::read(&kernel).map_err(file_error("read", &kernel))?;
        let file = object::File::parse(&*bytes)?;
        let names = file
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
            .filter_map(|symbol| Some(symbol.name().ok()?.to_owned()))
            .filter(|name| {
                ["fn_", "act_", "hostile_"]
                    .iter()
                    .any(|begin| name.starts_with(begin))
            });
        let mut probes = Vec::new();
        for name in names {
            probes.push(format!("kretprobe:{name}"));
            probes.extend(
                ["", "+0x1", "+0x3", "+0x4"].map(|offset| format!("kprobe:{name}{offset}")),
            );
        }
        // The functions that the guest calls and rewrites most.
        for _ in 0..probes.len() / 8 {
            probes.extend(["kprobe:hostile_prey", "kretprobe:hostile_prey"].map(str::to_owned));
        }
        Ok(Self {
            kernel,
            initrd: None,
            memory_mib: 64,
            timeout: Duration::from_secs(15),
            attack: Duration::from_secs(8),
            first: [
                "kprobe:hostile_prey",
                "kretprobe:hostile_prey",
                "kprobe:fn_*",
            ]
            .map(str::to_owned)
            .into(),
            probes,
            cmdline: |seed| format!("run=hostile={seed}"),
        })
    }

    fn stock(dir: &Path) -> Result<Self, HostileError> {
        let image = guest_images::fetch(IMAGE, &|progress: &Progress<'_>| {
            eprintln!("hostile: {progress}");
        })?;
        let file = KernelFile::from_bytes(&image.name, image.main_file().read()?)?;
        let vmlinux = file.vmlinux()?;
        let kernel = dir.join("vmlinux");
        std::fs::write(&kernel, &vmlinux).map_err(file_error("write", &kernel))?;
        let modules = image.modules()?;
        let template = modules
            .get(TEMPLATE)
            .ok_or(HostileError::NoTemplate(TEMPLATE))?;
        let template = ModuleTemplate::read(TEMPLATE, &template.read()?)?;
        let targets = targets(Kernel::from_vmlinux(&*vmlinux)?.symbols())?;
        let files = hostile::build_hostile(dir, &template, &targets)?;
        let initrd = dir.join("initrd");
        std::fs::write(&initrd, hostile::initramfs(&files)?.build()?)
            .map_err(file_error("write", &initrd))?;
        Ok(Self {
            kernel,
            initrd: Some(initrd),
            memory_mib: 256,
            timeout: Duration::from_secs(240),
            attack: Duration::from_secs(60),
            first: [
                "kprobe:do_sys_openat2",
                "kretprobe:ksys_read",
                "kprobe:hostile0:hostile_prey",
                "kprobe:hostile1:act_*",
            ]
            .map(str::to_owned)
            .into(),
            probes: STOCK_PROBES.map(str::to_owned).into(),
            // The guest writes to the edges of memory, which its kernel must not use.
            cmdline: |seed| {
                format!(
                    "console=ttyS0 panic=1 nopti nokaslr no5lvl mitigations=off memmap=1M$0x200000 \
                     memmap=1M$0xff00000 rdinit=/init rounds={} ram=268435456 seed={seed}",
                    // The acts of the last two may crash the guest's kernel.
                    2 + seed % 3
                )
            },
        })
    }
}

fn targets(symbols: &SymbolTable) -> Result<Targets, HostileError> {
    let address = |name| {
        let address = symbols.address_of(name);
        address.map(|at| at.0).ok_or(HostileError::NoSymbol(name))
    };
    let text = address("_text")?;
    let end = address("_etext")?;
    let mut data = Vec::new();
    for name in DATA {
        let found = symbols.lookup(name).ok_or(HostileError::NoSymbol(name))?;
        data.push((found.address.0, found.size.max(16)));
    }
    Ok(Targets {
        text: (text, end.saturating_sub(text)),
        page_offset_base: address("page_offset_base")?,
        data,
    })
}
