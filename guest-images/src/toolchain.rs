//! Compiles the freestanding guests with the system's gcc.
//!
//! Each test is a process, and hundreds of tests need the same guest: where the environment names a directory for compiled guests, a guest
//! is compiled once for the same sources, flags and compiler.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thiserror::Error;

use crate::digest::Digest;

/// The environment variable with the directory of compiled guests, which `.cargo/config.toml` sets.
const COMPILED: &str = "HYPROBE_COMPILED_GUESTS";

/// Why a guest could not be compiled.
#[derive(Debug, Error)]
pub enum BuildError {
    /// gcc cannot be started.
    #[error("cannot start gcc, which compiles {output}; install it: apt-get install gcc")]
    NoCompiler {
        /// Name of the program to compile.
        output: String,
        /// The cause.
        source: io::Error,
    },
    /// The compiler refused the sources.
    #[error("gcc cannot compile {output}; it needs gcc 10 or later for x86-64:\n{detail}")]
    Compile {
        /// Name of the program to compile.
        output: String,
        /// Error output of gcc.
        detail: String,
    },
    /// The output directory cannot be used.
    #[error("cannot write {path}; name a writable directory")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A source file: embedded in this crate, or made for one guest.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
}

/// Compiles and links `sources` into `out_dir/output` with `flags`. Headers and linker scripts among the sources are only written beside
/// the units. Two calls at the same time are safe: the result is renamed into place.
pub(crate) fn compile(
    out_dir: &Path,
    output: &str,
    sources: &[Source<'_>],
    flags: &[&str],
) -> Result<PathBuf, BuildError> {
    let compiled = env::var_os(COMPILED).map(PathBuf::from);
    let gcc = Gcc {
        output,
        sources,
        flags,
    };
    gcc.make(out_dir, compiled.as_deref())
}

/// One run of gcc.
struct Gcc<'a> {
    output: &'a str,
    sources: &'a [Source<'a>],
    flags: &'a [&'a str],
}

impl Gcc<'_> {
    /// Makes the file in `out_dir`: copies it from the directory `compiled`, or compiles it and leaves a copy there.
    fn make(&self, out_dir: &Path, compiled: Option<&Path>) -> Result<PathBuf, BuildError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| BuildError::Io { path, source }
        };
        fs::create_dir_all(out_dir).map_err(io(out_dir))?;
        let work = tempfile::tempdir_in(out_dir).map_err(io(out_dir))?;
        let made = work.path().join(self.output);
        match compiled {
            None => self.compile(work.path())?,
            Some(compiled) => {
                let kept = compiled.join(self.digest()?.to_string());
                if fs::copy(&kept, &made).is_err() {
                    self.compile(work.path())?;
                    keep(&made, &kept).map_err(io(&kept))?;
                }
            }
        }
        let path = out_dir.join(self.output);
        fs::rename(made, &path).map_err(io(&path))?;
        Ok(path)
    }

    /// A digest of the sources, the flags, and the versions of the compiler, the assembler and the linker.
    fn digest(&self) -> Result<Digest, BuildError> {
        let mut versions = Vec::new();
        for tool in ["gcc", "as", "ld"] {
            let mut tool = Command::new(tool);
            let said = tool.arg("--version").output();
            versions.extend(said.map_err(self.not_started())?.stdout);
        }
        let sources = self.sources.iter();
        let sources = sources.flat_map(|source| [source.name.as_bytes(), source.text.as_bytes()]);
        let flags = self.flags.iter().map(|flag| flag.as_bytes());
        let mut all = Vec::new();
        for part in sources
            .chain(flags)
            .chain([self.output.as_bytes(), &versions])
        {
            all.extend_from_slice(&part.len().to_le_bytes());
            all.extend_from_slice(part);
        }
        Ok(Digest::of(&all))
    }

    /// Compiles the sources, which are written to the directory `work`, into that directory.
    fn compile(&self, work: &Path) -> Result<(), BuildError> {
        for Source { name, text } in self.sources {
            let path = work.join(name);
            fs::write(&path, text).map_err(|source| BuildError::Io { path, source })?;
        }
        let names = self.sources.iter().map(|source| source.name);
        let gcc = Command::new("gcc")
            .current_dir(work)
            .env("LC_ALL", "C")
            .args(self.flags)
            // The name of the directory is new each time, and debug information has the name.
            .arg(format!("-ffile-prefix-map={}=.", work.display()))
            // gcc asks for the directory's name here first.
            .env("PWD", work)
            .args(["-o", self.output])
            .args(names.filter(|name| is_unit(name)))
            .stdin(Stdio::null())
            .output()
            .map_err(self.not_started())?;
        if gcc.status.success() {
            return Ok(());
        }
        Err(BuildError::Compile {
            output: self.output.to_owned(),
            detail: String::from_utf8_lossy(&gcc.stderr).trim_end().to_owned(),
        })
    }

    fn not_started(&self) -> impl FnOnce(io::Error) -> BuildError {
        let output = self.output.to_owned();
        move |source| BuildError::NoCompiler { output, source }
    }
}

