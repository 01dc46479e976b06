//! The sites of probes in a loaded module.

use std::sync::Arc;

use address::Gva;
use introspect::{Btf, Signature};
use manifest::ProbeSpec;

use crate::engine::module_tracepoints;
use crate::engine::running::Running;
use crate::engine::typed::{shows_types, signature_in_module, signature_of_tracepoint};
use crate::module::{LoadedModule, ModuleCode, ModuleSymbols};
use crate::registry::Probe;
use crate::resolve::module_tracepoints::{
    ModuleSite, PassedTracepoint, in_module as tracepoints_in_module,
};
use crate::resolve::{Place, Refusal, ResolveProblem, in_module};
use crate::tracepoint_record::{
    RecordAtSite, TracepointRecord, layout_in_kernel, layout_in_module,
};

/// The types of the module with the `struct module` at the address, or of the kernel.
pub(crate) type TypesOf<'m> = &'m dyn Fn(Option<Gva>) -> Option<Btf>;

/// A site, or one match of a pattern.
#[derive(Debug)]
pub(crate) struct FoundSite {
    /// The name of the site's probe.
    pub(crate) name: Arc<str>,
    pub(crate) place: Result<Place, Refusal>,
    pub(crate) signature: Option<Arc<Signature>>,
    /// For a tracepoint: the record, if hits show its fields.
    pub(crate) record: Option<RecordAtSite>,
    /// The specification of a match alone; `None` if its name is no specification.
    pub(crate) spec: Option<ProbeSpec>,
}

/// Finds the sites of probes in a module.
pub(crate) struct ModuleSites<'m> {
    code: ModuleCode<'m>,
    symbols: ModuleSymbols<'m>,
    passed: Vec<PassedTracepoint>,
    running: &'m Running,
    types: TypesOf<'m>,
}

impl<'m> ModuleSites<'m> {
    pub(crate) fn new(module: &'m LoadedModule, running: &'m Running, types: TypesOf<'m>) -> Self {
        Self {
            code: ModuleCode {
                module,
                planter: &running.planter,
            },
            symbols: ModuleSymbols::new(module.module()),
            passed: match module.tracepoints() {
                Some(_) => module_tracepoints::passed(running),
                None => Vec::new(),
            },
            running,
            types,
        }
    }

    /// The sites of `probe`, whose specification is `spec`. A tracepoint may have none: the module does not pass it.
    ///
    /// # Errors
    ///
    /// If the specification cannot be resolved in the module.
    pub(crate) fn of(
        &self,
        probe: &Probe,
        spec: &ProbeSpec,
    ) -> Result<Vec<FoundSite>, ResolveProblem> {
        match self.code.module.tracepoints() {
            Some(labels) if probe.awaits_tracepoint() => {
                let sites = tracepoints_in_module(&self.code, labels, &self.passed, spec)?;
                let sites = sites.into_iter();
                // A site of a probe of its own.
                let sites = sites.filter(|site| probe.is_glob() || site.name() == probe.name);
                let found = sites.map(|site| FoundSite {
                    name: site.name(),
                    signature: signature_of_tracepoint(
                        &probe.purpose,
                        || (self.types)(site.tracepoint.module),
                        &site.tracepoint.name,
                    ),
                    record: self.record(probe, &site),
                    spec: format!("tracepoint:{}", site.tracepoint.name).parse().ok(),
                    place: site.resolved.place,
                });
                Ok(found.collect())
            }
            _ => {
                let found = in_module(self.code.module, &self.code, &self.symbols, spec)?;
                let found = found.into_iter().map(|found| FoundSite {
                    signature: self.signature(probe, &found.place),
                    record: None,
                    spec: found.name.parse().ok(),
                    name: found.name,
                    place: found.place,
                });
                Ok(found.collect())
            }
        }
    }

    /// The record of the tracepoint at `site`, if hits of `probe` show its fields.
    fn record(&self, probe: &Probe, site: &ModuleSite<'_>) -> Option<RecordAtSite> {
        let place = site.resolved.place.as_ref().ok()?;
        shows_types(&probe.purpose).then_some(())?;
        let Running {
            kernel,
            planter,
            abilities,
            ..
        } = self.running;
        let (slide, paging) = (self.running.slide()?, self.running.modules.paging()?);
        let layout = match site.tracepoint.module {
            None => layout_in_kernel(kernel, &site.tracepoint.name).map(|it| it.rebased(slide)),
            Some(_) => layout_in_module(kernel, planter, &paging, site.tracepoint.event),
        };
        Some(layout.and_then(|layout| {
            TracepointRecord::at(kernel, layout, place, slide, abilities.features)
        }))
    }

    fn signature(&self, probe: &Probe, place: &Result<Place, Refusal>) -> Option<Arc<Signature>> {
        let place = place.as_ref().ok()?;
        let types = || (self.types)(Some(self.code.module.address()));
        signature_in_module(types, &self.code, &self.symbols, probe, place)
    }
}

/// Whether `probe` may have sites in `module`.
pub(crate) fn may_be_in(probe: &Probe, module: &LoadedModule) -> bool {
    let spec = probe.in_module.as_ref();
    let named = spec.and_then(|spec| Some(spec.module.as_ref()?.name.as_str()));
    named == Some(module.name()) || (probe.awaits_tracepoint() && module.tracepoints().is_some())
}
