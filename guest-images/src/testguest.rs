//! The test guest: a bare-metal kernel that boots in milliseconds on any KVM and checks itself.
//!
//! The test guest is an ELF file for the 64-bit Linux boot protocol, linked at 1 MiB, with a symbol table. With its PVH note,
//! `qemu-system-x86_64 -kernel` can boot the file, too. The command line selects the scenarios and their order,
//! `run=NAME[=N][,NAME[=N]…]`:
//!
//! | name | actions, N times |
//! |---|---|
//! | `calls` | every function of `functions.S` is called; all registers and flags are checked |
//! | `recurse` | `fn_recurse` calls itself, N deep (N + 1 calls) |
//! | `flags` | `fn_pushf` shows the flags of the call: no trap flag |
//! | `selfpatch` | `fn_patched` is rewritten and called 30 times |
//! | `int3` | `fn_int3`, the guest's own breakpoint, reaches the guest's handler |
//! | `fault` | `fn_fault` reads a missing page; the handler maps the page |
//! | `ring3` | each `user_*` function is called in ring 3, also the function with an int3 |
//! | `int1` | `user_int1` executes `int1` three times in ring 3, after `st_patched` was written to; each raises #DB |
//! | `syscall` | `user_syscall` enters `fn_syscall`; needs a KVM that delivers `syscall` |
//! | `sysret` | the same with `fn_sysret`, which returns by `sysret` |
//! | `userjump` | a program in ring 3 jumps to `fn_push` with the kernel's memory as its stack; each jump must fault, and write nothing |
//! | `wait` | `fn_wait` halts until `fn_wake` takes an interrupt, sent before or after |
//! | `nmi` | `fn_nmi` takes two NMIs, the second of which is sent while the first is handled, after `st_patched` was written to |
//! | `raise` | `rs_div`, `rs_rdmsr` and `rs_lods` fault; the frames are checked, their TF too |
//! | `intn` | the same for the software interrupt of `rs_int`; needs a KVM that delivers software interrupts |
//! | `lstar` | `rs_wrmsr` writes MSR_LSTAR with a non-canonical address, and raises #GP |
//! | `outs` | `pt_outs` writes a byte to a port by `outsb`, right in front of `pt_behind` |
//! | `ud` | `rs_ud` raises #UD, and the handler finds an `ud2` at the address |
//! | `syscall0` | `rs_syscall` goes from ring 0 to `rs_entry` and back; TF is checked |
//! | `steps` | `st_run` is executed step by step, `st_patched` is written to and called |
//! | `leave` | a jump leaves `fn_left` and the called function, as `longjmp` does |
//! | `task` | `fn_task`, on a separate stack, ends in `do_task_dead`, as a task of Linux does |
//! | `smp` | as `calls`, by two processors at the same time |
//! | `vector` | `fn_pxor` is called, with SSE switched on; needs a KVM that executes `pxor` |
//! | `detour` | the guest writes to the host's code, mapped in the guest's page tables; the code must not change |
//! | `bench` | each function of `bench.S` is called N times, between marks |
//! | `bench1` `bench2` | one function of `bench.S` is called, by one processor or by two at the same time |
//! | `record1` `record2` | the same with another function of `bench.S` |
//! | `checksum` | (once) the text's [`text_checksum`]; fails if the sum differs from an earlier sum |
//! | `textsmp` | one processor reads the text in four ways, and another calls as `calls` at the same time; fails if the sums differ |
//! | `ownkprobe` | (once) the guest puts an int3 over the nop of `fn_nop`, for good |
//! | `look` | (once) the guest looks for traces of probes, and prints the values it has found |
//! | `generated` | (once) the host's snippets in the slots run, from the initrd's records |
//! | `msr` | (once) MSR_LSTAR is written with the address of `fn_syscall` |
//! | `hostile` | (once) the acts of [`hostile`] with seed N, by two processors, and an end chosen by the seed |
//! | `panic` `triple` `hang` `halt` | (once) the run ends with a panic, a triple fault, a hang or a halt |
//! | `exit` | the run ends with code N |
//!
//! Each scenario prints `testguest: NAME ok …` or `testguest: NAME FAIL …` on COM1. At the end, the guest prints
//! `testguest: count FUNCTION=N`, the number of executions of each function's first instruction, and `testguest: end failed=N`. Then the
//! guest writes N to the debug-exit port [`DEBUG_EXIT_PORT`], or ends through the keyboard controller with `exit=reset`, or halts with
//! `exit=halt`. With `wait=exit`, processors that wait for each other exit again and again. An unexpected trap prints
//! `testguest: trap FAIL …` and ends with 0x7e.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection};

use crate::hostile;
use crate::toolchain::{BuildError, Source, compile};

/// The debug-exit port: a write of a byte ends the run with the byte as exit code.
pub const DEBUG_EXIT_PORT: u16 = 0xf4;

macro_rules! sources {
    ($($name:literal)*) => {
        [$(Source { name: $name, text: include_str!(concat!("../testguest/", $name)) }),*]
    };
}

