//! Which kernel a debug file must belong to.

use std::path::{Path, PathBuf};

use guest_images::Store;
use introspect::BuildId;
use probes::Kernel;

use crate::kernel_input::KernelInput;
use crate::run::guest::Guest;

/// Where distributions put debug files.
pub(crate) const DEBUG_ROOT: &str = "/usr/lib/debug";
/// In the version lines of Debian's kernels.
const DEBIAN: &str = "debian-kernel@";

/// A kernel, as far as its debug file needs to be found and compared.
#[derive(Clone, Debug)]
pub(crate) struct KernelIdentity<'k> {
    /// The build-id in hexadecimal digits; `None` if the kernel has none.
    pub(crate) build_id: Option<String>,
    /// The version line.
    pub(crate) banner: Option<String>,
    /// The kernel's own file and the ELF file in it, if they are here.
    pub(crate) own: Option<(PathBuf, &'k [u8])>,
}

impl<'k> KernelIdentity<'k> {
    /// The kernel of a run that this process starts.
    pub(crate) fn of_guest(input: &KernelInput, guest: &'k Guest) -> Self {
        Self::of_kernel(input, &guest.vmlinux, &guest.kernel)
    }

    /// The kernel in the file `input`, which has the ELF file `vmlinux`.
    pub(crate) fn of_kernel(input: &KernelInput, vmlinux: &'k [u8], kernel: &Kernel) -> Self {
        Self {
            build_id: BuildId::of_elf(vmlinux).map(|id| id.to_string()),
            banner: kernel.banner().map(str::to_owned),
            own: Some((input.path(), vmlinux)),
        }
    }

    /// The files that may have the kernel's debug information, the likeliest first.
    pub(super) fn candidates(&self) -> Vec<PathBuf> {
        self.candidates_with(Store::open().ok().as_ref())
    }

    /// The same with the image cache `store`.
    fn candidates_with(&self, store: Option<&Store>) -> Vec<PathBuf> {
        let own = self.own.as_ref().map(|(path, _)| path.clone());
        let root = Path::new(DEBUG_ROOT);
        let id = self.build_id.as_deref();
        let by_id = id.and_then(|id| debug_file_of(root, id));
        let by_release = self
            .release()
            .map(|release| root.join(format!("boot/vmlinux-{release}")));
        let cached = store.zip(self.release());
        let cached = cached.and_then(|(store, release)| store.debug_file(release));
        let found = [own, by_id, by_release, cached];
        found.into_iter().flatten().collect()
    }

    /// The image with the debug file, for a stock kernel of the image cache.
    pub(super) fn debug_image(&self) -> Option<String> {
        Store::open().ok()?.debug_image(self.release()?)
    }

    /// The Debian package with the debug file.
    pub(super) fn package(&self) -> Option<String> {
        let is_debian = self
            .banner
            .as_ref()
            .is_some_and(|banner| banner.contains(DEBIAN));
        let release = self.release().filter(|_| is_debian)?;
        Some(format!("linux-image-{release}-dbg"))
    }

    /// The release in the version line. A guest may write anything there, and the release becomes part of a path.
    pub(super) fn release(&self) -> Option<&str> {
        let banner = self.banner.as_deref()?;
        let release = banner.strip_prefix("Linux version ")?.split(' ').next()?;
        let fits = |c: char| c.is_ascii_alphanumeric() || "._+~-".contains(c);
        (release.starts_with(|c: char| c.is_ascii_digit()) && release.chars().all(fits))
            .then_some(release)
    }
}

/// The debug file with this build-id, in hexadecimal digits, below the folder `root`.
pub(super) fn debug_file_of(root: &Path, build_id: &str) -> Option<PathBuf> {
    let (folder, file) = build_id.split_at_checked(2)?;
    Some(root.join(format!(".build-id/{folder}/{file}.debug")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(banner: &str) -> KernelIdentity<'static> {
        KernelIdentity {
            build_id: Some("00ab12".to_owned()),
            banner: Some(banner.to_owned()),
            own: None,
        }
    }

    #[test]
    fn debian_kernel_has_a_file_by_id_a_file_by_release_and_a_package() {
        let debian =
            kernel("Linux version 6.1.0-50-cloud-amd64 (debian-kernel@lists.debian.org) (gcc-12");
        let expected = [
            "/usr/lib/debug/.build-id/00/ab12.debug",
            "/usr/lib/debug/boot/vmlinux-6.1.0-50-cloud-amd64",
        ];
        assert_eq!(debian.candidates_with(None), expected.map(PathBuf::from));
        assert_eq!(
            debian.package().as_deref(),
            Some("linux-image-6.1.0-50-cloud-amd64-dbg")
        );
    }

    #[test]
    fn debug_file_in_the_image_cache_is_that_of_the_release() {
        let root = tempfile::tempdir().expect("tempdir");
        let image = root.path().join("images/debian-sid-debug");
        std::fs::create_dir_all(&image).expect("a directory");
        let record = format!(
            r#"{{"release": "6.1.0-x", "sha256": "{:064}", "packages": [], "files": {{}}}}"#,
            0
        );
        std::fs::write(image.join("image.json"), record).expect("written");
        let store = Store::at(root.path(), guest_images::Catalog::builtin());
        let candidates = |release: &str| {
            let banner = format!("Linux version {release} (debian-kernel@lists.debian.org)");
            kernel(&banner).candidates_with(Some(&store))
        };
        assert_eq!(candidates("6.1.0-x").last(), Some(&image.join("vmlinux")));
        assert_eq!(candidates("6.1.0-y").len(), 2);
    }

    #[test]
    fn release_with_a_slash_names_no_file() {
        for banner in [
            "Linux version 6/../../etc (debian-kernel@",
            "Linux version .. (x)",
            "Linux",
        ] {
            assert_eq!(kernel(banner).candidates_with(None).len(), 1, "{banner}");
            assert_eq!(kernel(banner).package(), None);
        }
        assert_eq!(kernel("Linux version 6.1.0 (me@home)").package(), None);
    }
}
