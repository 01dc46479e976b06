//! Compiles the freestanding guests with the system's gcc.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thiserror::Error;

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
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| BuildError::Io { path, source }
    };
    fs::create_dir_all(out_dir).map_err(io(out_dir))?;
    let work = tempfile::tempdir_in(out_dir).map_err(io(out_dir))?;
    for Source { name, text } in sources {
        let path = work.path().join(name);
        fs::write(&path, text).map_err(io(&path))?;
    }
    let units = sources
        .iter()
        .map(|source| source.name)
        .filter(|name| is_unit(name));
    let gcc = Command::new("gcc")
        .current_dir(work.path())
        .env("LC_ALL", "C")
        .args(flags)
        // The name of the directory is new each time, and debug information has the name.
        .arg(format!("-ffile-prefix-map={}=.", work.path().display()))
        // gcc asks for the directory's name here first.
        .env("PWD", work.path())
        .args(["-o", output])
        .args(units)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| BuildError::NoCompiler {
            output: output.to_owned(),
            source,
        })?;
    if !gcc.status.success() {
        return Err(BuildError::Compile {
            output: output.to_owned(),
            detail: String::from_utf8_lossy(&gcc.stderr).trim_end().to_owned(),
        });
    }
    let path = out_dir.join(output);
    fs::rename(work.path().join(output), &path).map_err(io(&path))?;
    Ok(path)
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
            let path = compile(dir.path(), "a", &[source], &flags).expect("it compiles");
            fs::read(path).expect("read")
        };
        assert!(bytes() == bytes());
    }
}
