//! A hostile guest, which attacks the VMM. On bare metal: the scenario `hostile` of the [test guest](crate::testguest). Under a stock
//! kernel: an init and a module, built here for the kernel.
//!
//! Both have the same acts (`hostile/acts.h`), which run in ring 0 with their own interrupt table. Each processor prints the counts of
//! acts in a line now and then: [`Acts::from_console`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection, ObjectSymbol};
use thiserror::Error;

use crate::initramfs::{Initramfs, InitramfsError};
use crate::toolchain::{BuildError, Source, compile};
use crate::workload::{FLAGS, HEADERS};

macro_rules! source {
    ($name:literal) => {
        Source {
            name: $name,
            text: include_str!(concat!("../hostile/", $name)),
        }
    };
}

const STOCK: Source<'static> = source!("stock.c");
const MODULE: Source<'static> = source!("module.c");
const ORDERS: Source<'static> = source!("orders.h");
/// Sources of the acts, shared by the test guest and the module.
pub(crate) const ACTS: [Source<'static>; 4] = [
    ORDERS,
    source!("machine.h"),
    source!("acts.h"),
    source!("ends.h"),
];

const MODULE_FLAGS: [&str; 15] = [
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-tree-loop-distribute-patterns",
    "-fno-asynchronous-unwind-tables",
    "-fcf-protection=none",
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-fno-pic",
    "-mcmodel=kernel",
    "-c",
];

/// The section with the module's description, made by the kernel's build.
const THIS_MODULE: &str = ".gnu.linkonce.this_module";
/// The symbol of the init function, target of a relocation in the description.
const INIT: &str = "init_module";

/// A module of the kernel is no usable template.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// The file is no object file.
    #[error("the kernel's module cannot be read")]
    NotAModule(#[from] object::Error),
    /// The module lacks a part.
    #[error("the kernel's module has no {0}")]
    Missing(&'static str),
}

/// Common properties of a kernel's modules, read from one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleTemplate {
    bytes: u64,
    name_offset: usize,
    init_offset: u64,
    vermagic: String,
    versions: Vec<u8>,
}

impl ModuleTemplate {
    /// Reads the module `name` from the file's bytes.
    ///
    /// # Errors
    ///
    /// See [`TemplateError`].
    pub fn read(name: &str, module: &[u8]) -> Result<Self, TemplateError> {
        let file = object::File::parse(module)?;
        let missing = |what| move || TemplateError::Missing(what);
        let this = file
            .section_by_name(THIS_MODULE)
            .ok_or_else(missing("description"))?;
        let name = format!("{name}\0");
        let name_offset = this
            .data()?
            .windows(name.len())
            .position(|window| window == name.as_bytes())
            .ok_or_else(missing("name"))?;
        let is_init = |relocation: &object::Relocation| match relocation.target() {
            object::RelocationTarget::Symbol(index) => file
                .symbol_by_index(index)
                .is_ok_and(|symbol| symbol.name() == Ok(INIT)),
            _ => false,
        };
        let init = this
            .relocations()
            .find(|(_, relocation)| is_init(relocation));
        let (init_offset, _) = init.ok_or_else(missing("init function"))?;
        let info = file
            .section_by_name(".modinfo")
            .ok_or_else(missing("information"))?;
        let info = String::from_utf8_lossy(info.data()?).into_owned();
        let vermagic = info
            .split('\0')
            .find_map(|word| word.strip_prefix("vermagic="))
            .ok_or_else(missing("version"))?;
        let versions = match file.section_by_name("__versions") {
            Some(section) => section.data()?.to_vec(),
            None => Vec::new(),
        };
        Ok(Self {
            bytes: this.size(),
            name_offset,
            init_offset,
            vermagic: vermagic.to_owned(),
            versions,
        })
    }

    fn header(&self) -> String {
        let mut versions = String::new();
        for line in self.versions.chunks(16) {
            let bytes: Vec<_> = line.iter().map(|byte| format!("{byte:#x}")).collect();
            // Writing to a string cannot fail.
            let _ = write!(versions, " \\\n\t\".byte {}\\n\"", bytes.join(","));
        }
        format!(
            "#define TEMPLATE_BYTES {}\n#define NAME_OFFSET {}\n#define INIT_OFFSET {}\n#define VERMAGIC \"{}\"\n#define VERSIONS \"\"{versions}\n",
            self.bytes, self.name_offset, self.init_offset, self.vermagic
        )
    }
}

/// A range of the kernel's memory to overwrite: an address and a number of bytes.
pub type Target = (u64, u64);

/// Addresses in the kernel for the acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    /// The text.
    pub text: Target,
    /// The variable with the address of guest-physical memory.
    pub page_offset_base: u64,
    /// Data; at most 13 are used.
    pub data: Vec<Target>,
}

impl Targets {
    fn header(&self) -> String {
        // The second target is the processor's own data: the module knows the address.
        let all = [self.text, (0, 4096)]
            .into_iter()
            .chain(self.data.iter().copied().take(13));
        let all: Vec<_> = all
            .map(|(at, bytes)| format!("{{ {at:#x}, {bytes:#x} }}"))
            .collect();
        format!(
            "#define PAGE_OFFSET_BASE {:#x}\n#define TARGETS {}\n",
            self.page_offset_base,
            all.join(", ")
        )
    }
}

