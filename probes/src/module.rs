//! A module in the guest's memory.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use address::{Gpa, Gva, PAGE_BYTES};
use introspect::tracepoints::ModuleTracepoints;
use introspect::{Module, ModuleRegion, PagingState, PatchSite, PatchSites, Symbol, walk};
use text::{Planter, Spot};

use crate::code::KernelCode;
use crate::kernel::MAX_FUNCTION_BYTES;

/// The maximum number of code pages: no module has more code, so a larger size is not believed.
const MAX_TEXT_PAGES: usize = 1 << 14;

/// A module's description, as read from the guest, and the guest-physical addresses of its code: the pages of a module may lie anywhere.
#[derive(Debug)]
pub(crate) struct LoadedModule {
    module: Module,
    sites: PatchSites,
    /// The pages of the module's code.
    pages: BTreeMap<Gva, Gpa>,
    /// The tracepoints, if a probe asks for tracepoints of modules.
    tracepoints: Option<Arc<ModuleTracepoints>>,
}

impl LoadedModule {
    pub(crate) fn new(module: Module, planter: &Planter, paging: &PagingState) -> Self {
        let text = module
            .regions()
            .iter()
            .filter(|region| region.kind.is_text());
        let pages = text
            .flat_map(pages)
            .take(MAX_TEXT_PAGES)
            .filter_map(|page| Some((page, walk(planter, paging, page).ok()?.gpa)))
            .collect();
        let sites = PatchSites::default().with_module(&module);
        Self {
            module,
            sites,
            pages,
            tracepoints: None,
        }
    }

    pub(crate) fn with_tracepoints(self, tracepoints: Option<Arc<ModuleTracepoints>>) -> Self {
        Self {
            tracepoints,
            ..self
        }
    }

    pub(crate) const fn tracepoints(&self) -> Option<&Arc<ModuleTracepoints>> {
        self.tracepoints.as_ref()
    }

    pub(crate) fn address(&self) -> Gva {
        self.module.address()
    }

    pub(crate) fn name(&self) -> &str {
        self.module.name()
    }

    pub(crate) fn symbols(&self) -> &[Symbol] {
        self.module.symbols()
    }

    /// The module as the guest describes it.
    pub(crate) fn module(&self) -> &Module {
        &self.module
    }

    pub(crate) fn unread(&self) -> &[introspect::ModulesError] {
        self.module.unread()
    }

    pub(crate) fn holds_code(&self, at: Gva) -> bool {
        self.module.holds_code(at)
    }

    pub(crate) fn is_init(&self, at: Gva) -> bool {
        self.module.is_init(at)
    }

    /// Whether the module has parts that are freed after its init function.
    pub(crate) fn has_init(&self) -> bool {
        let regions = self.module.regions();
        regions.iter().any(|region| region.kind.is_init())
    }

    /// The patch site within `len` bytes from `at` on, if any.
    pub(crate) fn patched(&self, at: Gva, len: u64) -> Option<PatchSite> {
        self.sites.overlapping(at, len)
    }

    /// The guest-physical location of the code at `at`.
    pub(crate) fn spot(&self, at: Gva) -> Option<Spot> {
        let page = self.pages.get(&at.page())?;
        let beyond = at.page().checked_add(PAGE_BYTES);
        Some(Spot {
            gpa: page.wrapping_add(at.page_offset()),
            beyond: beyond.and_then(|next| self.pages.get(&next).copied()),
        })
    }
}

/// The symbols of a module by name. Both the guest's symbols and the probes may be many: no probe goes through all symbols.
pub(crate) struct ModuleSymbols<'m> {
    text: NamedSymbols<'m>,
    data: OnceCell<NamedSymbols<'m>>,
    all: &'m [Symbol],
}

type NamedSymbols<'m> = HashMap<&'m str, Vec<&'m Symbol>>;

impl<'m> ModuleSymbols<'m> {
    pub(crate) fn new(module: &'m Module) -> Self {
        let all = module.symbols();
        Self {
            text: by_name(all.iter().filter(|symbol| symbol.is_text())),
            data: OnceCell::new(),
            all,
        }
    }

    /// The functions and labels called `name`.
    pub(crate) fn text(&self, name: &str) -> &[&'m Symbol] {
        self.text.get(name).map_or(&[], Vec::as_slice)
    }

    /// The variables called `name`.
    pub(crate) fn data(&self, name: &str) -> &[&'m Symbol] {
        let is_data = |symbol: &&Symbol| !symbol.is_text();
        let data = self
            .data
            .get_or_init(|| by_name(self.all.iter().filter(is_data)));
        data.get(name).map_or(&[], Vec::as_slice)
    }
}

fn by_name<'m>(symbols: impl Iterator<Item = &'m Symbol>) -> NamedSymbols<'m> {
    let mut named = NamedSymbols::new();
    for symbol in symbols {
        named.entry(&symbol.name).or_default().push(symbol);
    }
    named
}

fn pages(region: &ModuleRegion) -> impl Iterator<Item = Gva> + use<> {
    let (start, end) = (region.range.start.page(), region.range.end);
    std::iter::successors(Some(start), |page| page.checked_add(PAGE_BYTES))
        .take_while(move |page| *page < end)
}

/// The code of a module, for the resolution of sites.
pub(crate) struct ModuleCode<'a> {
    pub(crate) module: &'a LoadedModule,
    pub(crate) planter: &'a Planter,
}

impl ModuleCode<'_> {
    /// The guest's present original bytes; fewer than `len` if code ends before.
    pub(crate) fn bytes(&self, at: Gva, len: u64) -> Vec<u8> {
        let end = at.wrapping_add(len.min(MAX_FUNCTION_BYTES));
        let mut bytes = Vec::new();
        let mut at = at;
        while at < end {
            let Some(spot) = self.module.spot(at) else {
                break;
            };
            let here = (end.0 - at.0).min(PAGE_BYTES - at.page_offset());
            let from = bytes.len();
            bytes.resize(from + usize::try_from(here).unwrap_or(0), 0);
            if self.planter.read_own(spot.gpa, &mut bytes[from..]).is_err() {
                bytes.truncate(from);
                break;
            }
            at = at.wrapping_add(here);
        }
        bytes
    }
}

impl KernelCode for ModuleCode<'_> {
    fn function_bytes(&self, symbol: &Symbol) -> Cow<'_, [u8]> {
        Cow::Owned(self.bytes(symbol.address, symbol.size))
    }

    fn holds_code(&self, at: Gva) -> bool {
        self.module.holds_code(at)
    }

    fn is_init(&self, at: Gva) -> bool {
        self.module.is_init(at)
    }

    fn patched(&self, at: Gva, len: u64) -> Option<PatchSite> {
        self.module.patched(at, len)
    }

    fn module(&self) -> Option<Gva> {
        Some(self.module.address())
    }
}
