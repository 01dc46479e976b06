//! The module of a probe.

use std::fmt;

/// A module by name, and if need be by build.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModuleSpec {
    /// The kernel's name of the module.
    pub name: String,
    /// Hexadecimal digits that the module's build-id begins with. The site in another build would be another instruction.
    pub build: Option<String>,
}

impl ModuleSpec {
    /// Whether a module with the build-id `build_id`, in hexadecimal digits, is of the build.
    #[must_use]
    pub fn is_of_build(&self, build_id: Option<&str>) -> bool {
        let begins = |build: &String| build_id.is_some_and(|id| id.starts_with(build.as_str()));
        self.build.as_ref().is_none_or(begins)
    }

    /// Whether the text is `text`.
    pub(super) fn is_called(&self, text: &str) -> bool {
        let (name, build) = match text.split_once('@') {
            Some((name, build)) => (name, Some(build)),
            None => (text, None),
        };
        name == self.name && build == self.build.as_deref()
    }
}

/// Prints `NAME` or `NAME@BUILD`.
impl fmt::Display for ModuleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.build {
            Some(build) => write!(f, "@{build}"),
            None => Ok(()),
        }
    }
}
