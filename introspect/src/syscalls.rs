//! The kernel's own description of its system calls: names, and the names and types of arguments.
//!
//! A kernel with `CONFIG_FTRACE_SYSCALLS` has a `struct syscall_metadata` for each system call that it implements, and a table of pointers
//! to them between two marks of the linker. The types are texts in C, as in the source.
//!
//! ```text
//!  __start_syscalls_metadata ─▶ ptr ─▶ { name "sys_openat", nb_args 4, types ─▶ ["int", "const char *", …],
//!  __stop_syscalls_metadata     ptr                                    args  ─▶ ["dfd", "filename", …] }
//! ```
//!
//! The kernel frees the table after boot, so the kernel's file is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use address::Gva;

use crate::btf::{Btf, Member};
use crate::image::ImageReader;
use crate::{ImageSource, SymbolTable};

const START: &str = "__start_syscalls_metadata";
const STOP: &str = "__stop_syscalls_metadata";
/// The beginning of a description's name of a system call.
const NAME_PREFIX: &str = "sys_";

/// The number of registers for the arguments of a system call.
const MAX_ARGUMENTS: u64 = 6;

/// An argument of a system call, as the kernel's source declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyscallArgument {
    /// The name.
    pub name: Arc<str>,
    /// The type in C.
    pub declared: Arc<str>,
}

/// The system calls that a kernel describes.
#[derive(Clone, Debug, Default)]
pub struct Syscalls {
    calls: BTreeMap<String, Vec<SyscallArgument>>,
}

impl Syscalls {
    /// Reads the descriptions; empty if the kernel has none, or if its types do not have the layout of a description.
    #[must_use]
    pub fn read(source: &dyn ImageSource, symbols: &SymbolTable, types: &Btf) -> Self {
        let Some(reader) = Reader::new(source, types) else {
            return Self::default();
        };
        let described = reader.image.table(symbols, START, STOP);
        Self {
            calls: described.filter_map(|at| reader.call(at)).collect(),
        }
    }

    /// The arguments of the system call `name`, without the prefix `sys_`; `None` if the kernel does not describe the call.
    #[must_use]
    pub fn arguments(&self, name: &str) -> Option<&[SyscallArgument]> {
        self.calls.get(name).map(Vec::as_slice)
    }
}

/// Reads descriptions, with the layout by the kernel's types.
struct Reader<'s> {
    image: ImageReader<'s>,
    name: Member,
    number: Member,
    types: Member,
    names: Member,
}

impl<'s> Reader<'s> {
    fn new(source: &'s dyn ImageSource, types: &Btf) -> Option<Self> {
        let metadata = types.struct_named("syscall_metadata")?;
        let member = |name| types.member(metadata, name);
        Some(Self {
            image: ImageReader::new(source),
            name: member("name")?,
            number: member("nb_args")?,
            types: member("types")?,
            names: member("args")?,
        })
    }

    fn call(&self, at: Gva) -> Option<(String, Vec<SyscallArgument>)> {
        let pointer = |member: &Member| self.image.pointer(at.wrapping_add(member.offset_bytes));
        let name = self.image.text(pointer(&self.name)?)?;
        let name = name.strip_prefix(NAME_PREFIX)?.to_owned();
        let number = self.number(at)?;
        if number == 0 {
            // The arrays of a call without arguments are null pointers.
            return Some((name, Vec::new()));
        }
        let (types, names) = (pointer(&self.types)?, pointer(&self.names)?);
        let text = |array, number| self.image.text(self.image.element(array, number)?);
        let arguments = (0..number).map(|number| {
            Some(SyscallArgument {
                name: text(names, number)?.into(),
                declared: text(types, number).map(|text| without_attributes(&text))?,
            })
        });
        Some((name, arguments.collect::<Option<_>>()?))
    }

    /// The number of arguments; in newer kernels, some bits of a byte.
    fn number(&self, at: Gva) -> Option<u64> {
        let at = at.wrapping_add(self.number.offset_bytes);
        let mut number = self.image.number(at, self.number.size_bytes)?;
        if let Some(bits) = self.number.bits {
            number = number.checked_shr(bits.offset.into())?;
            number &= !u64::MAX.checked_shl(bits.size.into()).unwrap_or(0);
        }
        (number <= MAX_ARGUMENTS).then_some(number)
    }
}

