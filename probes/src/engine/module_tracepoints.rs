//! The tracepoints that loaded modules pass.

use std::sync::Arc;

use introspect::tracepoints::ModuleTracepoints;
use introspect::{Module, PagingState};

use crate::engine::running::Running;
use crate::resolve::module_tracepoints::PassedTracepoint;

/// The tracepoints and jump labels of `module`; `None` if the kernel's types do not describe them, or the module cannot be read.
pub(crate) fn read(
    running: &Running,
    module: &Module,
    paging: &PagingState,
) -> Option<Arc<ModuleTracepoints>> {
    let (modules, types) = (running.kernel.modules().ok()?, running.kernel.types().ok()?);
    let memory = &running.planter;
    let tables = modules.tracepoint_tables(memory, paging, module.address());
    let read = ModuleTracepoints::read(types, memory, paging, &tables.ok()?);
    Some(Arc::new(read))
}

/// All tracepoints that modules may pass and the kernel proper does not: those of the loaded modules, and those of the kernel without a site.
pub(crate) fn passed(running: &Running) -> Vec<PassedTracepoint> {
    let mut all = Vec::new();
    if let (Ok(known), Some(slide)) = (running.kernel.tracepoints(), running.slide()) {
        let without_site = known.iter().filter(|(_, found)| found.sites.is_empty());
        all.extend(without_site.map(|(name, found)| PassedTracepoint {
            name: name.to_owned(),
            event: found.event,
            variable: found.variable.rebased(slide),
            module: None,
        }));
    }
    for module in running.modules.lock().values() {
        let defined = module.tracepoints().into_iter().flat_map(|it| it.defined());
        all.extend(defined.map(|(name, tracepoint)| PassedTracepoint {
            name: name.to_owned(),
            event: tracepoint.event,
            variable: tracepoint.variable,
            module: Some(module.address()),
        }));
    }
    all
}
