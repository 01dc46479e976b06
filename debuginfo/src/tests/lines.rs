use super::{addresses, open, symbol};
use crate::DebugInfo;
use crate::synthetic::{CALL_LINES, Program};

/// As `get_current` in the kernel: in `without`, the statement's row has no instruction of its own, but the copy has one of the line.
pub(super) const CURRENT: &str = "\
struct task { long mm; long state; };
struct image { long size; long data; };
static inline __attribute__((always_inline)) struct task *cur(void)
{
	struct task *task;
	asm(\"mov %%gs:0x1fb80,%0\" : \"=r\"(task));
	return task;
}
__attribute__((noinline)) void with(struct image *new)
{
	cur()->state = 1;
	new->size = 2;
}
__attribute__((noinline)) int without(struct image *old, struct image *new)
{
	if (old->size == 3)
		old->data = 4;
	cur()->mm = new->data;
	return 0;
}
void begin(void)
{
	struct image i = {1, 2};
	asm(\"\" :: \"r\"(&i) : \"memory\");
	with(&i); without(&i, &i);
}
";

#[test]
fn line_of_a_call_has_one_address_although_the_copy_begins_there() {
    let info = open(&Program::compile(&[]));
    for (line, around) in CALL_LINES.into_iter().zip(["one", "two"]) {
        let symbol = symbol(&info, around);
        // `sub/a.c` has no such line.
        let addresses = info.places_of_line("a.c", line).expect(around);
        assert_eq!(addresses.len(), 1, "{around}");
        assert!((symbol.address..symbol.end().expect("an end")).contains(&addresses[0].address));
    }
}

#[test]
fn line_that_only_calls_an_inlined_function_has_the_beginnings_of_the_copies() {
    const CONSOLE: &str = include_str!("../../../guest-images/testguest/console.c");
    let dir = tempfile::tempdir().expect("tempdir");
    let guest = guest_images::build_testguest(dir.path()).expect("the test guest compiles");
    let info = DebugInfo::open(&guest).expect("debug information");
    let line = CONSOLE.lines().position(|line| line.contains("out8(COM1"));
    let line = line.expect("a line") as u64 + 1;
    let found = info.places_of_line("console.c", line).expect("a place");
    let copies = info.inlined_copies("out8").expect("copies");
    assert!(
        addresses(&found)
            .iter()
            .all(|address| addresses(&copies).contains(address)),
        "{found:?} {copies:?}"
    );
    // `out8` is called in other files, too.
    assert!(!found.is_empty() && found.len() < copies.len());
}

#[test]
fn unknown_lines_files_and_functions_are_named() {
    let info = open(&Program::compile(&[]));
    let said = |file: &str, line| info.places_of_line(file, line).expect_err(file).to_string();
    assert_eq!(said("b.c", 1), "no source file of the kernel ends in `b.c`");
    assert_eq!(
        said("ub/a.c", 7),
        "no source file of the kernel ends in `ub/a.c`"
    );
    assert_eq!(
        said("leaf.h", 3),
        "leaf.h has no code in line 3: the next line with code is 4"
    );
    assert_eq!(said("leaf.h", 99), "leaf.h has no code in line 99");
    let ambiguous = said("a.c", 6);
    assert!(
        ambiguous.ends_with("have code in line 6: a.c, sub/a.c"),
        "{ambiguous}"
    );
    assert!(info.places_of_line("sub/a.c", 7).is_ok());
    let error = info.inlined_copies("one").expect_err("never inlined");
    assert_eq!(
        error.to_string(),
        "the kernel has no inlined copy of a function `one`"
    );
}

#[test]
fn each_copy_with_code_of_the_line_has_an_address_although_its_statement_is_empty() {
    let info = open(&Program::of_sources(&[("a.c", CURRENT)], &[]));
    let copies = info.inlined_copies("cur").expect("copies");
    assert_eq!(copies.len(), 2);
    let places = info.places_of_line("a.c", 6).expect("places");
    assert_eq!(addresses(&places), addresses(&copies));
}

/// The tables of clang, and of gcc without statement frontiers, have no rows for calls that leave no instruction.
#[test]
fn copy_called_in_the_line_has_an_address_although_another_function_has_a_row() {
    let source = "\
volatile int sink;
static inline __attribute__((always_inline)) void leaf(int n)
{
	sink = n;
}
static inline __attribute__((always_inline)) void mid(int n)
{
	leaf(n + 1);
}
__attribute__((noinline)) void one(int n)
{
	mid(n);
}
__attribute__((noinline)) void two(void)
{
	mid(5);
}
void begin(void) { one(1); two(); }
";
    let flags = [
        "-gno-statement-frontiers",
        "-gno-inline-points",
        "-gno-variable-location-views",
    ];
    let info = open(&Program::of_sources(&[("a.c", source)], &flags));
    let copies = info.inlined_copies("mid").expect("copies");
    assert_eq!(copies.len(), 2);
    let places = info.places_of_line("a.c", 8).expect("places");
    assert_eq!(addresses(&places), addresses(&copies));
}

#[test]
fn rows_without_instructions_in_one_function_have_one_address() {
    let source = "\
volatile int sink;
__attribute__((noinline)) int f(int n)
{
# 5 \"a.c\"
	int dead = n;
# 6
	sink = n;
# 5
	dead = 2;
# 7
	sink = 7;
# 5
	dead = 3;
# 8
	sink = 8; return n;
}
void begin(void) { f(1); }
";
    let info = open(&Program::of_sources(&[("a.c", source)], &[]));
    assert_eq!(info.places_of_line("a.c", 5).expect("places").len(), 1);
}

#[test]
fn file_with_two_numbers_has_one_address_for_each_function() {
    let source = "\
volatile int sink;
__attribute__((noinline)) void f(int n)
{
# 5 \"a.c\"
	sink = n;
# 5 \"./a.c\"
	sink = 7;
}
void begin(void) { f(1); }
";
    let info = open(&Program::of_sources(&[("a.c", source)], &[]));
    assert_eq!(info.places_of_line("a.c", 5).expect("places").len(), 1);
}

#[test]
fn line_in_both_parts_of_a_function_has_its_place_in_the_part_that_is_executed_often() {
    const A_C: &str = "\
volatile int sink;
__attribute__((cold, noinline)) void fail(int n) { sink = n; }
__attribute__((noinline)) int f(int n)
{
	if (n) fail(n), sink = 3;
	sink = 4;
	return n;
}
int begin(void) { return f(1); }
";
    // The linker puts `.text.unlikely` before `.text`.
    let info = open(&Program::of_sources(&[("a.c", A_C)], &["-gdwarf-5"]));
    let (often, seldom) = (symbol(&info, "f"), symbol(&info, "f.cold"));
    assert!(seldom.address < often.address);
    let places = info.places_of_line("a.c", 5).expect("a line");
    let [place] = places[..] else {
        panic!("{places:?}");
    };
    assert!((often.address..often.end().expect("an end")).contains(&place.address));
}
