//! The workload: an init that makes system calls in known numbers and prints the numbers, to compare with the hits of a probe.
//!
//! Parameters come from the kernel's command line, for example `opens=200 reads=300 procs=2`; the head of `workload/init.c` lists the
//! parameters. [`Counts::from_console`] reads the last printed line.

use std::path::{Path, PathBuf};

use crate::initramfs::{Initramfs, InitramfsError};
use crate::modules::{Module, ModuleError};
use crate::toolchain::{BuildError, Source, compile};

const INIT: Source = Source {
    name: "init.c",
    text: include_str!("../workload/init.c"),
};

const KPROBES: Source = Source {
    name: "kprobes.c",
    text: include_str!("../workload/kprobes.c"),
};

const OVERHEAD: Source = Source {
    name: "overhead.c",
    text: include_str!("../workload/overhead.c"),
};

const GROUND: Source = Source {
    name: "ground.c",
    text: include_str!("../workload/ground.c"),
};

const CALLS: Source = Source {
    name: "calls.c",
    text: include_str!("../workload/calls.c"),
};

const UPROBES: Source = Source {
    name: "uprobes.c",
    text: include_str!("../workload/uprobes.c"),
};

const BREAKPOINT: Source = Source {
    name: "breakpoint.c",
    text: include_str!("../workload/breakpoint.c"),
};

const DETECTOR: Source = Source {
    name: "detector.c",
    text: include_str!("../workload/detector.c"),
};

const THREADS: Source = Source {
    name: "threads.c",
    text: include_str!("../workload/threads.c"),
};

/// Headers for all inits.
pub(crate) const HEADERS: [Source; 13] = [
    Source {
        name: "syscall.h",
        text: include_str!("../workload/syscall.h"),
    },
    Source {
        name: "console.h",
        text: include_str!("../workload/console.h"),
    },
    Source {
        name: "parameters.h",
        text: include_str!("../workload/parameters.h"),
    },
    Source {
        name: "start.h",
        text: include_str!("../workload/start.h"),
    },
    Source {
        name: "uprobes-attacks.h",
        text: include_str!("../workload/uprobes-attacks.h"),
    },
    Source {
        name: "uprobes-marks.h",
        text: include_str!("../workload/uprobes-marks.h"),
    },
    Source {
        name: "uprobes-returns.h",
        text: include_str!("../workload/uprobes-returns.h"),
    },
    Source {
        name: "counted.h",
        text: include_str!("../workload/counted.h"),
    },
    Source {
        name: "ground-cpus.h",
        text: include_str!("../workload/ground-cpus.h"),
    },
    Source {
        name: "ground-modules.h",
        text: include_str!("../workload/ground-modules.h"),
    },
    Source {
        name: "ground-kernels.h",
        text: include_str!("../workload/ground-kernels.h"),
    },
    Source {
        name: "ground-tracing.h",
        text: include_str!("../workload/ground-tracing.h"),
    },
    Source {
        name: "ground-events.h",
        text: include_str!("../workload/ground-events.h"),
    },
];

pub(crate) const FLAGS: [&str; 16] = [
    "-std=gnu11",
    "-O2",
    "-g1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-tree-loop-distribute-patterns",
    "-fcf-protection=none",
    "-mgeneral-regs-only",
    "-fno-pic",
    "-no-pie",
    "-nostdlib",
    "-static",
    "-Wl,--build-id=none",
];

/// Compiles the workload into `out_dir/workload`, a static executable of a few kilobytes.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_workload(out_dir: &Path) -> Result<PathBuf, BuildError> {
    build(out_dir, "workload", INIT)
}

/// Compiles an init that runs self-checks of the guest's own kprobes into `out_dir/kprobes`. The head of `workload/kprobes.c` lists the
/// parameters and the output.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_kprobes(out_dir: &Path) -> Result<PathBuf, BuildError> {
    build(out_dir, "kprobes", KPROBES)
}

/// Compiles an init that makes calls, probed from inside and from outside the guest, into `out_dir/overhead`. The head of
/// `workload/overhead.c` lists the parameters and the output.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_overhead(out_dir: &Path) -> Result<PathBuf, BuildError> {
    build(out_dir, "overhead", OVERHEAD)
}

/// Compiles an init with events that change the kernel under the probes, such as hotplug and kexec, into `out_dir/ground`. The head of
/// `workload/ground.c` lists the parameters and the output.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_ground(out_dir: &Path) -> Result<PathBuf, BuildError> {
    build(out_dir, "ground", GROUND)
}

/// Compiles an init with programs that print the addresses they return to into `out_dir/calls`. The head of `workload/calls.c` has the
/// output. The executable has unwind rules with a sorted table, as those of a distribution.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_calls(out_dir: &Path) -> Result<PathBuf, BuildError> {
    let rules = ["-fasynchronous-unwind-tables", "-Wl,--eh-frame-hdr"];
    let flags: Vec<&str> = FLAGS.into_iter().chain(rules).collect();
    compile(out_dir, "calls", &sources(CALLS), &flags)
}

