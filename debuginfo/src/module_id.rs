//! The build-id of a module's file, read without the rest of the file.
//!
//! A process with all rights of its user compares the build-id of a file that a server has sent. The process reads the table of sections and the
//! notes; debug sections, symbols and relocations are for the process that looks lines up.

use std::path::Path;

use introspect::BuildId;
use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::read::{ReadCache, ReadRef};

use crate::elf::MAX_HEADERS;
use crate::error::OpenError;
use crate::stored::Stored;

/// The most bytes of all sections with notes together: the sections of a hostile file may overlap. The notes of a module have some hundred bytes.
const MAX_NOTES_BYTES: u64 = 64 << 10;

type SectionHeader = elf::SectionHeader64<LittleEndian>;

/// The size of a section's entry in the table of sections.
const SECTION_HEADER_BYTES: u64 = 64;

/// The build-id of the module's file at `path`, which may be compressed by xz or zstd; `None` if the file has none. The file may have `max_bytes`, and
/// decompressed, too.
///
/// # Errors
///
/// See [`OpenError`].
pub fn module_build_id(path: &Path, max_bytes: u64) -> Result<Option<BuildId>, OpenError> {
    match Stored::open_within(path, max_bytes)? {
        Stored::File(file) => of_data(&ReadCache::new(file)),
        Stored::Memory(bytes) => of_data(bytes.as_slice()),
    }
}

fn of_data<'data, R: ReadRef<'data>>(data: R) -> Result<Option<BuildId>, OpenError> {
    let header = FileHeader64::<LittleEndian>::parse(data).map_err(OpenError::Elf)?;
    let endian = header.endian().map_err(OpenError::Elf)?;
    let number = header.shnum(endian, data).map_err(OpenError::Elf)?;
    if number > MAX_HEADERS {
        return Err(OpenError::TooLarge {
            max: u64::from(MAX_HEADERS) * SECTION_HEADER_BYTES,
        });
    }
    let sections = header.section_headers(endian, data);
    let mut left = MAX_NOTES_BYTES;
    let is_notes = |section: &&SectionHeader| section.sh_type(endian) == elf::SHT_NOTE;
    for section in sections.map_err(OpenError::Elf)?.iter().filter(is_notes) {
        if let Some(after) = left.checked_sub(section.sh_size(endian)) {
            left = after;
            let notes = section.data(endian, data).map_err(OpenError::Elf)?;
            if let Some(build_id) = BuildId::of_notes(notes) {
                return Ok(Some(build_id));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DebugInfo;
    use crate::synthetic::Program;

    #[test]
    fn build_id_is_that_of_the_opened_file_and_the_size_has_a_limit() {
        let source = "int f(void)\n{\n\treturn 1;\n}\n";
        let program = Program::of_sources(&[("m.c", source)], &["-r"]);
        let path = program.path();
        let info = DebugInfo::open_module(&path, &[]).expect("a module");
        let build_id = module_build_id(&path, 1 << 20).expect("a module");
        assert!(build_id.is_some());
        assert_eq!(build_id.as_ref(), info.build_id());
        let error = module_build_id(&path, 100).expect_err("too large");
        assert!(error.to_string().contains("100"), "{error}");
    }

    #[test]
    fn damaged_file_has_no_build_id_or_an_error() {
        let folder = tempfile::tempdir().expect("tempdir");
        let program = Program::of_sources(&[("m.c", "int f;\n")], &["-r"]);
        let contents = std::fs::read(program.path()).expect("read");
        let path = folder.path().join("m.ko");
        for len in (0..contents.len()).step_by(37) {
            std::fs::write(&path, &contents[..len]).expect("written");
            assert!(
                !matches!(module_build_id(&path, 1 << 20), Ok(Some(_))),
                "{len}"
            );
        }
        // The offset of the sections, their number and the size of each.
        for byte in [0x28, 0x2a, 0x2f, 0x3a, 0x3c, 0x3d] {
            let mut damaged = contents.clone();
            damaged[byte] ^= 0xff;
            std::fs::write(&path, &damaged).expect("written");
            let _ = module_build_id(&path, 1 << 20);
        }
    }
}
