//! The inlined copies of a function.

use std::collections::{BTreeMap, BTreeSet};

use address::Gva;

use crate::contents::Contents;
use crate::error::InlinedError;
use crate::names::Names;
use crate::scopes::{self, SourcePlace};

/// The most declarations in an error.
const MAX_DECLARATIONS: usize = 8;

/// The places of the inlined copies of `function`.
pub(crate) fn find(contents: &Contents, function: &str) -> Result<Vec<SourcePlace>, InlinedError> {
    let reader = contents.reader();
    let list = &contents.list.units;
    let mut budget = contents.budget();
    let mut found = BTreeMap::new();
    // Functions of different files may have one name.
    let mut declarations = BTreeSet::new();
    for index in list {
        let unit = reader.open(index.offset, &mut budget)?;
        // Names of one unit are seldom those of another.
        let mut names = Names::new(&reader, list);
        let unit = reader.unit_ref(&unit);
        scopes::visit(unit, &mut budget, |scope, attributes, budget| {
            if scope.call.is_none() {
                return Ok(());
            }
            let name = names.of_entry(unit, attributes, budget)?;
            if let Some(name) = name.filter(|name| *name.text == *function) {
                found.entry(Gva(scope.entry)).or_insert(scope.entries);
                declarations.extend(names.declaration(unit, &name, budget)?);
            }
            Ok(())
        })?;
    }
    let function = function.to_owned();
    if found.is_empty() {
        return Err(InlinedError::NoCopy { function });
    }
    if declarations.len() > 1 {
        let shown = declarations.iter().take(MAX_DECLARATIONS);
        let shown = shown.map(|(path, line)| format!("{}:{line}", contents.shown(path)));
        return Err(InlinedError::Ambiguous {
            function,
            declarations: shown.collect(),
        });
    }
    let places = found.into_iter().map(|(address, scope)| SourcePlace {
        address,
        scope: Some(scope),
    });
    Ok(places.collect())
}
