use introspect::signature::Variable;

use super::open;
use crate::DebugInfo;
use crate::synthetic::Program;

/// The variables at the only place of line `line` of `a.c`, as `name declared operand`.
fn at_line(info: &DebugInfo, line: u64) -> Vec<String> {
    let places = info.places_of_line("a.c", line).expect("a line");
    let found = info.variables(&places).expect("variables");
    let [variables] = &found[..] else {
        panic!("{line}: {found:?}");
    };
    variables.iter().map(shown).collect()
}

fn shown(variable: &Variable) -> String {
    let Variable {
        name,
        declared,
        operand,
    } = variable;
    let operand = operand.map_or_else(|| "-".to_owned(), |operand| operand.to_string());
    format!("{name}: {declared}: {operand}")
}

fn program(source: &str, flags: &[&str]) -> DebugInfo {
    open(&Program::of_sources(&[("a.c", source)], flags))
}

#[test]
fn parameters_at_the_entry_are_in_the_registers_of_the_abi() {
    const A_C: &str = "\
struct pair { long a; int b; };
enum order { UP, DOWN };
typedef unsigned char u8;
typedef struct { int value; } counter_t;
volatile long sink;
extern int elsewhere;
__attribute__((noinline)) long f(struct pair *p, const char *name, enum order order, u8 small,
	long (*call)(int), const struct pair *const *list)
{
	sink = 1;
	if (p && name && order && small && call && list) sink = 2;
	return p->a;
}
__attribute__((noinline)) int g(counter_t counter, signed char c, float *d, _Bool flag, struct pair whole, const int *restrict at)
{
	sink = 1;
	asm volatile(\"\" :: \"r\"(d), \"r\"(at));
	return counter.value + c + flag + (int)whole.a;
}
void begin(void)
{
	struct pair p = {1, 2}; counter_t c = {3}; int n = 4;
	f(&p, \"x\", UP, 1, 0, 0); g(c, 1, 0, 1, p, &n);
}
";
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let info = program(A_C, &[version, "-fno-asynchronous-unwind-tables"]);
        assert_eq!(
            at_line(&info, 10),
            [
                "p: struct pair *: 8@%rdi",
                "name: const char *: 8@%rsi",
                "order: enum order: 4@%edx",
                "small: u8: 1@%cl",
                "call: long int (*)(…): 8@%r8",
                "list: const struct pair *const *: 8@%r9",
            ]
        );
        let found = at_line(&info, 16);
        assert_eq!(
            found[..4],
            [
                "counter: counter_t: 4@%edi",
                "c: signed char: -1@%sil",
                "d: float *: 8@%rdx",
                "flag: _Bool: 1@%cl",
            ]
        );
        // A struct of two words has no value that fits into one, and takes the last two registers.
        let expected = ["whole: struct pair: -", "at: const int *: 8@8(%rsp)"];
        assert_eq!(found[4..], expected);
    }
}

/// The displacements from `%rbp` of the stores of the registers `from` in `function`, by binutils.
fn stores(program: &Program, function: &str, from: &[&str]) -> Vec<String> {
    let output = std::process::Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(format!("--disassemble={function}"))
        .arg(program.path())
        .output()
        .expect("objdump, of binutils");
    let text = String::from_utf8(output.stdout).expect("text");
    let store = |register: &&str| {
        let line = text.lines().find_map(|line| {
            let (_, place) = line.split_once(&format!("mov    %{register},"))?;
            place.strip_suffix("(%rbp)")?.strip_prefix("-0x")
        });
        let digits = line.unwrap_or_else(|| panic!("{register}: {text}"));
        let below = u64::from_str_radix(digits.trim(), 16).expect("a number");
        format!("@-{below}(%rbp)")
    };
    from.iter().map(store).collect()
}

#[test]
fn variables_of_a_frame_are_where_the_code_stores_them() {
    const A_C: &str = "\
volatile long sink;
long f(long first, int second)
{
	long local = first + 1;
	sink = local;
	return second;
}
void begin(void) { f(1, 2); }
";
    let flags = ["-O0", "-fno-asynchronous-unwind-tables"];
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let flags = [&flags[..], &[version]].concat();
        let program = Program::of_sources(&[("a.c", A_C)], &flags);
        let [first, second, local] = &stores(&program, "f", &["rdi", "esi", "rax"])[..] else {
            panic!("three stores");
        };
        assert_eq!(
            at_line(&open(&program), 5),
            [
                format!("first: long int: -8{first}"),
                format!("second: int: -4{second}"),
                format!("local: long int: -8{local}"),
            ]
        );
    }
    // A program that is unwound in another way has no frames in `.debug_frame`, and its variables no place.
    let info = program(A_C, &["-O0", "-fasynchronous-unwind-tables"]);
    assert_eq!(at_line(&info, 5), ["first: long int: -", "second: int: -"]);
}

