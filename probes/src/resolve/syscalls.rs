//! Resolves system calls to the functions that the kernel's entry code calls for them.
//!
//! Since 4.17, the entry code calls `__x64_sys_NAME` for each system call of a 64-bit program, through `sys_call_table` in older kernels and
//! through a `switch` in newer ones. A probe at the function's entry does not depend on the path to the function.

use introspect::Symbol;
use manifest::{Location, ProbeSpec};

use super::{
    MAX_GLOB_MATCHES, NEAR_NAMES, Place, Refusal, ResolveProblem, Resolved, function, is_function,
    place, with_location,
};
use crate::arguments::ArgumentSource;
use crate::kernel::Kernel;

/// The beginning of the name of a system call's function.
pub(crate) const PREFIX: &str = "__x64_sys_";
/// Beginnings of names under which a user may know a system call.
const OTHER_PREFIXES: [&str; 5] = ["__x64_sys_", "__do_sys_", "sys_enter_", "sys_exit_", "sys_"];
/// The beginning of the name of a call that has replaced another: 64-bit programs call `newfstat` only.
const NEWER: &str = "new";
/// The function for all numbers without a system call.
const NOT_IMPLEMENTED: &str = "ni_syscall";
/// The number of similar functions among which similar system calls are looked for.
const NEAR_FUNCTIONS: usize = 64;

/// The sites of the system calls that `spec` means.
pub(super) fn resolve(kernel: &Kernel, spec: &ProbeSpec) -> Result<Vec<Resolved>, ResolveProblem> {
    match &spec.location {
        Location::Glob(pattern) => matches(kernel, spec, pattern),
        Location::Symbol { name, .. } => named(kernel, spec, name).map(|found| vec![found]),
        Location::Address(address) => Err(ResolveProblem::NotCode { address: *address }),
        Location::Line { .. } | Location::Inlined(_) | Location::Data(_) | Location::Program(_) => {
            Err(ResolveProblem::NoDebugInfo)
        }
    }
}

fn named(kernel: &Kernel, spec: &ProbeSpec, name: &str) -> Result<Resolved, ResolveProblem> {
    let symbol = match function(kernel, &format!("{PREFIX}{name}")) {
        Ok(_) if is_call(kernel, &format!("{NEWER}{name}")) => {
            return Err(ResolveProblem::OldSyscall {
                name: name.to_owned(),
            });
        }
        Ok(symbol) if is_implemented(&symbol) => symbol,
        Ok(_) => {
            return Err(ResolveProblem::NotImplemented {
                name: name.to_owned(),
            });
        }
        Err(ResolveProblem::NoSymbol { .. }) => {
            return Err(ResolveProblem::NoSyscall {
                name: name.to_owned(),
                near: near_names(kernel, name),
            });
        }
        Err(problem) => return Err(problem),
    };
    Ok(Resolved {
        name: spec.to_string().into(),
        place: place::at_offset(kernel, &symbol, 0)?.map(of_caller),
    })
}

/// The system calls of the kernel whose names match.
fn matches(
    kernel: &Kernel,
    spec: &ProbeSpec,
    pattern: &str,
) -> Result<Vec<Resolved>, ResolveProblem> {
    let mut found = Vec::new();
    for symbol in kernel.symbols().matching(&format!("{PREFIX}{pattern}")) {
        let Some(name) = symbol.name.strip_prefix(PREFIX) else {
            continue;
        };
        if !is_function(kernel, &symbol) || !is_implemented(&symbol) || name == NOT_IMPLEMENTED {
            continue;
        }
        if found.len() == MAX_GLOB_MATCHES {
            return Err(ResolveProblem::TooMany {
                most: MAX_GLOB_MATCHES,
            });
        }
        let location = Location::Symbol {
            name: name.to_owned(),
            offset: 0,
        };
        let place = place::at_offset(kernel, &symbol, 0)
            .unwrap_or_else(|problem| Err(Refusal::Unsuitable(problem.to_string())))
            .map(of_caller);
        found.push(Resolved {
            name: with_location(spec, location),
            place,
        });
    }
    if found.is_empty() {
        return Err(ResolveProblem::NoMatchingSyscall {
            pattern: pattern.to_owned(),
        });
    }
    Ok(found)
}

fn of_caller(place: Place) -> Place {
    Place {
        arguments: ArgumentSource::Caller,
        ..place
    }
}

/// Whether the kernel has code for the system call. For the others, the build has weak functions that return `ENOSYS`.
const fn is_implemented(symbol: &Symbol) -> bool {
    matches!(symbol.kind, 'T' | 't')
}

