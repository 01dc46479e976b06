//! Files with debug information that no compiler makes.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::{DebugInfo, OpenError};

/// The lowest address of the code.
pub(super) const CODE: u64 = 0xffff_ffff_8100_0000;

fn u32_of(size: usize) -> u32 {
    u32::try_from(size).expect("a small size")
}

/// `number` in LEB128.
pub(super) fn uleb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(0x80 | number.to_le_bytes()[0] & 0x7f);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
    bytes
}

/// The bytes `body` behind their size.
pub(super) fn sized(body: &[u8]) -> Vec<u8> {
    let mut bytes = u32_of(body.len()).to_le_bytes().to_vec();
    bytes.extend(body);
    bytes
}

/// A unit of DWARF 4 with the table of abbreviations at `table`.
pub(super) fn unit(table: usize, entries: &[u8]) -> Vec<u8> {
    let mut body = 4_u16.to_le_bytes().to_vec();
    body.extend(u32_of(table).to_le_bytes());
    body.push(8);
    body.extend(entries);
    sized(&body)
}

/// A line program of the file `a.c`.
pub(super) fn line_program(program: &[u8]) -> Vec<u8> {
    let mut header = vec![1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0];
    header.extend(b"a.c\0\0\0\0\0");
    let mut body = 4_u16.to_le_bytes().to_vec();
    body.extend(sized(&header));
    body.extend(program);
    sized(&body)
}

/// A section header of an ELF file: the words from `sh_type` on.
fn section_header(name: usize, kind: u32, words: [u64; 3], link: u32, entry: u64) -> Vec<u8> {
    let [offset, size, align] = words;
    let mut bytes = u32_of(name).to_le_bytes().to_vec();
    bytes.extend(kind.to_le_bytes());
    for word in [0, 0, offset, size] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(link.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(align.to_le_bytes());
    bytes.extend(entry.to_le_bytes());
    bytes
}

/// An ELF file with `sections`, and a symbol table of `symbols` bytes behind the end.
pub(super) fn elf(sections: &[(&str, &[u8])], symbols: Option<u64>) -> Vec<u8> {
    const SYMBOLS_OFFSET: u64 = 1 << 20;
    let mut names = vec![0];
    let (mut headers, mut contents) = (vec![0; 64], Vec::new());
    let mut add = |name: &str, content: &[u8], contents: &mut Vec<u8>| {
        let place = [64 + contents.len() as u64, content.len() as u64, 1];
        headers.extend(section_header(names.len(), 1, place, 0, 0));
        names.extend(name.as_bytes());
        names.push(0);
        contents.extend(content);
    };
    for (name, content) in sections {
        add(name, content, &mut contents);
    }
    add(".names", b"", &mut contents);
    let place = [64 + contents.len() as u64, names.len() as u64, 1];
    headers.truncate(headers.len() - 64);
    headers.extend(section_header(0, 3, place, 0, 0));
    contents.extend(names);
    let names_index = u16::try_from(sections.len() + 1).expect("few");
    if let Some(size) = symbols {
        let place = [SYMBOLS_OFFSET, size, 8];
        headers.extend(section_header(0, 2, place, u32::from(names_index), 24));
    }
    let count = u16::try_from(headers.len() / 64).expect("few");
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [0, 0, 64 + contents.len() as u64] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64, 0, 0, 64, count, names_index] {
        file.extend(half.to_le_bytes());
    }
    file.extend(contents);
    file.extend(headers);
    file
}

/// The file with the contents `bytes`, in a directory.
fn written(bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("hostile");
    fs::write(&path, bytes).expect("write");
    (dir, path)
}

/// Opens an ELF file with `sections`.
pub(super) fn open(sections: &[(&str, &[u8])]) -> Result<DebugInfo, OpenError> {
    let (_dir, path) = written(&elf(sections, None));
    DebugInfo::open(&path)
}

/// An entry of `.debug_ranges`.
pub(super) fn range(begin: u64, end: u64) -> Vec<u8> {
    [begin, end].map(u64::to_le_bytes).concat()
}
