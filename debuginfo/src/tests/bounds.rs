//! Small files that refer to large tables again and again.

use std::io::Write as _;
use std::time::{Duration, Instant};

use address::Gva;

use super::handmade::{CODE, elf, line_program, open, range, sized, uleb128, unit};
use crate::{DebugInfo, LookupError, OpenError};

/// More than any file of these tests takes, on a slow host.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn table_of_abbreviations_that_units_share_is_read_once() {
    const COUNT: usize = 30_000;
    let mut table = b"\x01\x11\0\0\0".to_vec();
    for code in 2..COUNT {
        table.extend(uleb128(code));
        table.extend(b"\x34\0\0\0");
    }
    table.push(0);
    let started = Instant::now();
    let info = open(&[
        (".debug_info", &unit(0, &[1]).repeat(COUNT)),
        (".debug_abbrev", &table),
        (".debug_line", &line_program(&[])),
    ]);
    assert!(info.is_ok(), "{info:?}");
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}

#[test]
fn tables_of_abbreviations_that_overlap_are_too_complex() {
    const COUNT: usize = 30_000;
    // Each unit's table begins one entry behind that of the unit before.
    let mut table = Vec::new();
    for code in 0..2 * COUNT {
        table.extend(uleb128(0x4000 + code));
        table.extend(b"\x11\0\0\0");
    }
    table.push(0);
    let units = (0..COUNT).flat_map(|index| unit(7 * index, &uleb128(0x4000 + index)));
    let units: Vec<u8> = units.collect();
    let started = Instant::now();
    let info = open(&[
        (".debug_info", &units),
        (".debug_abbrev", &table),
        (".debug_line", &line_program(&[])),
    ]);
    let error = info.expect_err("too complex");
    assert!(
        matches!(error, OpenError::Units(LookupError::TooComplex)),
        "{error:?}"
    );
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}

#[test]
fn header_of_a_line_program_that_units_share_is_too_complex() {
    const COUNT: usize = 20_000;
    let mut header = vec![1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0];
    header.extend(b"a\0\0\0\0".repeat(COUNT));
    header.push(0);
    let mut program = 4_u16.to_le_bytes().to_vec();
    program.extend(sized(&header));
    let table = b"\x01\x11\0\x10\x17\0\0\0";
    let started = Instant::now();
    let info = open(&[
        (".debug_info", &unit(0, &[1, 0, 0, 0, 0]).repeat(COUNT)),
        (".debug_abbrev", table),
        (".debug_line", &sized(&program)),
    ]);
    let error = info.expect_err("too complex");
    assert!(
        matches!(error, OpenError::Units(LookupError::TooComplex)),
        "{error:?}"
    );
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}

/// A unit of `a.c` with the function `f`, which has `ranges`, and a row of line 5 for each of `rows` bytes.
fn rows_and_ranges(rows: usize, functions: usize, ranges: &[u8]) -> DebugInfo {
    let table =
        b"\x01\x11\x01\x10\x17\x11\x01\x12\x07\0\0\x02\x2e\0\x03\x08\x55\x17\0\0\0".to_vec();
    let mut entries = vec![1, 0, 0, 0, 0];
    entries.extend(CODE.to_le_bytes());
    entries.extend((rows as u64).to_le_bytes());
    entries.extend(b"\x02f\0\0\0\0\0".repeat(functions));
    entries.push(0);
    let mut program = b"\0\x09\x02".to_vec();
    program.extend(CODE.to_le_bytes());
    program.extend(b"\x03\x04\x01");
    // The opcode for the next address and the same line.
    program.extend(vec![32; rows]);
    program.extend(b"\x02\x01\0\x01\x01");
    let info = open(&[
        (".debug_info", &unit(0, &entries)),
        (".debug_abbrev", &table),
        (".debug_ranges", ranges),
        (".debug_line", &line_program(&program)),
    ]);
    info.expect("a file that can be opened")
}

#[test]
fn line_with_many_rows_and_ranges_is_found_in_the_time_of_their_sum() {
    const COUNT: usize = 80_000;
    // None of the ranges has a row.
    let mut ranges = range(1 << 40, (1 << 40) + 1).repeat(COUNT);
    ranges.extend(range(0, 0));
    let info = rows_and_ranges(COUNT, 1, &ranges);
    let started = Instant::now();
    let found = info.places_of_line("a.c", 5).expect("rows");
    assert!(found.len() >= COUNT);
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}

#[test]
fn rows_in_many_ranges_are_too_complex() {
    const COUNT: usize = 20_000;
    // Offsets from the unit's lowest address.
    let mut ranges = range(0, COUNT as u64).repeat(COUNT);
    ranges.extend(range(0, 0));
    let info = rows_and_ranges(COUNT, 1, &ranges);
    let started = Instant::now();
    let error = info.places_of_line("a.c", 5).expect_err("too complex");
    assert_eq!(error.to_string(), LookupError::TooComplex.to_string());
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}

#[test]
fn unit_that_is_too_complex_is_decoded_once() {
    const COUNT: usize = 10_000;
    // Each function has the ranges of all.
    let mut ranges = range(1, 2).repeat(COUNT);
    ranges.extend(range(0, 0));
    let mut info = rows_and_ranges(COUNT, COUNT, &ranges);
    let started = Instant::now();
    let first = info.lines_at(Gva(CODE));
    assert_eq!(first, Err(LookupError::TooComplex));
    let once = started.elapsed();
    for address in CODE..CODE + 1000 {
        assert_eq!(info.lines_at(Gva(address)), first);
    }
    let all = started.elapsed();
    assert!(all < 20 * once, "{once:?} {all:?}");
}

#[test]
fn symbol_table_larger_than_the_maximum_is_refused_before_it_is_read() {
    let sections: [(&str, &[u8]); 3] = [
        (".debug_info", b""),
        (".debug_abbrev", b"\0"),
        (".debug_line", b""),
    ];
    let six_gib = 6 << 30;
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&elf(&sections, Some(six_gib)))
        .expect("write");
    file.as_file().set_len(7 << 30).expect("a sparse file");
    let error = DebugInfo::open(file.path()).expect_err("refused");
    assert!(matches!(error, OpenError::TooLarge { .. }), "{error:?}");
}
