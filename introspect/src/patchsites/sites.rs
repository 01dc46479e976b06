//! All patch sites, by address.

use address::Gva;

use super::{PatchSite, PatchTime, formats, tables::Tables};
use crate::{ImageSource, Module, SymbolTable};

/// The patch sites of a kernel, at link-time addresses until [`rebased`](Self::rebased).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchSites {
    /// The sites, by address.
    sites: Vec<PatchSite>,
    /// The length of the longest site: the distance by which a search begins earlier.
    longest: u8,
}

impl PatchSites {
    /// Reads all tables in `source` marked by `symbols`, at link-time addresses.
    #[must_use]
    pub fn read(source: &dyn ImageSource, symbols: &SymbolTable) -> Self {
        let tables = Tables::new(source, symbols);
        tables.iter().flat_map(formats::read_all).collect()
    }

    /// The sites together with the sites of `module`, at the module's present address: to be added after
    /// [`rebased`](Self::rebased).
    #[must_use]
    pub fn with_module(&self, module: &Module) -> Self {
        let own = module.patch_sites().iter().copied();
        self.iter().chain(own).collect()
    }

    /// The number of sites.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.sites.len()
    }

    /// Whether the kernel has no sites.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// All sites in address order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PatchSite> + '_ {
        self.sites.iter().copied()
    }

    /// A site sharing a byte with the `len` bytes at `address`: a site patched at run time if any,
    /// else the first site.
    #[must_use]
    pub fn overlapping(&self, address: Gva, len: u64) -> Option<PatchSite> {
        let runtime = |site: &PatchSite| site.kind.when() == PatchTime::Runtime;
        let mut first = None;
        for site in self.all_overlapping(address, len) {
            if runtime(&site) {
                return Some(site);
            }
            first = first.or(Some(site));
        }
        first
    }

    /// All sites sharing a byte with the `len` bytes at `address`, in address order.
    pub fn all_overlapping(&self, address: Gva, len: u64) -> impl Iterator<Item = PatchSite> + '_ {
        let earliest = address.0.saturating_sub(u64::from(self.longest));
        let start = self.sites.partition_point(|site| site.address.0 < earliest);
        let end = Gva(address.0.saturating_add(len));
        let behind = self.sites[start..].iter().copied();
        behind
            .take_while(move |site| site.address < end)
            .filter(move |site| len > 0 && site.end() > address)
    }

    /// The same sites after the kernel has moved by `slide` bytes.
    #[must_use]
    pub fn rebased(&self, slide: i64) -> Self {
        let moved = |site: &PatchSite| PatchSite {
            address: Gva(site.address.0.wrapping_add_signed(slide)),
            target: site
                .target
                .map(|target| Gva(target.0.wrapping_add_signed(slide))),
            ..*site
        };
        self.sites.iter().map(moved).collect()
    }
}

impl FromIterator<PatchSite> for PatchSites {
    fn from_iter<I: IntoIterator<Item = PatchSite>>(sites: I) -> Self {
        let mut sites: Vec<PatchSite> = sites.into_iter().collect();
        sites.sort_unstable();
        sites.dedup();
        let longest = sites.iter().map(|site| site.len).max().unwrap_or(0);
        Self { sites, longest }
    }
}
