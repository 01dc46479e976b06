//! Guest images for hyprobe: stock kernels fetched into a cache, and guests built on the spot.
//!
//! - [`Catalog`] reads `images.toml`, which names the images; [`Store`] retains the images in a cache and
//!   [fetches](Store::fetch) missing images through apt, with a private configuration.
//! - [`CachedFile`] is a file of an image; a read compares the digest.
//! - [`ModuleTree`] finds a stock kernel's modules and the order to load them in.
//! - [`download()`] fetches a single file, through apt, too.
//! - [`Initramfs`] builds an initramfs in memory, the same bytes every time.
//! - [`demo`] is the guest of a newcomer's first command, [`workload`] an init with known numbers of system calls,
//!   [`testguest`] a bare-metal kernel with self-checks, [`hostile`] a guest that attacks the VMM.
//!
//! Nothing binary is part of the sources: everything is fetched or compiled.

mod apt;
mod cache;
mod cached_file;
mod catalog;
mod digest;
mod directory;
mod download;
mod fetch;
mod image;
mod modules;
mod progress;
mod toolchain;

pub mod demo;
pub mod hostile;
pub mod initramfs;
pub mod testguest;
pub mod workload;

pub use apt::{MirrorError, UriError, WorkDirError};
pub use cache::{CacheError, Store};
pub use cached_file::{CachedFile, CachedFileError, ChangedFile};
pub use catalog::{Catalog, CatalogError, Fetched, ImageEntry, ImageKind};
pub use digest::{Digest, ParseDigestError};
pub use directory::DirectoryError;
pub use download::{DownloadCaller, DownloadError, DownloadLimits, Downloaded, download};
pub use fetch::{FetchError, Freshness, cached, fetch};
pub use image::{Image, ImageRecord, PackageRecord};
pub use initramfs::{Initramfs, InitramfsError};
pub use modules::{Module, ModuleError, ModuleTree};
pub use progress::{Progress, Report};
pub use testguest::build_testguest;
pub use toolchain::BuildError;
pub use workload::build_workload;