#[test]
fn inlined_copy_has_the_arguments_of_its_call() {
    const A_C: &str = "\
struct pair { long a; long b; };
volatile long sink;
static inline __attribute__((always_inline)) void leaf(long n, unsigned char small, struct pair *p)
{
	sink = n;
	p->a = small;
}
__attribute__((noinline)) void constants(struct pair *p) { leaf(-7, 200, p); }
__attribute__((noinline)) void registers(long n, unsigned char c, struct pair *p) { leaf(n, c, p); }
void begin(void) { struct pair p; constants(&p); registers(1, 2, &p); sink = p.a; }
";
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let info = program(A_C, &[version]);
        let places = info.inlined_copies("leaf").expect("copies");
        let found = info.variables(&places).expect("variables");
        let found: Vec<Vec<String>> = found
            .iter()
            .map(|variables| variables.iter().map(shown).collect())
            .collect();
        let constants = [
            "n: long int: -8@$-7",
            "small: unsigned char: 1@$200",
            "p: struct pair *: 8@%rdi",
        ];
        let registers = [
            "n: long int: -8@%rdi",
            "small: unsigned char: 1@%sil",
            "p: struct pair *: 8@%rdx",
        ];
        assert!(found.iter().any(|it| *it == constants), "{found:#?}");
        assert!(found.iter().any(|it| *it == registers), "{found:#?}");
    }
}

#[test]
fn variable_of_an_inner_block_hides_that_of_the_function() {
    const A_C: &str = "\
volatile long sink;
extern long shared;
long shared;
__attribute__((noinline)) void f(long n, long other)
{
	extern long shared;
	static long counter;
	if (other) {
		int n = (int)sink;
		sink = n + shared + counter++;
	} else {
		long elsewhere = sink;
		sink = elsewhere + 1;
	}
	sink = n;
}
void begin(void) { f(1, 2); f(2, 0); }
";
    let info = program(A_C, &["-O0", "-fno-asynchronous-unwind-tables"]);
    let names = |line| {
        let found = at_line(&info, line).into_iter();
        let names = found.map(|text| text.rsplit_once(':').expect("a place").0.to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(10), ["other: long int", "n: int"]);
    assert_eq!(
        names(13),
        ["n: long int", "other: long int", "elsewhere: long int"]
    );
    assert_eq!(names(15), ["n: long int", "other: long int"]);
}

#[test]
fn declaration_within_a_function_does_not_hide_the_frame_of_a_copy_behind() {
    const A_C: &str = "\
volatile long sink;
static inline __attribute__((always_inline)) void leaf(long n, long *at)
{
	long local = n + sink;
	*at = local;
	sink = local;
}
void f(long n)
{
	long here = 3;
	{ extern void elsewhere(void); if (n == -1) elsewhere(); }
	leaf(n, &here);
	sink = here;
}
void elsewhere(void) { sink = 1; }
void begin(void) { f(1); }
";
    let flags = ["-O0", "-fno-asynchronous-unwind-tables"];
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let info = program(A_C, &[&flags[..], &[version]].concat());
        let places = info.places_of_line("a.c", 5).expect("a line");
        let found = info.variables(&places).expect("variables");
        let found: Vec<String> = found.concat().iter().map(shown).collect();
        let names: Vec<&str> = found
            .iter()
            .filter(|text| text.contains("(%rbp)"))
            .map(|text| text.split(':').next().expect("a name"))
            .collect();
        assert_eq!(names, ["n", "at", "local"], "{found:?}");
    }
}

#[test]
fn value_of_16_bytes_has_no_operand() {
    const A_C: &str = "\
volatile long sink; struct pair { long a, b; };
__attribute__((noinline)) void f(struct pair *const p)
{
	unsigned __int128 big = 5;
	sink = (long)big;
	sink = p->a;
}
void begin(void) { struct pair p = {1, 2}; f(&p); }
";
    let info = program(A_C, &[]);
    assert_eq!(at_line(&info, 5), ["p: struct pair *const: 8@%rdi"]);
}