/// A type without the compiler's attributes, which stand in place of `__user` if the compiler has tags for types.
fn without_attributes(declared: &str) -> Arc<str> {
    const ATTRIBUTE: &str = "__attribute__((";
    const END: &str = "))";
    let mut text = declared.to_owned();
    while let Some(start) = text.find(ATTRIBUTE) {
        // An attribute has an argument in parentheses of its own: btf_type_tag("user").
        let rest = &text[start + ATTRIBUTE.len()..];
        let closed = rest.find(END).map(|end| {
            let behind = &rest[end + END.len()..];
            behind.strip_prefix(')').unwrap_or(behind).to_owned()
        });
        text.truncate(start);
        text.push_str(closed.as_deref().unwrap_or_default());
    }
    let words = text.split_whitespace().filter(|word| *word != "__user");
    words.collect::<Vec<_>>().join(" ").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;
    use crate::{NotInImage, SymbolTableBuilder};

    const BASE: u64 = 0xffff_ffff_8200_0000;
    /// The offset of the first description, behind the table.
    const FIRST: u64 = 0x100;
    const STRIDE: u64 = 0x40;

    /// Memory from [`BASE`] on.
    struct Image {
        bytes: Vec<u8>,
        next: u64,
    }

    impl Image {
        fn new() -> Self {
            Self {
                bytes: vec![0; 0x2000],
                next: 0x1000,
            }
        }

        fn put(&mut self, at: u64, bytes: &[u8]) {
            let at = usize::try_from(at).expect("small");
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn pointer(&mut self, at: u64, to: u64) {
            self.put(at, &(BASE + to).to_le_bytes());
        }

        /// Adds bytes of an even length, and gives their offset.
        fn add(&mut self, bytes: &[u8]) -> u64 {
            let at = self.next;
            self.put(at, bytes);
            self.next += (bytes.len() as u64 + 1).next_multiple_of(8);
            at
        }

        fn array(&mut self, texts: &[&str]) -> u64 {
            let at: Vec<u64> = texts.iter().map(|text| self.add(text.as_bytes())).collect();
            let pointers: Vec<u8> = at.iter().flat_map(|at| (BASE + at).to_le_bytes()).collect();
            self.add(&pointers)
        }

        /// The description with the number `index`, with `number` in the field of the number of arguments.
        fn describe(&mut self, index: u64, name: &str, number: u32, arguments: &[(&str, &str)]) {
            let at = FIRST + index * STRIDE;
            self.pointer(index * 8, at);
            let text = self.add(name.as_bytes());
            self.pointer(at, text);
            self.put(at + 12, &number.to_le_bytes());
            let types: Vec<&str> = arguments.iter().map(|(ty, _)| *ty).collect();
            let names: Vec<&str> = arguments.iter().map(|(_, name)| *name).collect();
            let (types, names) = (self.array(&types), self.array(&names));
            self.pointer(at + 16, types);
            self.pointer(at + 24, names);
        }

        fn read(&self, calls: u64, types: &Btf) -> Syscalls {
            let mut symbols = SymbolTableBuilder::new();
            symbols.push(Gva(BASE), 'D', START);
            symbols.push(Gva(BASE + calls * 8), 'D', STOP);
            Syscalls::read(self, &symbols.build(), types)
        }
    }

    impl ImageSource for Image {
        fn read_linked(&self, address: Gva, buf: &mut [u8]) -> Result<(), NotInImage> {
            let found = address.offset_from(Gva(BASE)).and_then(|at| {
                let at = usize::try_from(at).ok()?;
                self.bytes.get(at..at.checked_add(buf.len())?)
            });
            let missing = NotInImage {
                address,
                len: buf.len(),
            };
            buf.copy_from_slice(found.ok_or(missing)?);
            Ok(())
        }
    }

    /// The types of a kernel whose number of arguments is an `int`, or seven bits of a byte.
    fn types(is_narrow: bool) -> Btf {
        let mut blob = Blob::new();
        let int = blob.int("int", 4);
        let byte = blob.int("unsigned char", 1);
        let pointer = blob.pointer(int);
        let number = if is_narrow { (byte, 7 << 24) } else { (int, 0) };
        blob.structure_in_bits(
            "syscall_metadata",
            (4, is_narrow),
            64,
            &[
                ("name", pointer, 0),
                ("syscall_nr", int, 64),
                ("nb_args", number.0, number.1 | 96),
                ("types", pointer, 128),
                ("args", pointer, 192),
            ],
        );
        Btf::parse(blob.finish()).expect("types")
    }

    fn texts(calls: &Syscalls, name: &str) -> Option<Vec<String>> {
        let arguments = calls.arguments(name)?.iter();
        Some(
            arguments
                .map(|it| format!("{} {}", it.declared, it.name))
                .collect(),
        )
    }

    #[test]
    fn each_described_call_has_names_and_types_of_its_arguments() {
        let tagged = "const char __attribute__((btf_type_tag(\"user\"))) *";
        let close = &[("unsigned int", "fd")];
        let open = &[("int", "dfd"), (tagged, "filename"), ("umode_t", "mode")];
        for (is_narrow, number) in [(false, 3), (true, 0x83)] {
            let mut image = Image::new();
            image.describe(0, "sys_close", 1, close);
            image.describe(1, "sys_open", number, open);
            image.describe(2, "sys_getpid", 0, &[]);
            let calls = image.read(3, &types(is_narrow));
            assert_eq!(texts(&calls, "close").expect("there"), ["unsigned int fd"]);
            assert_eq!(
                texts(&calls, "open").expect("there"),
                ["int dfd", "const char * filename", "umode_t mode"]
            );
            assert_eq!(calls.arguments("getpid"), Some(&[][..]));
            assert_eq!(calls.arguments("fork"), None);
        }
    }

    #[test]
    fn broken_descriptions_are_left_out() {
        let mut image = Image::new();
        image.describe(0, "sys_many", 7, &[("int", "a")]);
        image.describe(1, "close", 1, &[("int", "a")]);
        image.describe(2, "sys_short", 6, &[("int", "a")]);
        image.describe(3, "sys_good", 1, &[("int", "a")]);
        image.pointer(4 * 8, 0x10_0000);
        let calls = image.read(5, &types(false));
        assert_eq!(calls.calls.len(), 1);
        assert!(calls.arguments("good").is_some());
        // A table without an end, and types without the layout.
        assert!(
            image
                .read(1 << 20, &types(false))
                .arguments("good")
                .is_some()
        );
        let none = Btf::parse(Blob::new().finish()).expect("types");
        assert_eq!(image.read(5, &none).arguments("good"), None);
    }
}
