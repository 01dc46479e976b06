//! The catalog of images: the built-in `images.toml`, or a file of the same form.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

const BUILTIN: &str = include_str!("../images.toml");

/// Why a catalog could not be read.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// The file could not be opened or read.
    #[error("cannot read the image catalog {path}")]
    Read {
        /// The catalog.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The text is not a catalog.
    #[error("{origin} is not an image catalog; compare with guest-images/images.toml")]
    Parse {
        /// The file, or the word for the built-in text.
        origin: String,
        /// The mistake, with the line.
        source: toml::de::Error,
    },
    /// Two images have the same name.
    #[error("two images in {origin} are called {name:?}; rename one")]
    Duplicate {
        /// The file.
        origin: String,
        /// The name used twice.
        name: String,
    },
    /// The suite cannot be a directory's name.
    #[error(
        "the suite {suite:?} of the image {name:?} in {origin} is no directory name; use letters, \
         digits, . _ and -"
    )]
    BadSuite {
        /// The file.
        origin: String,
        /// The image.
        name: String,
        /// The suite.
        suite: String,
    },
    /// A debug file of no kernel, or a kernel for an image that is no debug file.
    #[error(
        "the image {name:?} in {origin} needs `of`, the name of a kernel of the same suite, exactly if it is a debug file"
    )]
    BadKernel {
        /// The file.
        origin: String,
        /// The image.
        name: String,
    },
    /// The image's name cannot be a directory's name.
    #[error("image name {name:?} in {origin} is no directory name; use letters, digits, . _ and -")]
    BadName {
        /// The file.
        origin: String,
        /// The name.
        name: String,
    },
}

/// Kind of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageKind {
    /// A Linux kernel with modules.
    Kernel,
    /// A static executable.
    Program,
    /// The debug file of another image, a kernel.
    Debug,
}

/// The fetches that include an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fetched {
    /// The image is fetched with all others, and by name.
    #[default]
    WithAll,
    /// The image is fetched by name only: the image is large, and no test boots the image.
    ByName,
}

/// An image of the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageEntry {
    /// The image's name in a fetch.
    pub name: String,
    /// Other names of the image.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Kernel or program.
    pub kind: ImageKind,
    /// The image's Debian suite.
    pub suite: String,
    /// The package, or the meta package that depends on the package. Of a debug file, `{release}` stands for the release of the kernel.
    pub package: String,
    /// The fetches that include the image.
    #[serde(default)]
    pub fetched: Fetched,
    /// For a program: path of the executable in the package.
    #[serde(default)]
    pub file: Option<String>,
    /// For a debug file: the name of the kernel.
    #[serde(default)]
    pub of: Option<String>,
}

/// All known images.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    /// A mirror for suites that the configured mirror has dropped.
    #[serde(default)]
    archive: Option<String>,
    #[serde(rename = "image")]
    images: Vec<ImageEntry>,
}

impl Catalog {
    /// The catalog in the crate's sources.
    ///
    /// # Panics
    ///
    /// Never in a build with passed tests: the tests read the embedded text.
    pub fn builtin() -> Self {
        Self::parse(BUILTIN, "the built-in catalog").expect("the embedded images.toml is valid")
    }

    /// Reads a catalog from a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is not a catalog, or has a name twice.
    pub fn load(path: &Path) -> Result<Self, CatalogError> {
        let text = std::fs::read_to_string(path).map_err(|source| CatalogError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, origin: &str) -> Result<Self, CatalogError> {
        let catalog: Self = toml::from_str(text).map_err(|source| CatalogError::Parse {
            origin: origin.to_owned(),
            source,
        })?;
        if let Some(image) = catalog
            .images
            .iter()
            .find(|image| !is_directory_name(&image.suite))
        {
            return Err(CatalogError::BadSuite {
                origin: origin.to_owned(),
                name: image.name.clone(),
                suite: image.suite.clone(),
            });
        }
        let mut seen = std::collections::BTreeSet::new();
        for name in catalog.images.iter().flat_map(ImageEntry::names) {
            let (origin, owned) = (origin.to_owned(), name.to_owned());
            if !is_directory_name(name) {
                return Err(CatalogError::BadName {
                    origin,
                    name: owned,
                });
            }
            if !seen.insert(name) {
                return Err(CatalogError::Duplicate {
                    origin,
                    name: owned,
                });
            }
        }
        let is_wrong = |image: &&ImageEntry| !catalog.has_kernel_of(image);
        if let Some(image) = catalog.images.iter().find(is_wrong) {
            return Err(CatalogError::BadKernel {
                origin: origin.to_owned(),
                name: image.name.clone(),
            });
        }
        Ok(catalog)
    }

    /// Whether the kernel of `image` is in the catalog, if `image` is a debug file.
    fn has_kernel_of(&self, image: &ImageEntry) -> bool {
        match (image.kind, image.of.as_deref()) {
            (ImageKind::Debug, Some(kernel)) => self
                .get(kernel)
                .is_some_and(|of| of.kind == ImageKind::Kernel && of.suite == image.suite),
            (ImageKind::Kernel | ImageKind::Program, None) => true,
            _ => false,
        }
    }

    /// The image with the name or alias `name`.
    pub fn get(&self, name: &str) -> Option<&ImageEntry> {
        self.images
            .iter()
            .find(|image| image.names().any(|known| known == name))
    }

    /// Every image, in the order of the file.
    pub fn images(&self) -> impl Iterator<Item = &ImageEntry> {
        self.images.iter()
    }

    /// The mirror for suites that the configured mirror has dropped.
    pub fn archive(&self) -> Option<&str> {
        self.archive.as_deref()
    }
}

impl ImageEntry {
    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

fn is_directory_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_names_the_four_kernels_and_busybox() {
        let catalog = Catalog::builtin();
        for (name, suite) in [
            ("debian-5.10", "bullseye"),
            ("debian-6.1", "bookworm"),
            ("debian-6.12", "trixie"),
            ("newest", "sid"),
        ] {
            let image = catalog.get(name).expect(name);
            assert_eq!(
                (image.kind, image.suite.as_str()),
                (ImageKind::Kernel, suite)
            );
        }
        assert_eq!(
            catalog.get("busybox").expect("alias").kind,
            ImageKind::Program
        );
        assert_eq!(catalog.get("debian-2.2"), None);
    }

