//! A package of a suite, read from `apt-cache show`.

use crate::digest::Digest;

/// A package in the suite's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) sha256: Digest,
    pub(crate) bytes: u64,
    /// The first alternative of each dependency.
    depends: Vec<String>,
}

impl Package {
    /// The dependencies on parts of a kernel.
    pub(super) fn kernel_parts(&self) -> impl Iterator<Item = &str> {
        self.depends
            .iter()
            .map(String::as_str)
            .filter(|name| is_kernel_part(name))
    }
}

fn is_kernel_part(package: &str) -> bool {
    [
        "linux-image-",
        "linux-binary-",
        "linux-modules-",
        "linux-base-",
    ]
    .iter()
    .any(|prefix| package.starts_with(prefix))
}

/// Reads an entry of a package list.
pub(super) fn parse_package(text: &str) -> Option<Package> {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .map(str::to_owned)
    };
    let first_name = |dependency: &str| {
        dependency
            .split(['|', '(', ':'])
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    Some(Package {
        name: field("Package")?,
        version: field("Version")?,
        sha256: field("SHA256")?.parse().ok()?,
        bytes: field("Size")?.parse().ok()?,
        depends: field("Depends")
            .unwrap_or_default()
            .split(',')
            .map(first_name)
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_entry_is_read() {
        let text = format!(
            "Package: linux-image-7.2-cloud-amd64\nVersion: 7.2.13-1\nDepends: dracut | \
             initramfs-tools (>= 0.1), linux-binary-7.2-cloud-amd64 (= 7.2.13-1), \
             linux-modules-7.2-cloud-amd64\nSize: 1916\nSHA256: {}\n",
            Digest::of(b"deb")
        );
        let package = parse_package(&text).expect("package");
        assert_eq!(package.sha256, Digest::of(b"deb"));
        assert_eq!(
            (package.version.as_str(), package.bytes),
            ("7.2.13-1", 1916)
        );
        let parts: Vec<_> = package
            .depends
            .iter()
            .filter(|d| is_kernel_part(d))
            .collect();
        assert_eq!(
            parts,
            [
                "linux-binary-7.2-cloud-amd64",
                "linux-modules-7.2-cloud-amd64"
            ]
        );
        assert_eq!(parse_package("Package: x\nVersion: 1\n"), None);
        assert!(!is_kernel_part("linux-base"));
    }
}
