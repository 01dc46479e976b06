//! A stock kernel's modules, and the order of loading.
//!
//! An unpacked package has no `modules.dep`: only an installation makes the file. So the dependencies are read from the modules.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cached_file::{CachedFile, CachedFileError};

/// Maximum size of a decompressed module, far above any module of a distribution.
const MODULE_MAX_BYTES: u64 = 64 << 20;
/// Modules are packed with dictionaries of 1 MiB.
const MODULE_XZ_MEMORY_KIB: u32 = 64 << 10;

/// Why modules could not be found or read.
#[derive(Debug, Error)]
pub enum ModuleError {
    /// A file of the image could not be read, or has changed since the fetch.
    #[error(transparent)]
    File(#[from] CachedFileError),
    /// The record of the image has no digests of modules.
    #[error(
        "the record of the image {image} has no digests of modules: an earlier version of hyprobe \
         fetched the image; `hyprobe images fetch {image}` adds the digests"
    )]
    NoDigests {
        /// The image.
        image: String,
    },
    /// The module could not be decompressed.
    #[error(
        "cannot decompress {path}, a module of the image {image}; `hyprobe images fetch --refresh \
         {image}` fetches a newer version, if there is one"
    )]
    Decompress {
        /// The image.
        image: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel does not have the module.
    #[error("the kernel whose modules are in {dir} has no module {name}; use a kernel that has it")]
    Missing {
        /// The module.
        name: String,
        /// The directory searched.
        dir: PathBuf,
    },
    /// The file is no module.
    #[error(
        "{path} is no kernel module; `hyprobe images fetch --refresh {image}` fetches a newer \
         version of the image, if there is one"
    )]
    NotAModule {
        /// The image.
        image: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: object::Error,
    },
}

/// A module of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// The module's name in the kernel, with underscores.
    pub name: String,
    /// The module's file, perhaps compressed.
    pub file: CachedFile,
}

impl Module {
    /// The decompressed module, for `finit_module`. The digest of the file's bytes is compared first.
    ///
    /// # Errors
    ///
    /// The file cannot be read or decompressed, or has another digest.
    pub fn read(&self) -> Result<Vec<u8>, ModuleError> {
        let path = self.file.path();
        decompress(&path, self.file.read()?).map_err(|source| ModuleError::Decompress {
            image: self.file.image().to_owned(),
            path,
            source,
        })
    }
}

/// All modules of a kernel with a digest in the image's record.
#[derive(Debug, Clone)]
pub struct ModuleTree {
    dir: PathBuf,
    files: BTreeMap<String, CachedFile>,
    builtin: BTreeSet<String>,
}

impl ModuleTree {
    /// The modules among `files`, and the names in `builtin`, the package's `modules.builtin`.
    ///
    /// # Errors
    ///
    /// `builtin` cannot be read or has another digest.
    pub(crate) fn new(
        dir: PathBuf,
        files: impl IntoIterator<Item = CachedFile>,
        builtin: Option<&CachedFile>,
    ) -> Result<Self, ModuleError> {
        let files = files
            .into_iter()
            .filter_map(|file| {
                let name = module_name(&file.path().file_name()?.to_string_lossy())?;
                Some((name, file))
            })
            .collect();
        let builtin = builtin.map(CachedFile::read).transpose()?;
        let builtin = String::from_utf8_lossy(&builtin.unwrap_or_default())
            .lines()
            .filter_map(|line| module_name(line.rsplit('/').next().unwrap_or(line)))
            .collect();
        Ok(Self {
            dir,
            files,
            builtin,
        })
    }

    /// The module with the name `name`, with either `-` or `_`.
    pub fn get(&self, name: &str) -> Option<Module> {
        let name = name.replace('-', "_");
        self.files.get(&name).map(|file| Module {
            file: file.clone(),
            name,
        })
    }

    /// The names of all modules, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The modules `names` and all dependencies, each module after its dependencies. Modules built into the kernel are left out.
    ///
    /// # Errors
    ///
    /// A module is missing or unreadable.
    pub fn load_order(&self, names: &[&str]) -> Result<Vec<Module>, ModuleError> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            self.visit(&name.replace('-', "_"), &mut seen, &mut order)?;
        }
        Ok(order)
    }

    fn visit(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<Module>,
    ) -> Result<(), ModuleError> {
        if self.builtin.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let module = self.get(name).ok_or_else(|| ModuleError::Missing {
            name: name.to_owned(),
            dir: self.dir.clone(),
        })?;
        for needed in depends(&module)? {
            self.visit(&needed, seen, order)?;
        }
        order.push(module);
        Ok(())
    }
}