/// The init and the module of a hostile stock guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostileFiles {
    /// The init.
    pub init: PathBuf,
    /// The module.
    pub module: PathBuf,
}

/// Compiles the init and the module into `out_dir`.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_hostile(
    out_dir: &Path,
    template: &ModuleTemplate,
    targets: &Targets,
) -> Result<HostileFiles, BuildError> {
    let (template, targets) = (template.header(), targets.header());
    let header = |name, text| Source { name, text };
    let sources: Vec<_> = [MODULE, header("template.h", &template)]
        .into_iter()
        .chain(ACTS)
        .collect();
    let module = compile(out_dir, "hostile.ko", &sources, &MODULE_FLAGS)?;
    let sources: Vec<_> = [STOCK, ORDERS, header("targets.h", &targets)]
        .into_iter()
        .chain(HEADERS)
        .collect();
    let init = compile(out_dir, "hostile", &sources, &FLAGS)?;
    Ok(HostileFiles { init, module })
}

/// Describes an initramfs with the init and the module.
///
/// # Errors
///
/// A file cannot be read.
pub fn initramfs(files: &HostileFiles) -> Result<Initramfs, InitramfsError> {
    let mut initramfs = Initramfs::with_devices();
    initramfs.host_file("init", 0o755, &files.init)?;
    initramfs.host_file("hostile.ko", 0o644, &files.module)?;
    Ok(initramfs)
}

/// The acts, by their names in `acts.h`.
const NAMES: [&str; 12] = [
    "ports",
    "strings",
    "mmio",
    "interrupts",
    "rep",
    "tables",
    "scribble",
    "detour",
    "text",
    "msrs",
    "debug",
    "jump",
];
/// Counts of outcomes, not of acts: `faults` counts acts that faulted or took too long, `taken` counts taken interrupts.
const OUTCOMES: [&str; 2] = ["faults", "taken"];

/// Number of acts of each kind, counted by the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acts(pub BTreeMap<&'static str, u64>);

impl Default for Acts {
    fn default() -> Self {
        Self(
            NAMES
                .into_iter()
                .chain(OUTCOMES)
                .map(|name| (name, 0))
                .collect(),
        )
    }
}

impl Acts {
    /// The sum of all complete lines. Acts after the last line are unknown. The guest also writes to the serial port at random, so a name
    /// may be damaged.
    #[must_use]
    pub fn from_console(console: &str) -> Self {
        let mut acts = Self::default();
        for line in console.lines() {
            let fields = line.split_once("hostile: cpu=");
            let Some(fields) =
                fields.and_then(|(_, fields)| fields.trim_end().strip_suffix(" end"))
            else {
                continue;
            };
            let parsed: Option<Vec<_>> = fields
                .split(' ')
                .skip(1)
                .map(|field| {
                    let (name, value) = field.split_once('=')?;
                    Some((name, value.parse::<u64>().ok()?))
                })
                .collect();
            for (name, value) in parsed.unwrap_or_default() {
                if let Some(sum) = acts.0.get_mut(name) {
                    *sum = sum.saturating_add(value);
                }
            }
        }
        acts
    }

    /// The total number of acts.
    #[must_use]
    pub fn total(&self) -> u64 {
        let acts = self.0.iter().filter(|(name, _)| !OUTCOMES.contains(name));
        acts.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Adds the acts of another guest.
    pub fn add(&mut self, other: &Self) {
        for (name, value) in &other.0 {
            let sum = self.0.entry(name).or_default();
            *sum = sum.saturating_add(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_added_up() {
        let console = "hostile: up seed=1\nhostile: cpu=0 ports=2 rep=3 faults=1 end\n\
                       x hostile: cpu=1 ports=5 rep=0 faults=0 end\r\nhostile: cpu=1 ports=9 re\n\
                       hostile: cpu=0 ends by triple\nhostile: cpu=0 po\u{fffd}rts=4 end\n";
        let acts = Acts::from_console(console);
        assert_eq!(acts.total(), 10);
        let mut done = acts.0;
        done.retain(|_, count| *count > 0);
        assert_eq!(done, [("faults", 1), ("ports", 7), ("rep", 3)].into());
    }

    #[test]
    fn acts_have_the_names_that_guests_print() {
        let (_, names) = ACTS[2].text.split_once("act_names[] = {").expect("names");
        let (names, _) = names.split_once('}').expect("their end");
        let names: Vec<_> = names.split('"').skip(1).step_by(2).collect();
        assert_eq!(names, NAMES);
    }

    #[test]
    fn module_and_init_compile() {
        let dir = tempfile::tempdir().expect("tempdir");
        let template = ModuleTemplate {
            bytes: 0x380,
            name_offset: 24,
            init_offset: 0x138,
            vermagic: "6.1.0".to_owned(),
            versions: vec![1, 2, 3],
        };
        let targets = Targets {
            text: (0xffff_ffff_8100_0000, 0x1000),
            page_offset_base: 0xffff_ffff_8200_0000,
            data: vec![(0xffff_ffff_8300_0000, 64)],
        };
        let files = build_hostile(dir.path(), &template, &targets).expect("gcc");
        let module = std::fs::read(files.module).expect("read");
        let read = ModuleTemplate::read("hostile#", &module).expect("it is a module");
        assert_eq!(read, template);
    }
}