/// Copies the file `from` to `to`, which another process may do at the same time.
fn keep(from: &Path, to: &Path) -> io::Result<()> {
    let dir = to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let copy = tempfile::tempdir_in(dir)?;
    let part = copy.path().join("guest");
    fs::copy(from, &part)?;
    fs::rename(part, to)
}

fn is_unit(name: &str) -> bool {
    name.ends_with(".c") || name.ends_with(".S")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_error_is_shown() {
        let dir = tempfile::tempdir().expect("tempdir");
        let source = Source {
            name: "a.c",
            text: "int f(void) { return nonsense; }\n",
        };
        let error = compile(dir.path(), "a", &[source], &["-nostdlib"]).expect_err("nonsense");
        assert!(
            error.to_string().contains("'nonsense' undeclared"),
            "{error}"
        );
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    /// A sweep continues only with the same guest.
    #[test]
    fn the_same_sources_make_the_same_file_in_any_directory() {
        let bytes = || {
            let dir = tempfile::tempdir().expect("tempdir");
            let source = Source {
                name: "a.c",
                text: "int f(void) { return 1; }\n",
            };
            let flags = ["-g1", "-nostdlib", "-static", "-Wl,--build-id=none,-ef"];
            let gcc = Gcc {
                output: "a",
                sources: &[source],
                flags: &flags,
            };
            let path = gcc.make(dir.path(), None).expect("it compiles");
            fs::read(path).expect("read")
        };
        assert!(bytes() == bytes());
    }

    #[test]
    fn file_is_compiled_once_for_the_same_sources_flags_and_compiler() {
        let dir = tempfile::tempdir().expect("tempdir");
        let kept = dir.path().join("kept");
        let made = |text: &str, flags: &[&str]| {
            let source = Source { name: "a.c", text };
            let gcc = Gcc {
                output: "a",
                sources: &[source],
                flags,
            };
            fs::read(
                gcc.make(&dir.path().join("out"), Some(&kept))
                    .expect("made"),
            )
            .expect("read")
        };
        let number = || fs::read_dir(&kept).expect("list").count();
        let flags = ["-nostdlib", "-static", "-Wl,-ef"];
        let first = made("int f(void) { return 1; }\n", &flags);
        assert!(made("int f(void) { return 1; }\n", &flags) == first);
        assert_eq!(number(), 1);
        // The copy is what counts, not another run of gcc.
        let file = fs::read_dir(&kept)
            .expect("list")
            .next()
            .expect("a file")
            .expect("a file");
        fs::write(file.path(), "kept").expect("written");
        assert!(made("int f(void) { return 1; }\n", &flags) == b"kept");
        made("int f(void) { return 2; }\n", &flags);
        made(
            "int f(void) { return 1; }\n",
            &["-nostdlib", "-static", "-Wl,-ef", "-O2"],
        );
        assert_eq!(number(), 3);
    }
}
