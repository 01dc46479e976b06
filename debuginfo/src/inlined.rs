//! The inlined copies of a function.

use std::collections::BTreeSet;

use address::Gva;

use crate::contents::Contents;
use crate::error::InlinedError;
use crate::names::Names;
use crate::scopes;

/// The addresses of the inlined copies of `function`.
pub(crate) fn find(contents: &Contents, function: &str) -> Result<Vec<Gva>, InlinedError> {
    let reader = contents.reader();
    let list = &contents.list.units;
    let mut budget = contents.budget();
    let mut found = BTreeSet::new();
    for index in list {
        let unit = reader.open(index.offset, &mut budget)?;
        // Names of one unit are seldom those of another.
        let mut names = Names::new(&reader, list);
        let unit = reader.unit_ref(&unit);
        scopes::visit(unit, &mut budget, |scope, attributes, budget| {
            if scope.call.is_some()
                && names.of_entry(unit, attributes, budget)?.as_deref() == Some(function)
            {
                found.insert(Gva(scope.entry));
            }
            Ok(())
        })?;
    }
    if found.is_empty() {
        let function = function.to_owned();
        return Err(InlinedError::NoCopy { function });
    }
    Ok(found.into_iter().collect())
}
