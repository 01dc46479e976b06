//! The selection of cases by parts of their names, separated by commas: `--only`.

/// Whether one of the parts of `only` is in the case's name.
pub(crate) fn is_selected(only: &str, case: &str) -> bool {
    only.split(',').any(|part| case.contains(part))
}