/// Compiles a program whose processes and threads count their calls of functions into `out_dir/uprobes`. The head of `workload/uprobes.c` has
/// the arguments and the output.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_uprobes(out_dir: &Path) -> Result<PathBuf, BuildError> {
    build(out_dir, "uprobes", UPROBES)
}

/// Compiles a program that counts writes to a variable of the kernel with the processor's own debug registers into `out_dir/breakpoint`.
/// The head of `workload/breakpoint.c` has the arguments and the output.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_breakpoint(out_dir: &Path) -> Result<PathBuf, BuildError> {
    build(out_dir, "breakpoint", BREAKPOINT)
}

/// Compiles a program that looks for traces of probes into `out_dir/detector`. The head of `workload/detector.c` has the arguments and the output.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_detector(out_dir: &Path) -> Result<PathBuf, BuildError> {
    build(out_dir, "detector", DETECTOR)
}

/// Compiles a program of two threads that sleep until the end into `out_dir/threads`. The second thread has the name `second`.
///
/// # Errors
///
/// gcc is missing or refuses, or the directory cannot be written.
pub fn build_threads(out_dir: &Path) -> Result<PathBuf, BuildError> {
    build(out_dir, "threads", THREADS)
}

fn build(out_dir: &Path, output: &str, main: Source) -> Result<PathBuf, BuildError> {
    compile(out_dir, output, &sources(main), &FLAGS)
}

fn sources(main: Source) -> Vec<Source> {
    std::iter::once(main).chain(HEADERS).collect()
}

/// Describes an initramfs with the executable `workload` as init.
///
/// # Errors
///
/// The executable cannot be read.
pub fn initramfs(workload: &Path) -> Result<Initramfs, InitramfsError> {
    let mut initramfs = Initramfs::with_devices();
    initramfs.host_file("init", 0o755, workload)?;
    Ok(initramfs)
}

/// Adds `modules` to `initramfs` in order. Returns the workload's parameter to load the modules.
///
/// # Errors
///
/// A module cannot be read.
pub fn add_modules(initramfs: &mut Initramfs, modules: &[Module]) -> Result<String, ModuleError> {
    let mut paths = Vec::new();
    for module in modules {
        let path = format!("/{}.ko", module.name);
        initramfs.file(&path, 0o644, module.read()?);
        paths.push(path);
    }
    Ok(format!("modload={}", paths.join(",")))
}

/// Numbers of system calls, counted by the workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// `openat` calls.
    pub openat: u64,
    /// `read` calls.
    pub read: u64,
    /// `getpid` calls.
    pub getpid: u64,
    /// `nanosleep` calls.
    pub nap: u64,
    /// Started processes; each has ended.
    pub children: u64,
    /// Calls with an unexpected result.
    pub failed: u64,
}

impl Counts {
    /// The total printed by the workload on the console; `None` if the workload did not reach the end.
    pub fn from_console(console: &str) -> Option<Self> {
        Self::labelled(console, "done")
    }

    /// The counts after "workload: `label`"; `None` if the workload did not print the line.
    pub fn labelled(console: &str, label: &str) -> Option<Self> {
        let mark = format!("workload: {label} ");
        console
            .lines()
            .find_map(|line| Self::parse(line.split_once(&mark)?.1))
    }

    fn parse(fields: &str) -> Option<Self> {
        let mut counts = Self::default();
        for field in fields.split_whitespace() {
            let (name, value) = field.split_once('=')?;
            let value = value.parse().ok()?;
            match name {
                "openat" => counts.openat = value,
                "read" => counts.read = value,
                "getpid" => counts.getpid = value,
                "nap" => counts.nap = value,
                "children" => counts.children = value,
                "failed" => counts.failed = value,
                _ => return None,
            }
        }
        Some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_found_between_kernel_lines() {
        let console = "[    1.0] x\nworkload: cpu=0 openat=3 read=0 getpid=0 failed=0\r\n\
                       workload: done openat=6 read=2 getpid=0 nap=4 children=5 failed=1\r\n[    1.1] reboot\n";
        let expected = Counts {
            openat: 6,
            read: 2,
            getpid: 0,
            nap: 4,
            children: 5,
            failed: 1,
        };
        assert_eq!(Counts::from_console(console), Some(expected));
        assert_eq!(Counts::from_console("workload: done openat=6 rea"), None);
    }

    #[test]
    fn it_compiles_to_a_static_executable_with_symbols() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = build_workload(dir.path()).expect("build");
        let bytes = std::fs::read(path).expect("read");
        let file = object::File::parse(&*bytes).expect("elf");
        use object::{Object, ObjectSymbol};
        let mut names = file
            .symbols()
            .filter_map(|symbol| symbol.name().ok().map(str::to_owned));
        assert!(names.any(|name| name == "workload_open"));
        assert!(file.section_by_name(".interp").is_none());
    }

    #[test]
    fn the_other_inits_compile() {
        let dir = tempfile::tempdir().expect("tempdir");
        for build in [
            build_kprobes,
            build_overhead,
            build_ground,
            build_breakpoint,
            build_detector,
            build_threads,
        ] {
            assert!(build(dir.path()).expect("build").exists());
        }
    }
}
