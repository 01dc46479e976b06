//! An executable, prepared as the init of the outer Linux.

use std::io;
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf::{FileHeader64, PT_INTERP, PT_LOAD, ProgramHeader64, ProgramType};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use thiserror::Error;

const ELF_HEADER_BYTES: usize = 64;
/// The place of the section table's offset in the ELF header; the entry size, count and name index are in the last 6 bytes.
const SECTION_TABLE_OFFSET_AT: usize = 40;
const SECTION_TABLE_SHAPE_AT: usize = 58;

/// Why an executable cannot be the outer Linux's init.
#[derive(Debug, Error)]
pub enum ExecutableError {
    /// The executable of this process cannot be found or read.
    #[error("cannot read hyprobe's own executable, which runs in the outer Linux")]
    Own(#[source] io::Error),
    /// The executable cannot be read.
    #[error("cannot read {}, which runs in the outer Linux", path.display())]
    Read {
        /// The executable.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The executable needs a dynamic linker and libraries, which the outer Linux does not have.
    #[error(
        "{} is dynamically linked, so it cannot run in the outer Linux: build it static, as the .cargo/config.toml of \
         the sources does (RUSTFLAGS='-C target-feature=+crt-static' cargo build --target x86_64-unknown-linux-gnu)",
        path.display()
    )]
    Dynamic {
        /// The executable.
        path: PathBuf,
    },
    /// Linux cannot execute the file.
    #[error("{} is no x86-64 ELF executable", path.display())]
    NotElf {
        /// The executable.
        path: PathBuf,
    },
}

/// The bytes of this process's executable, without the parts that are not loaded.
///
/// # Errors
///
/// The executable cannot be read, or is not static.
pub fn own_executable() -> Result<Vec<u8>, ExecutableError> {
    // Through /proc, the file is found even if a newer build has replaced the file meanwhile.
    let bytes = std::fs::read("/proc/self/exe").map_err(ExecutableError::Own)?;
    let path = std::env::current_exe().map_err(ExecutableError::Own)?;
    loadable_part(bytes, &path)
}

/// The bytes of the executable `path`, without the parts that are not loaded.
///
/// # Errors
///
/// The executable cannot be read, or is not static.
pub fn executable(path: &Path) -> Result<Vec<u8>, ExecutableError> {
    let bytes = std::fs::read(path).map_err(|source| ExecutableError::Read {
        path: path.to_owned(),
        source,
    })?;
    loadable_part(bytes, path)
}

/// Cuts off the bytes behind the last loaded segment: debug information and symbols, most of a development build.
fn loadable_part(mut elf: Vec<u8>, path: &Path) -> Result<Vec<u8>, ExecutableError> {
    let path = path.to_owned();
    let segments = segments(&elf).unwrap_or_default();
    if segments.iter().any(|(kind, _)| *kind == PT_INTERP) {
        return Err(ExecutableError::Dynamic { path });
    }
    let loaded = segments.iter().filter(|(kind, _)| *kind == PT_LOAD);
    let end = loaded.map(|(_, end)| *end).max().unwrap_or(0);
    if end < ELF_HEADER_BYTES || end > elf.len() {
        return Err(ExecutableError::NotElf { path });
    }
    elf.truncate(end);
    // Sections are for linkers and debuggers. A table pointing behind the end would be damage.
    elf[SECTION_TABLE_OFFSET_AT..SECTION_TABLE_OFFSET_AT + 8].fill(0);
    elf[SECTION_TABLE_SHAPE_AT..ELF_HEADER_BYTES].fill(0);
    Ok(elf)
}

/// The kind of each segment, and the end of the segment's bytes in the file; `None` if the file is no 64-bit ELF file or damaged.
fn segments(elf: &[u8]) -> Option<Vec<(ProgramType, usize)>> {
    let header = FileHeader64::<LittleEndian>::parse(elf).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, elf).ok()?.iter();
    let end = |segment: &ProgramHeader64<_>| {
        let (offset, bytes) = (segment.p_offset(endian), segment.p_filesz(endian));
        usize::try_from(offset.checked_add(bytes)?).ok()
    };
    segments
        .map(|segment| Some((segment.p_type(endian), end(segment)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use object::elf::PT_TLS;

    use super::*;

    fn elf(kind: ProgramType) -> Vec<u8> {
        let mut elf = vec![0_u8; 4096];
        elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        elf[32] = 64;
        elf[40] = 0xff;
        elf[54] = 56;
        elf[56] = 1;
        elf[60] = 30;
        elf[64..68].copy_from_slice(&kind.0.to_le_bytes());
        elf[64 + 32..64 + 34].copy_from_slice(&1000_u16.to_le_bytes());
        elf
    }

    fn cut(elf: Vec<u8>) -> Result<Vec<u8>, ExecutableError> {
        loadable_part(elf, Path::new("x"))
    }

    #[test]
    fn bytes_behind_the_loaded_segments_are_cut_off() {
        let kept = cut(elf(PT_LOAD)).expect("static");
        assert_eq!((kept.len(), kept[40], kept[60]), (1000, 0, 0));
    }

    #[test]
    fn a_dynamic_executable_is_refused_with_the_way_to_build_it() {
        let text = cut(elf(PT_INTERP)).expect_err("dynamic").to_string();
        assert!(text.contains("crt-static"), "{text}");
    }

    #[test]
    fn damaged_files_are_refused() {
        let mut beyond = elf(PT_LOAD);
        beyond[64 + 32 + 3] = 1;
        let mut table = elf(PT_LOAD);
        table[32..40].fill(0xff);
        for damaged in [
            beyond,
            table,
            elf(PT_TLS),
            b"#!/bin/sh".to_vec(),
            b"\x7fELF\x02\x01".to_vec(),
        ] {
            assert!(matches!(cut(damaged), Err(ExecutableError::NotElf { .. })));
        }
    }

    #[test]
    fn the_test_itself_is_static_and_still_an_executable() {
        let bytes = own_executable().expect("static");
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("cut");
        std::fs::write(&path, bytes).expect("write");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("chmod");
        let listed = std::process::Command::new(&path)
            .arg("--list")
            .output()
            .expect("start");
        assert!(listed.status.success());
    }
}
