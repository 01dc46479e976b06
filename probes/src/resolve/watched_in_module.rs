//! Resolves watchpoints at data of a loaded module.
//!
//! A module's data is on pages of its own from the load on until the module is freed, which hyprobe sees. The types of a module have no variables, so
//! the length is the user's.

use address::{Gva, PAGE_BYTES};
use introspect::{Module, RegionKind, Symbol};
use manifest::{DataBase, MAX_WATCHED_BYTES, WatchedData};

use super::place::{MemoryOwner, Place, PlantTime, Via};
use super::watch_problem::WatchProblem;
use super::watched::check_register;
use crate::arguments::ArgumentSource;
use crate::module::ModuleSymbols;

/// Resolves `data` to bytes of `module`, at run-time addresses.
pub(super) fn resolve(
    module: &Module,
    symbols: &ModuleSymbols<'_>,
    data: &WatchedData,
) -> Result<Place, WatchProblem> {
    let DataBase::Variable { name, offset } = &data.base else {
        // The parser gives addresses no module.
        return Err(WatchProblem::Untyped {
            name: module.name().to_owned(),
        });
    };
    let symbol = variable(module, symbols, name)?;
    let len = data
        .bytes
        .filter(|len| (1..=MAX_WATCHED_BYTES).contains(len));
    let Some(len) = len else {
        return Err(WatchProblem::Untyped { name: name.clone() });
    };
    let end = offset.checked_add(u64::from(len));
    if symbol.size > 0 && end.is_none_or(|end| end > symbol.size) {
        return Err(WatchProblem::Outside {
            name: name.clone(),
            size: symbol.size,
        });
    }
    let at = symbol.address.wrapping_add(*offset);
    check(module, at, u64::from(len))?;
    if data.access.is_in_register() {
        check_register(at, usize::from(len))?;
    }
    Ok(Place {
        ip: at,
        symbol: format!("{name}+{offset:#x} [{}]", module.name()).into(),
        via: Via::Data {
            len: usize::from(len),
            access: data.access,
        },
        when: PlantTime::TextPresent,
        init: false,
        owner: MemoryOwner::Module(module.address()),
        arguments: ArgumentSource::Registers,
    })
}

/// The only variable of the module called `name`.
fn variable<'m>(
    module: &Module,
    symbols: &ModuleSymbols<'m>,
    name: &str,
) -> Result<&'m Symbol, WatchProblem> {
    let named = symbols.data(name);
    let first = named
        .first()
        .ok_or_else(|| WatchProblem::NoVariableInModule {
            module: module.name().to_owned(),
            name: name.to_owned(),
        })?;
    let mut others = named.iter().filter(|other| other.address != first.address);
    match others.next() {
        None => Ok(first),
        Some(_) => Err(WatchProblem::AmbiguousInModule {
            module: module.name().to_owned(),
            name: name.to_owned(),
        }),
    }
}

/// Checks that the pages of the bytes have data only, which stays as long as the module.
fn check(module: &Module, at: Gva, len: u64) -> Result<(), WatchProblem> {
    let end = at.wrapping_add(len);
    let region = module.region_at(at);
    let region = region.filter(|region| end <= region.range.end);
    match region.map(|region| region.kind) {
        Some(RegionKind::Data) => (),
        Some(RegionKind::InitData) => return Err(WatchProblem::Freed),
        Some(RegionKind::Text | RegionKind::InitText) => return Err(WatchProblem::Code),
        None => return Err(WatchProblem::NotData { at }),
    }
    let pages = at.page()..end.wrapping_add(PAGE_BYTES - 1).page();
    let is_shared = module.regions().iter().any(|region| {
        region.kind != RegionKind::Data
            && region.range.start < pages.end
            && pages.start < region.range.end
    });
    match is_shared {
        true => Err(WatchProblem::CodePage),
        false => Ok(()),
    }
}
