use address::Gva;

use super::handmade::{self, CODE, line_program, range, unit};
use super::{addresses, frames, open, symbol};
use crate::synthetic::{CALL_LINES, LEAF_LINE, Program};

#[test]
fn inlined_line_has_one_address_in_each_function_around() {
    let mut info = open(&Program::compile(&[]));
    let lines = info.places_of_line("leaf.h", LEAF_LINE).expect("lines");
    let copies = info.inlined_copies("leaf").expect("copies");
    for places in [lines, copies] {
        assert_eq!(places.len(), 2);
        for (address, (around, call)) in addresses(&places)
            .into_iter()
            .zip(["one", "two"].into_iter().zip(CALL_LINES))
        {
            let symbol = symbol(&info, around);
            assert!((symbol.address..symbol.end().expect("an end")).contains(&address));
            let frames = frames(&mut info, address);
            assert_eq!(frames[0].0, "leaf");
            assert_eq!(frames[1], (around.to_owned(), format!("a.c:{call}")));
        }
    }
}

#[test]
fn copies_of_different_functions_of_one_name_are_refused_with_the_declarations() {
    const A_C: &str = "\
volatile int sink;
static inline __attribute__((always_inline)) void leaf(int n) { sink = n; }
__attribute__((noinline)) void one(int n) { leaf(n); }
void two(int);
void begin(void) { one(1); two(2); }
";
    const B_C: &str = "\
extern volatile int sink;

static inline __attribute__((always_inline)) int leaf(int n) { sink = 3 * n; return n; }
void two(int n) { sink = leaf(n); }
";
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let info = open(&Program::of_sources(
            &[("a.c", A_C), ("sub/b.c", B_C)],
            &[version],
        ));
        let error = info.inlined_copies("leaf").expect_err("two functions");
        let expected = "several inlined functions have the name `leaf`: a.c:2, sub/b.c:3";
        assert_eq!(error.to_string(), expected);
        assert_eq!(info.places_of_line("a.c", 2).expect("a line").len(), 1);
    }
}

#[test]
fn copies_of_a_function_in_a_header_are_those_of_one_function() {
    const HEADER: &str = "\
extern volatile int sink;
static inline __attribute__((always_inline)) void leaf(int n) { sink = n; }
";
    const A_C: &str = "\
#include \"leaf.h\"
volatile int sink;
void two(int);
void begin(void) { leaf(1); two(2); }
";
    const B_C: &str = "\
#include \"../leaf.h\"
void two(int n) { leaf(n); }
";
    let sources = [("leaf.h", HEADER), ("a.c", A_C), ("sub/b.c", B_C)];
    let info = open(&Program::of_sources(&sources, &[]));
    assert_eq!(info.inlined_copies("leaf").expect("copies").len(), 2);
}

#[test]
fn entry_as_a_number_is_a_distance_from_the_first_range() {
    // A unit with a copy of `leaf`, which has a name of its own, two ranges, and an entry.
    let table = |form: u8| {
        let mut table = b"\x01\x11\x01\x11\x01\0\0\x02\x1d\0\x03\x08\x55\x17\x52".to_vec();
        table.extend([form, 0, 0, 0]);
        table
    };
    let mut ranges = range(0x20, 0x30);
    ranges.extend(range(0x10, 0x18));
    ranges.extend(range(0, 0));
    // DW_FORM_data1, DW_FORM_data4 and DW_FORM_udata.
    let forms: [(u8, &[u8]); 3] = [(0x0b, &[4]), (0x06, &[4, 0, 0, 0]), (0x0f, &[4])];
    for (form, distance) in forms {
        let mut entries = vec![1];
        entries.extend(CODE.to_le_bytes());
        entries.extend(b"\x02leaf\0\0\0\0\0");
        entries.extend(distance);
        entries.push(0);
        let info = handmade::open(&[
            (".debug_info", &unit(0, &entries)),
            (".debug_abbrev", &table(form)),
            (".debug_ranges", &ranges),
            (".debug_line", &line_program(&[])),
        ]);
        let copies = info.expect("a file").inlined_copies("leaf");
        let found = addresses(&copies.expect("a copy"));
        assert_eq!(found, [Gva(CODE + 0x24)], "{form:#x}");
    }
}