/// Whether the kernel implements the system call `name`.
fn is_call(kernel: &Kernel, name: &str) -> bool {
    let symbol = kernel.symbols().lookup(&format!("{PREFIX}{name}"));
    symbol.is_some_and(|symbol| is_implemented(&symbol))
}

/// The names of system calls similar to `name`; first those that other names for `name` stand for: `fstat` is `newfstat`.
fn near_names(kernel: &Kernel, name: &str) -> Vec<String> {
    let prefixes = OTHER_PREFIXES.into_iter();
    let bare = prefixes.filter_map(|prefix| name.strip_prefix(prefix));
    let bare = bare.min_by_key(|bare| bare.len()).unwrap_or(name);
    let likely = [
        bare.to_owned(),
        format!("{NEWER}{bare}"),
        format!("{bare}64"),
        format!("rt_{bare}"),
    ];
    let mut near: Vec<String> = likely
        .into_iter()
        .filter(|name| is_call(kernel, name))
        .collect();
    let similar = kernel
        .symbols()
        .nearest_names(&format!("{PREFIX}{bare}"), NEAR_FUNCTIONS);
    for function in similar {
        if let Some(name) = function.strip_prefix(PREFIX).map(str::to_owned)
            && !near.contains(&name)
            && is_call(kernel, &name)
        {
            near.push(name);
        }
    }
    near.truncate(NEAR_NAMES);
    near
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::SyntheticKernel;
    use super::super::{ResolveError, resolve};
    use super::*;

    const RET: [u8; 1] = [0xc3];

    fn kernel() -> Kernel {
        let mut kernel = SyntheticKernel::new();
        for name in [
            "openat",
            "newfstat",
            "newstat",
            "stat",
            "read",
            "pread64",
            "ni_syscall",
        ] {
            kernel.function(&format!("{PREFIX}{name}"), &RET);
        }
        kernel.weak_function(&format!("{PREFIX}old_read"), &RET);
        kernel.function("__ia32_sys_read", &RET);
        kernel.function("__x64_sys_readv.cold", &RET);
        // No instruction in 64-bit mode.
        kernel.function(&format!("{PREFIX}read_bad"), &[0x06]);
        kernel.kernel()
    }

    fn names(spec: &str) -> Result<Vec<(String, bool)>, ResolveError> {
        let found = resolve(&kernel(), &spec.parse().expect("a probe"), 0)?;
        let name = |found: &Resolved| (found.name.to_string(), found.place.is_ok());
        Ok(found.iter().map(name).collect())
    }

    fn problem(spec: &str) -> (String, Option<String>) {
        let error = names(spec).expect_err("it cannot be meant");
        (error.problem.to_string(), error.help())
    }

    #[test]
    fn a_name_is_the_function_of_the_64_bit_call() {
        let found = resolve(&kernel(), &"syscall:read".parse().expect("a probe"), 0);
        let found = found.expect("there").remove(0);
        assert_eq!(&*found.name, "syscall:read");
        let place = found.place.expect("it can be probed");
        assert_eq!(&*place.symbol, "__x64_sys_read+0x0");
        assert_eq!(
            names("retsyscall:read").expect("there"),
            [("retsyscall:read".to_owned(), true)]
        );
    }

    #[test]
    fn a_glob_is_every_implemented_call_that_matches_and_refuses_by_itself() {
        let found = names("syscall:*read*").expect("some match");
        let of = |name: &str, good| (format!("syscall:{name}"), good);
        assert_eq!(
            found,
            [of("read", true), of("pread64", true), of("read_bad", false)]
        );
        assert_eq!(names("syscall:*").expect("some match").len(), 7);
    }

    #[test]
    fn calls_that_are_not_there_are_named_with_near_names() {
        let (text, help) = problem("syscall:fstat");
        assert_eq!(text, "the kernel has no system call `fstat`");
        assert!(help.expect("help").starts_with("near names: newfstat"));
        let (_, help) = problem("syscall:sys_enter_openat");
        assert!(help.expect("help").starts_with("near names: openat"));
        let (text, help) = problem("syscall:stat");
        assert_eq!(
            text,
            "no 64-bit program makes the system call `stat`, which `newstat` has replaced"
        );
        assert_eq!(help.as_deref(), Some("write newstat"));
        let (text, _) = problem("syscall:old_read");
        assert_eq!(
            text,
            "the kernel was built without the system call `old_read`"
        );
        let (text, _) = problem("retsyscall:x*");
        assert_eq!(text, "no system call's name matches `x*`");
    }
}
