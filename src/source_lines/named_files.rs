//! The files that the user names by `--debug-info`: one for the kernel, and one for each module.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The endings of a module's file and of its debug file.
const MODULE_ENDINGS: [&str; 6] = [
    ".ko.debug",
    ".ko",
    ".ko.debug.xz",
    ".ko.debug.zst",
    ".ko.xz",
    ".ko.zst",
];

/// Why the named files do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("--debug-info names two files of a kernel: {first} and {second}")]
pub(crate) struct TwoKernelsError {
    first: PathBuf,
    second: PathBuf,
}

/// Files with debug information.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamedFiles {
    /// That of the kernel.
    kernel: Option<PathBuf>,
    /// Those of modules, by the names of the modules.
    pub(super) modules: HashMap<String, Vec<PathBuf>>,
}

impl NamedFiles {
    /// Sorts `paths`: the file of a module has the name of one.
    pub(crate) fn new(paths: &[PathBuf]) -> Result<Self, TwoKernelsError> {
        let mut named = Self::default();
        for path in paths {
            if let Some(module) = module_of(path) {
                named.modules.entry(module).or_default().push(path.clone());
            } else if let Some(first) = named.kernel.replace(path.clone()) {
                let second = path.clone();
                return Err(TwoKernelsError { first, second });
            }
        }
        Ok(named)
    }

    /// The file of the kernel.
    pub(crate) fn kernel(&self) -> Option<&Path> {
        self.kernel.as_deref()
    }
}

/// The kernel's name of the module with the file `path`; `None` if the name is not that of a module's file.
pub(super) fn module_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let mut endings = MODULE_ENDINGS.iter();
    let stem = endings.find_map(|ending| file.strip_suffix(ending))?;
    Some(stem.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_a_module_is_known_by_its_name() {
        let paths = ["/d/vmlinux", "/d/nf-tables.ko.debug", "x.ko", "y/x.ko.xz"];
        let paths = paths.map(PathBuf::from);
        let [kernel, tables, x, packed] = paths.clone();
        let named = NamedFiles::new(&paths).expect("one kernel");
        assert_eq!(named.kernel, Some(kernel));
        let modules = [
            ("nf_tables".to_owned(), vec![tables]),
            ("x".to_owned(), vec![x, packed]),
        ];
        assert_eq!(named.modules, HashMap::from(modules));
    }

    #[test]
    fn two_files_of_kernels_are_refused() {
        let paths = ["a/vmlinux", "x.ko", "b/vmlinux"].map(PathBuf::from);
        let error = NamedFiles::new(&paths).expect_err("two");
        assert_eq!(
            error.to_string(),
            "--debug-info names two files of a kernel: a/vmlinux and b/vmlinux"
        );
    }
}