/// The dependencies in a module's `.modinfo` section.
fn depends(module: &Module) -> Result<Vec<String>, ModuleError> {
    let bytes = module.read()?;
    let refused = |source| ModuleError::NotAModule {
        image: module.file.image().to_owned(),
        path: module.file.path(),
        source,
    };
    let file = object::File::parse(&*bytes).map_err(refused)?;
    let Some(section) = file.section_by_name(".modinfo") else {
        return Ok(Vec::new());
    };
    Ok(depends_of(section.data().map_err(refused)?))
}

fn depends_of(modinfo: &[u8]) -> Vec<String> {
    modinfo
        .split(|byte| *byte == 0)
        .filter_map(|field| std::str::from_utf8(field).ok()?.strip_prefix("depends="))
        .flat_map(|list| list.split(','))
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// The module's name for the file `file`; `None` if `file` is no module.
fn module_name(file: &str) -> Option<String> {
    let stem = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"]
        .iter()
        .find_map(|suffix| file.strip_suffix(suffix))?;
    Some(stem.replace('-', "_"))
}

fn decompress(path: &Path, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let read = |source: &mut dyn Read| {
        let mut unpacked = Vec::new();
        source.take(MODULE_MAX_BYTES).read_to_end(&mut unpacked)?;
        Ok(unpacked)
    };
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => read(&mut lzma_rust2::XzReader::new_mem_limit(
            &bytes[..],
            true,
            MODULE_XZ_MEMORY_KIB,
        )),
        Some("gz") => read(&mut flate2::read::GzDecoder::new(&bytes[..])),
        Some("zst") => {
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(&bytes[..])
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            read(&mut decoder)
        }
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;
    use crate::digest::Digest;

    #[test]
    fn names_and_dependencies_are_normalised() {
        assert_eq!(module_name("kvm-amd.ko.xz").as_deref(), Some("kvm_amd"));
        assert_eq!(module_name("modules.order"), None);
        let modinfo = b"license=GPL\0depends=kvm,cec-core\0depends=\0vermagic=6.1 ";
        assert_eq!(depends_of(modinfo), ["kvm", "cec_core"]);
    }

    #[test]
    fn every_compression_is_undone() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"module").expect("gzip");
        let packed = gzip.finish().expect("gzip");
        assert_eq!(
            decompress(Path::new("a.ko.gz"), packed).expect("gz"),
            b"module"
        );
        let plain = b"module".to_vec();
        assert_eq!(
            decompress(Path::new("a.ko"), plain.clone()).expect("plain"),
            plain
        );
        for broken in ["a.ko.xz", "a.ko.zst", "a.ko.gz"] {
            assert!(
                decompress(Path::new(broken), plain.clone()).is_err(),
                "{broken}"
            );
        }
    }

    /// The tree of the modules directory `dir` with the files `files`.
    fn tree(dir: &Path, files: &[(&str, &str)]) -> ModuleTree {
        let file = |(name, text): &(&str, &str)| {
            fs::write(dir.join(name), text).expect("write");
            CachedFile::new("debian-6.1", dir, name, Digest::of(text.as_bytes()))
        };
        let files: Vec<_> = files.iter().map(file).collect();
        let builtin = files
            .iter()
            .find(|file| file.path().ends_with("modules.builtin"))
            .cloned();
        ModuleTree::new(dir.to_owned(), files, builtin.as_ref()).expect("tree")
    }

    #[test]
    fn builtin_modules_are_not_looked_for() {
        let dir = tempfile::tempdir().expect("tempdir");
        let builtin = ("modules.builtin", "kernel/drivers/virtio/virtio-ring.ko\n");
        let tree = tree(dir.path(), &[builtin]);
        assert_eq!(tree.load_order(&["virtio_ring"]).expect("builtin"), []);
        let error = tree.load_order(&["kvm-amd"]).expect_err("missing");
        assert!(matches!(error, ModuleError::Missing { ref name, .. } if name == "kvm_amd"));
    }

    #[test]
    fn file_that_is_no_module_is_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let tree = tree(dir.path(), &[("kvm.ko", "text")]);
        assert!(matches!(
            tree.load_order(&["kvm"]),
            Err(ModuleError::NotAModule { .. })
        ));
    }

    #[test]
    fn module_that_changed_after_publication_is_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let tree = tree(dir.path(), &[("kvm.ko", "text")]);
        let module = tree.get("kvm").expect("kvm");
        assert_eq!(module.read().expect("unchanged"), b"text");
        fs::write(dir.path().join("kvm.ko"), "tex!").expect("write");
        for error in [
            module.read().expect_err("read"),
            tree.load_order(&["kvm"]).expect_err("load order"),
        ] {
            assert!(
                matches!(error, ModuleError::File(CachedFileError::Changed(_))),
                "{error}"
            );
        }
    }
}
