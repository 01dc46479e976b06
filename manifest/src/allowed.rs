//! The accesses to watched data that an expectation allows.

use std::fmt;

use introspect::glob_matches;

/// The allowed accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Accesses that write or read one of the values.
    Values(Vec<i64>),
    /// Accesses by instructions of these functions: names and patterns, in a module `MODULE:NAME`.
    Functions(Vec<String>),
}

impl Allowed {
    /// Whether an access by the instruction at `symbol`, `name+0xoffset`, that writes or reads the number `value` of `bytes` bytes is allowed.
    #[must_use]
    pub fn is_allowed(&self, symbol: &str, value: u64, bytes: u8) -> bool {
        match self {
            Self::Values(values) => {
                let unused = 64 - 8 * u32::from(bytes.clamp(1, 8));
                let mask = u64::MAX >> unused;
                // A negative number of 4 bytes has zeros in front of it in an event.
                let is_it = |allowed: &i64| {
                    let is_signed = allowed << unused >> unused == *allowed;
                    let bits = allowed.cast_unsigned();
                    (is_signed || bits <= mask) && bits & mask == value & mask
                };
                values.iter().any(is_it)
            }
            Self::Functions(names) => {
                let is_it = |name: &String| is_of(name, symbol);
                names.iter().any(is_it)
            }
        }
    }
}

/// Whether the instruction at `symbol`, `name+0xoffset` or `name+0xoffset [module]`, is of a function called `wanted`.
fn is_of(wanted: &str, symbol: &str) -> bool {
    // The delivery of an exception, or an address without a symbol.
    let Some((function, offset)) = symbol.split_once("+0x") else {
        return false;
    };
    let module = offset.split_once(" [").map(|(_, module)| module);
    let module = module.map(|module| module.trim_end_matches(']'));
    let matches = |pattern: &str, name: &str| pattern == name || glob_matches(pattern, name);
    match (wanted.split_once(':'), module) {
        (None, None) => matches(wanted, function),
        (Some((of, name)), Some(module)) => matches(of, module) && matches(name, function),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Prints the condition, behind the name of the probe.
impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = match self {
            Self::Values(values) => {
                f.write_str("has only the values ")?;
                values.iter().map(ToString::to_string).collect()
            }
            Self::Functions(names) => {
                f.write_str("is accessed only by ")?;
                names.clone()
            }
        };
        f.write_str(&texts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_allowed_if_the_watched_bytes_hold_it() {
        let allowed = Allowed::Values(vec![0, 5, -1, 0x8000_0000, -2]);
        let is_allowed = |value, bytes| allowed.is_allowed("f+0x1", value, bytes);
        for (value, bytes) in [
            (0, 1),
            (5, 8),
            (0xff, 1),
            (0xffff_ffff, 4),
            (u64::MAX, 8),
            (0x8000_0000, 4),
            (0x8000_0000, 8),
            (0xfffe, 2),
        ] {
            assert!(is_allowed(value, bytes), "{value:#x}:{bytes}");
        }
        for (value, bytes) in [
            (1, 1),
            (0xff, 2),
            (0xffff_ffff, 8),
            (0x105, 2),
            (0x8000, 2),
            (4, 4),
        ] {
            assert!(!is_allowed(value, bytes), "{value:#x}:{bytes}");
        }
        // The bytes of a smaller variable cannot hold the number.
        let large = Allowed::Values(vec![0x105, 0x8000_0000]);
        assert!(!large.is_allowed("f", 5, 1) && !large.is_allowed("f", 0, 2));
    }

    #[test]
    fn function_is_allowed_by_its_name_or_a_pattern() {
        let allowed = Allowed::Functions(vec!["f".to_owned(), "do_proc_*".to_owned()]);
        let is_allowed = |symbol| allowed.is_allowed(symbol, 0, 8);
        assert!(is_allowed("f+0x10") && is_allowed("f+0x0"));
        assert!(!is_allowed("f+0x10 [m]") && !is_allowed("f"));
        assert!(is_allowed("do_proc_dointvec_conv+0x1d"));
        assert!(!is_allowed("g+0x10") && !is_allowed("f.cold+0x1") && !is_allowed("do_proc+0x1"));
        let all = Allowed::Functions(vec!["*".to_owned()]);
        let is_allowed = |symbol| all.is_allowed(symbol, 0, 8);
        assert!(is_allowed("f+0x1") && !is_allowed("f+0x1 [m]"));
        assert!(!is_allowed("delivery of vector 0xe") && !is_allowed("0xffffffff81000000"));
        let of_module = Allowed::Functions(vec!["m:proc_*".to_owned()]);
        let is_allowed = |symbol| of_module.is_allowed(symbol, 0, 8);
        assert!(is_allowed("proc_x+0x1 [m]"));
        assert!(!is_allowed("proc_x+0x1 [n]") && !is_allowed("proc_x+0x1"));
    }
}
