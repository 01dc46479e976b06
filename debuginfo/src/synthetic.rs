//! Small programs with debug information, compiled by the host's gcc.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// `leaf` is inlined into `one` and `two`.
const LEAF_H: &str = "\
extern volatile int sink;
static inline __attribute__((always_inline)) void leaf(int n)
{
	sink = n;
	sink += 1;
}
";
const A_C: &str = "\
#include \"leaf.h\"
volatile int sink;
__attribute__((noinline)) int one(int n)
{
	leaf(n);
	return n;
}
__attribute__((noinline)) int two(int n)
{
	sink = 7;
	if (n)
		leaf(n + 1);
	return n * 3;
}
int begin(void)
{
	return one(1) + two(2);
}
";
/// A second file of the same name.
const SUB_A_C: &str = "\
extern volatile int sink;



int other(void)
{
	sink = 9;
	return 5;
}
";
const CODE_S: &str = "\
	.text
	.globl	code
code:
	nop
	ret
";

/// The line of the first statement of `leaf`.
pub const LEAF_LINE: u64 = 4;
/// The line of `one` that calls `leaf`, and that of `two`.
pub const CALL_LINES: [u64; 2] = [5, 12];

/// A linked program and its sources, removed when dropped.
#[derive(Debug)]
pub struct Program {
    dir: TempDir,
}

impl Program {
    /// Compiles the program with more `flags`.
    ///
    /// # Panics
    ///
    /// Without a C compiler that knows the flags.
    #[must_use]
    pub fn compile(flags: &[&str]) -> Self {
        let sources = [
            ("leaf.h", LEAF_H),
            ("a.c", A_C),
            ("sub/a.c", SUB_A_C),
            ("code.S", CODE_S),
        ];
        Self::of_sources(&sources, flags)
    }

    /// Compiles `sources`, names with texts, with more `flags`. The first function is `begin`.
    ///
    /// # Panics
    ///
    /// If the compiler refuses the sources.
    #[must_use]
    pub fn of_sources(sources: &[(&str, &str)], flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::create_dir(dir.path().join("sub")).expect("a directory");
        for (name, text) in sources {
            fs::write(dir.path().join(name), text).expect("write");
        }
        let units = sources.iter().map(|(name, _)| *name);
        let units = units.filter(|name| !name.ends_with(".h"));
        let output = Command::new("gcc")
            .current_dir(dir.path())
            .args([
                "-g",
                "-O2",
                "-ffreestanding",
                "-nostdlib",
                "-static",
                "-no-pie",
                "-fno-pic",
            ])
            .args([
                "-fcf-protection=none",
                "-Wl,-e,begin",
                "-Wl,--build-id=sha1",
            ])
            .args(flags)
            .args(["-o", "program"])
            .args(units)
            .output()
            .expect("gcc");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Self { dir }
    }

    /// The ELF file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("program")
    }

    /// The answer of binutils' addr2line: the function and `file:line` of each frame, the innermost first.
    ///
    /// # Panics
    ///
    /// Without addr2line.
    #[must_use]
    pub fn addr2line(&self, address: u64) -> Vec<(String, String)> {
        let output = Command::new("addr2line")
            .args(["-f", "-i", "-e"])
            .arg(self.path())
            .arg(format!("{address:#x}"))
            .output()
            .expect("addr2line");
        let text = String::from_utf8(output.stdout).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        let (pairs, _) = lines.as_chunks::<2>();
        let frame = |[function, place]: &[&str; 2]| {
            // A discriminator may follow.
            let place = place.split(' ').next().unwrap_or_default();
            let place = place.rsplit_once("/sub/").map_or_else(
                || place.rsplit('/').next().unwrap_or_default().to_owned(),
                |(_, name)| format!("sub/{name}"),
            );
            ((*function).to_owned(), place)
        };
        pairs.iter().map(frame).collect()
    }
}