const SOURCES: [Source; 33] = sources! {
    "bench.S" "bench.c" "boot.S" "calls.c" "console.c" "detour.c" "ends.c" "functions.S" "generated.S" "generated.c" "generated.h"
    "guest.h" "hostile.c" "interrupts.c" "leave.c" "link.ld" "looks.c" "main.c" "models.c" "paging.c" "ports.S" "ports.c" "raises.S" "raises.c"
    "ring3.c" "smp.c" "steps.S" "steps.c" "text.c" "traps.S" "traps.c" "user.S" "watch.c"
};

const FLAGS: [&str; 20] = [
    "-std=gnu11",
    "-O2",
    "-g",
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
    "-no-pie",
    "-nostdlib",
    "-static",
    "-Wl,--build-id=none",
    "-Wl,-z,noexecstack",
    "-Wl,-T,link.ld",
];

/// Compiles the test guest into `out_dir/testguest`, an ELF file with symbols.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_testguest(out_dir: &Path) -> Result<PathBuf, BuildError> {
    let sources: Vec<_> = SOURCES.into_iter().chain(hostile::ACTS).collect();
    compile(out_dir, "testguest", &sources, &FLAGS)
}

/// The `sum` of the scenario `checksum` if the guest's text is identical to the text in the file `elf`; `None` if `elf` is no ELF file with
/// a `.text`.
pub fn text_checksum(elf: &[u8]) -> Option<u64> {
    let file = object::File::parse(elf).ok()?;
    let text = file.section_by_name(".text")?.data().ok()?;
    let (words, _) = text.as_chunks::<8>();
    Some(words.iter().fold(0, |sum: u64, word| {
        sum.rotate_left(7) ^ u64::from_le_bytes(*word)
    }))
}

/// The test guest's results, read from the console.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The passed scenarios in order, with the printed fields.
    pub passed: Vec<(String, BTreeMap<String, String>)>,
    /// The lines with `FAIL`.
    pub failures: Vec<String>,
    /// Number of executions of each function's first instruction, counted by the guest.
    pub counts: BTreeMap<String, u64>,
    /// Whether the guest reached the end.
    pub ended: bool,
}

impl Outcome {
    /// Reads the guest's lines on the console.
    pub fn from_console(console: &str) -> Self {
        let mut outcome = Self::default();
        for line in console
            .lines()
            .filter_map(|line| line.trim_end().strip_prefix("testguest: "))
        {
            let mut words = line.split(' ');
            match (words.next(), words.next()) {
                (Some(name), Some("ok")) => {
                    outcome
                        .passed
                        .push((name.to_owned(), fields(words).collect()));
                }
                (Some(_), Some("FAIL")) => outcome.failures.push(line.to_owned()),
                (Some("count"), Some(count)) => {
                    let parsed = fields([count].into_iter())
                        .filter_map(|(name, value)| Some((name, value.parse().ok()?)));
                    outcome.counts.extend(parsed);
                }
                (Some("end"), _) => outcome.ended = true,
                _ => {}
            }
        }
        outcome
    }

    /// Whether the guest reached the end without a failure.
    pub fn is_good(&self) -> bool {
        self.ended && self.failures.is_empty()
    }
}

fn fields<'a>(words: impl Iterator<Item = &'a str>) -> impl Iterator<Item = (String, String)> {
    words.filter_map(|word| {
        word.split_once('=')
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use object::ObjectSymbol;

    use super::*;

    #[test]
    fn the_console_is_read() {
        let console = "testguest: up run=calls\r\ntestguest: calls ok rounds=2 functions=40\r\n\
                       testguest: smp FAIL the second processor did not start\r\n\
                       testguest: count fn_nop=2\r\ntestguest: end failed=1\r\n";
        let outcome = Outcome::from_console(console);
        assert_eq!(outcome.passed.len(), 1);
        assert_eq!(outcome.passed[0].1["rounds"], "2");
        assert_eq!(
            outcome.failures,
            ["smp FAIL the second processor did not start"]
        );
        assert_eq!(outcome.counts["fn_nop"], 2);
        assert!(outcome.ended && !outcome.is_good());
        assert!(!Outcome::from_console("testguest: calls ok\n").is_good());
    }

    #[test]
    fn test_guest_compiles_for_the_boot_protocol() {
        let dir = tempfile::tempdir().expect("tempdir");
        let bytes = std::fs::read(build_testguest(dir.path()).expect("build")).expect("read");
        let file = object::File::parse(&*bytes).expect("elf");
        let symbol = |name: &str| {
            let found = file
                .symbols()
                .find(|symbol| symbol.name() == Ok(name))
                .expect(name);
            (found.address(), found.size())
        };
        assert_eq!(file.entry(), symbol("start64").0);
        assert_eq!(symbol("text_start").0, 0x10_0000);
        assert_eq!(symbol("fn_ret").1, 1);
        assert_eq!(symbol("fn_nop").0 % 16, 0);
        assert!(symbol("user_end").0 <= 0x20_0000);
        assert!(text_checksum(&bytes).is_some());
        assert_eq!(text_checksum(b"no ELF file"), None);
    }
}
