//! The signature of a system call, whose types are texts in C.

use super::declared::{kind, pointee};
use super::names::EnumNames;
use super::{
    Kind, Macros, Parameter, Shape, Signature, ValuePlace, buffers_are_no_strings, shortened,
};
use super::{MAX_DECLARED_BYTES, MAX_NAME_BYTES};
use crate::btf::Btf;
use crate::syscalls::SyscallArgument;

/// System calls that return an address as a `long`.
const RETURN_ADDRESSES: [&str; 4] = ["brk", "mmap", "mremap", "shmat"];
/// System calls whose `flags` are those of an opened file.
const OPEN_CALLS: [&str; 2] = ["open", "openat"];
/// The ends of names of strings that a length may follow: the length is not theirs.
const PATHS: [&str; 3] = ["path", "pathname", "filename"];

impl Signature {
    /// The signature of the system call `name` with these arguments. The place of argument N is register N: the reader has the
    /// caller's registers in the order of a function's.
    #[must_use]
    pub fn of_syscall(types: &Btf, name: &str, arguments: &[SyscallArgument]) -> Self {
        let params = (0..).zip(arguments).map(|(number, argument)| Parameter {
            name: shortened(&argument.name, MAX_NAME_BYTES),
            place: ValuePlace::Register(number),
            shape: Shape {
                declared: shortened(&argument.declared, MAX_DECLARED_BYTES),
                kind: kind(types, &argument.declared),
                macros: None,
            },
            pointee: pointee(types, &argument.declared),
        });
        let mut params: Vec<Parameter> = params.collect();
        buffers_are_no_strings(&mut params, Parameter::is_integer);
        for (param, argument) in params.iter_mut().zip(arguments) {
            if PATHS.iter().any(|path| argument.name.ends_with(path)) {
                param.shape.kind = kind(types, &argument.declared);
            }
        }
        let names = EnumNames::new(types, params.iter().flat_map(Parameter::kinds));
        Self::with_long_result(name, params, names)
    }

    /// The same, for a system call whose arguments have no types: the parameters are those of the function that does the work.
    #[must_use]
    pub fn as_syscall(self, name: &str) -> Self {
        Self::with_long_result(name, self.params, self.names)
    }

    fn with_long_result(name: &str, mut params: Vec<Parameter>, names: EnumNames) -> Self {
        if OPEN_CALLS.contains(&name) {
            for param in params.iter_mut().filter(|param| &*param.name == "flags") {
                param.shape.macros = Some(Macros::OpenFlags);
            }
        }
        let kind = if RETURN_ADDRESSES.contains(&name) {
            Kind::Pointer
        } else {
            Kind::Integer {
                bytes: 8,
                signed: true,
            }
        };
        Self {
            params,
            returns: Some(Shape {
                declared: "long".into(),
                kind,
                macros: None,
            }),
            names,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;

    fn types() -> Btf {
        let mut blob = Blob::new();
        let short = blob.int("short unsigned int", 2);
        blob.record("umode_t", (8, false), 0, short, &[]);
        blob.enumeration("rule", false, &[("PATH_BENEATH", 1)]);
        Btf::parse(blob.finish()).expect("types")
    }

    fn signature(name: &str, arguments: &[(&str, &str)]) -> Signature {
        let arguments: Vec<_> = arguments
            .iter()
            .map(|(declared, name)| SyscallArgument {
                name: (*name).into(),
                declared: (*declared).into(),
            })
            .collect();
        Signature::of_syscall(&types(), name, &arguments)
    }

    fn kinds(arguments: &[(&str, &str)]) -> Vec<Kind> {
        let params = signature("f", arguments).params.into_iter();
        params.map(|param| param.shape.kind).collect()
    }

    #[test]
    fn types_are_found_by_their_text() {
        let int = |bytes, signed| Kind::Integer { bytes, signed };
        let found = kinds(&[
            ("int", "a"),
            ("unsigned long", "b"),
            ("const char *", "c"),
            ("umode_t", "d"),
            ("const struct sigaction *", "e"),
            ("mystery_t", "f"),
        ]);
        assert_eq!(
            found,
            [
                int(4, true),
                int(8, false),
                Kind::String,
                int(2, false),
                Kind::Pointer,
                Kind::Word { bytes: 8 },
            ]
        );
        let signature = signature("f", &[("enum rule", "type")]);
        let rule = &signature.params[0];
        assert_eq!(rule.place, ValuePlace::Register(0));
        assert_eq!(
            signature.meaning(&rule.shape, 1).as_deref(),
            Some("PATH_BENEATH"),
            "{rule:?}"
        );
        assert_eq!(
            kinds(&[
                ("const char *const *", "argv"),
                ("unsigned", "n"),
                ("char", "c")
            ]),
            [Kind::Pointer, int(4, false), int(1, true)]
        );
    }

    #[test]
    fn only_flags_of_opened_files_have_the_names_of_macros() {
        let meaning = |name, argument| {
            let signature = signature(name, &[("int", argument)]);
            let shape = &signature.params[0].shape;
            let meaning = signature.meaning(shape, -0x7fff_ff00);
            meaning.map(std::borrow::Cow::into_owned)
        };
        let shown = Some("O_RDONLY|O_NOCTTY|0x80000000".to_owned());
        assert_eq!(meaning("openat", "flags"), shown);
        assert_eq!(meaning("open", "flags"), shown);
        assert_eq!(meaning("openat", "mode"), None);
        assert_eq!(meaning("unlinkat", "flags"), None);
    }

    #[test]
    fn a_path_before_a_length_is_a_string_and_another_is_a_buffer() {
        assert_eq!(
            kinds(&[("const char *", "path"), ("long", "length")])[0],
            Kind::String
        );
        assert_eq!(
            kinds(&[("const char *", "buf"), ("unsigned long", "count")])[0],
            Kind::Pointer
        );
    }

    #[test]
    fn results_are_long_and_addresses_where_they_are() {
        let kind = |name| signature(name, &[]).returns.expect("a result").kind;
        assert_eq!(kind("mmap"), Kind::Pointer);
        assert_eq!(
            kind("read"),
            Kind::Integer {
                bytes: 8,
                signed: true
            }
        );
    }
}
