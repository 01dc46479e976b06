//! What hyprobe boots: stock kernels fetched into a cache, and guests built on the spot.
//!
//! - [`Catalog`] reads `images.toml`, which names the images; [`Store`] keeps them in a cache and
//!   [fetches](Store::fetch) what is missing through apt, with a configuration of its own.
//! - [`CachedFile`] is a file of an image; reading it compares its digest.
//! - [`ModuleTree`] finds a stock kernel's modules and the order to load them in.
//! - [`Initramfs`] builds an initramfs in memory, the same bytes every time.
//! - [`demo`] is the guest of the first command a newcomer types, [`workload`] an init that makes
//!   system calls in known numbers, [`testguest`] a bare-metal kernel that checks itself,
//!   [`hostile`] a guest that attacks the VMM.
//!
//! Nothing binary is part of the sources: everything is fetched or compiled.

mod apt;
mod cache;
mod cached_file;
mod catalog;
mod digest;
mod directory;
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
pub use fetch::{FetchError, Freshness, cached, fetch};
pub use image::{Image, ImageRecord, PackageRecord};
pub use initramfs::{Initramfs, InitramfsError};
pub use modules::{Module, ModuleError, ModuleTree, OUTER_MODULES};
pub use progress::{Progress, Report};
pub use testguest::build_testguest;
pub use toolchain::BuildError;
pub use workload::build_workload;
