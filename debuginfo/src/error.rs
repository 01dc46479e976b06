//! Errors of the file and of look-ups.

use std::io;

use files::ReadError;
use thiserror::Error;

/// Why a file cannot be used for source lines.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file cannot be opened, or is not a regular file.
    #[error(transparent)]
    File(#[from] ReadError),
    /// The file is not an ELF file, or the ELF file contradicts itself.
    #[error("it is not a readable 64-bit ELF file")]
    Elf(#[source] object::read::Error),
    /// An ELF file for another processor.
    #[error("it is an ELF file for machine {machine}, not for x86-64")]
    Machine {
        /// The file's `e_machine`.
        machine: u16,
    },
    /// An object file or a module, whose addresses are not known before the load.
    #[error(
        "it is an object file or a module, not a linked kernel: give the vmlinux with debug information"
    )]
    Relocatable,
    /// A linked file in place of a module.
    #[error("it is a linked file, not a module")]
    NotAModule,
    /// The file cannot be decompressed.
    #[error("it cannot be decompressed")]
    Compressed(#[source] io::Error),
    /// A debug section of a module refers to an address in a way that compilers do not use.
    #[error(
        "the relocation of its section {section} at offset {offset:#x} is damaged, or of a type that hyprobe does not know"
    )]
    Relocation {
        /// The section.
        section: &'static str,
        /// The offset in the section.
        offset: u64,
    },
    /// The file has no debug information.
    #[error("it has no section {section}: give a file with debug information (CONFIG_DEBUG_INFO)")]
    NoDebugInfo {
        /// The missing section.
        section: &'static str,
    },
    /// The debug information is compressed in a form that the compilers have given up.
    #[error(
        "its debug information is in sections .zdebug_*, an old form of compression: decompress them with `objcopy --decompress-debug-sections`"
    )]
    OldCompression,
    /// The compiler has put the functions of a unit into another file.
    #[error(
        "its functions are in other files (split DWARF), which hyprobe does not read: build the kernel without CONFIG_DEBUG_INFO_SPLIT"
    )]
    Split,
    /// The debug information is too large.
    #[error("its debug information and symbols have more than {max} bytes")]
    TooLarge {
        /// The maximum number of bytes.
        max: u64,
    },
    /// A section cannot be read or decompressed.
    #[error("cannot read its section {section}")]
    Section {
        /// The section.
        section: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The units of the debug information cannot be read.
    #[error("cannot read its debug information")]
    Units(#[from] LookupError),
}

/// Why a look-up has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LookupError {
    /// The debug information is damaged, or has a form that this version cannot read.
    #[error("the debug information is damaged in the unit at offset {unit:#x} of .debug_info")]
    Dwarf {
        /// The offset of the compilation unit.
        unit: u64,
        /// The cause.
        source: gimli::Error,
    },
    /// A look-up would take more steps than an intact file of the size needs.
    #[error("the debug information refers to itself too often, as a damaged file does")]
    TooComplex,
}

/// Why a source line has no addresses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LineError {
    /// The debug information.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// No unit has such a file.
    #[error("no source file of the kernel ends in `{file}`")]
    NoFile {
        /// The file of the request.
        file: String,
    },
    /// Several files have code for the line.
    #[error("several source files end in `{file}` and have code in line {line}: {}", .files.join(", "))]
    Ambiguous {
        /// The file of the request.
        file: String,
        /// The line of the request.
        line: u64,
        /// The files, at most a few.
        files: Vec<String>,
    },
    /// The compiler made no code for the line.
    #[error("{file} has no code in line {line}{}", next_line(.next))]
    NoCode {
        /// The file of the request.
        file: String,
        /// The line of the request.
        line: u64,
        /// The next line with code.
        next: Option<u64>,
    },
}

fn next_line(next: &Option<u64>) -> String {
    match next {
        Some(next) => format!(": the next line with code is {next}"),
        None => String::new(),
    }
}

/// Why a function has no inlined copies.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InlinedError {
    /// The debug information.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The compiler inlined no function of the name.
    #[error("the kernel has no inlined copy of a function `{function}`")]
    NoCopy {
        /// The function of the request.
        function: String,
    },
    /// Several inlined functions have the name.
    #[error(
        "several inlined functions have the name `{function}`: {}",
        .declarations.join(", ")
    )]
    Ambiguous {
        /// The function of the request.
        function: String,
        /// `file:line` of the declarations, at most a few.
        declarations: Vec<String>,
    },
}