    #[test]
    fn rt_kernels_and_debug_files_are_fetched_by_name_only() {
        let catalog = Catalog::builtin();
        let by_name: Vec<&str> = catalog
            .images()
            .filter(|image| image.fetched == Fetched::ByName)
            .map(|image| image.name.as_str())
            .collect();
        let kernels = by_name.iter().filter(|name| !name.ends_with("-debug"));
        let kernels: Vec<_> = kernels.collect();
        assert_eq!(kernels, [&"debian-6.1-rt", &"debian-6.12-rt"]);
    }

    #[test]
    fn each_kernel_has_a_debug_file() {
        let catalog = Catalog::builtin();
        let kernels = catalog.images().filter(|it| it.kind == ImageKind::Kernel);
        for kernel in kernels {
            let debug = catalog.get(&format!("{}-debug", kernel.name));
            let debug = debug.expect(&kernel.name);
            assert_eq!(debug.fetched, Fetched::ByName);
            assert_eq!(debug.of.as_ref(), Some(&kernel.name));
        }
    }

    #[test]
    fn debug_file_of_no_kernel_of_its_suite_is_refused() {
        let image = |kind: &str, suite: &str, of: &str| {
            format!(
                "[[image]]\nname='k'\nkind='kernel'\nsuite='sid'\npackage='p'\n\
                 [[image]]\nname='d'\nkind='{kind}'\nsuite='{suite}'\npackage='p'\n{of}\n"
            )
        };
        let kernel = "of='k'";
        assert!(Catalog::parse(&image("debug", "sid", kernel), "x.toml").is_ok());
        for wrong in [
            image("debug", "sid", ""),
            image("debug", "sid", "of='x'"),
            image("debug", "sid", "of='d'"),
            image("debug", "trixie", kernel),
            image("kernel", "sid", kernel),
        ] {
            let error = Catalog::parse(&wrong, "x.toml").expect_err(&wrong);
            assert!(matches!(error, CatalogError::BadKernel { .. }), "{error}");
        }
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        let text = "[[image]]\nname='a'\nkind='kernel'\nsuit='sid'\npackage='p'\n";
        let error = Catalog::parse(text, "x.toml").expect_err("suit");
        assert!(matches!(error, CatalogError::Parse { .. }), "{error}");
    }

    #[test]
    fn suite_that_leads_out_of_the_cache_is_refused() {
        for suite in ["../sid", "/sid", "sid main"] {
            let text =
                format!("[[image]]\nname='a'\nkind='kernel'\nsuite='{suite}'\npackage='p'\n");
            let error = Catalog::parse(&text, "x.toml").expect_err(suite);
            assert!(matches!(error, CatalogError::BadSuite { .. }), "{error}");
        }
    }

    #[test]
    fn names_are_unique_and_stay_inside_the_cache() {
        let image = |name: &str| {
            format!("[[image]]\nname='{name}'\nkind='kernel'\nsuite='sid'\npackage='p'\n")
        };
        let twice = Catalog::parse(&(image("a") + &image("a")), "x.toml").expect_err("twice");
        assert!(matches!(twice, CatalogError::Duplicate { .. }));
        for outside in ["../a", "a/b", ".hidden", ""] {
            let error = Catalog::parse(&image(outside), "x.toml").expect_err(outside);
            assert!(matches!(error, CatalogError::BadName { .. }));
        }
    }
}
