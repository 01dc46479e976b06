//! The functions and types of the kernel that probes in programs need.

use inspect::FileLayout;

use super::program_problem::ProgramProblem;
use crate::kernel::Kernel;
use crate::registry::FileEvent;

/// Checks that the kernel has the functions and types for probes in programs.
pub(super) fn check(kernel: &Kernel) -> Result<(), ProgramProblem> {
    let types = kernel.types();
    let types = types.map_err(|error| ProgramProblem::NoTypes(error.to_string()))?;
    FileLayout::new(types).map_err(|error| ProgramProblem::NoTypes(error.to_string()))?;
    FileEvent::needed(kernel).into_iter().try_for_each(|names| {
        let mut events = names.iter();
        let has_any = events.any(|event| event.arguments(kernel).is_some());
        has_any
            .then_some(())
            .ok_or(ProgramProblem::NoEvent(names[0].function()))
    })
}
