//! From source lines and inlined copies in modules to symbols with offsets.
//!
//! A module gets its addresses when the kernel loads it, perhaps long after the probe was requested. So a site is a symbol with an offset, and
//! the first digits of the build-id: the engine compares the digits with those of the loaded module, and refuses the site in another build.

use std::collections::HashMap;

use debuginfo::DebugInfo;
use manifest::{Location, ModuleSpec, ProbeSpec};

use super::debug_file::MayFetch;
use super::module_files::ModuleFiles;
use super::sites::{SiteError, Sites, SourceSiteError, at_places, places};

/// As many digits of a build-id as git shows of a commit.
const BUILD_DIGITS: usize = 12;

/// The opened debug files of modules.
#[derive(Debug)]
pub(super) struct ModuleSites {
    files: ModuleFiles,
    opened: HashMap<ModuleSpec, OpenedModule>,
}

/// A module's debug file.
#[derive(Debug)]
struct OpenedModule {
    info: DebugInfo,
    build_id: String,
}

impl ModuleSites {
    pub(super) fn new(files: ModuleFiles) -> Self {
        Self {
            files,
            opened: HashMap::new(),
        }
    }

    /// The files, for the lines of frames.
    pub(super) fn into_files(self) -> ModuleFiles {
        self.files
    }

    /// The probes in place of `spec`, which is at a source line or at inlined copies in `module`.
    pub(super) fn of(
        &mut self,
        spec: &ProbeSpec,
        module: &ModuleSpec,
        may_fetch: MayFetch<'_>,
    ) -> Result<Sites, SourceSiteError> {
        if !self.opened.contains_key(module) {
            let opened = self.files.open_named(module, may_fetch);
            let (info, build_id) = opened.map_err(Box::new)?;
            let opened = OpenedModule { info, build_id };
            self.opened.insert(module.clone(), opened);
        }
        Ok(self.opened[module].sites(spec, module)?)
    }
}

impl OpenedModule {
    fn sites(&self, spec: &ProbeSpec, module: &ModuleSpec) -> Result<Sites, SiteError> {
        let asked = module.build.as_ref().map_or(0, String::len);
        let digits = self.build_id.get(..asked.max(BUILD_DIGITS));
        let built = ProbeSpec {
            module: Some(ModuleSpec {
                name: module.name.clone(),
                build: Some(digits.unwrap_or(&self.build_id).to_owned()),
            }),
            ..spec.clone()
        };
        let places = places(&self.info, spec)?;
        let found = at_places(&built, places, |address| {
            let Some(within) = self.info.module_function_at(address) else {
                return Ok(None);
            };
            let name = within.symbol.name;
            let namesakes = self.info.symbols().lookup_all(&name);
            match namesakes
                .iter()
                .all(|it| it.address == within.symbol.address)
            {
                true => Ok(Some(Location::Symbol {
                    name,
                    offset: within.offset,
                })),
                false => Err(SiteError::AmbiguousInModule {
                    spec: spec.to_string(),
                    name,
                }),
            }
        });
        // The addresses of a module's file mean nothing to a user.
        found.map_err(|error| match error {
            SiteError::Outside { .. } => SiteError::OutsideModule {
                spec: spec.to_string(),
            },
            error => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use debuginfo::synthetic::Program;
    use errors::chain;

    use super::*;
    use crate::source_lines::NamedFiles;

    const SOURCE: &str = "\
volatile int sink;
static inline __attribute__((always_inline)) void leaf(int n)
{
	sink = n;
}
static __attribute__((noinline)) void twice(void)
{
	sink = 1;
}
int begin(int n)
{
	leaf(n);
	twice();
	return n;
}
";
    const OTHER: &str = "\
extern volatile int sink;
static __attribute__((noinline)) void twice(void)
{
	sink = 2;
}
int other(void)
{
	twice();
	return 5;
}
";

    fn module() -> Program {
        let sources = [("sub/m.c", SOURCE), ("sub/o.c", OTHER)];
        Program::of_sources(&sources, &["-r", "-mcmodel=kernel"])
    }

    /// The sites by the file `path`, called as the file of the module `m`, and the file's build-id.
    fn sites(program: &Path, spec: &str) -> (Result<Vec<String>, String>, String) {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("m.ko");
        std::fs::copy(program, &file).expect("copied");
        let info = DebugInfo::open_module(&file, &[]).expect("a module");
        let build_id = info.build_id().expect("a build-id").to_string();
        let named = NamedFiles::new(&[file]).expect("a module");
        let spec: ProbeSpec = spec.parse().expect("a probe");
        let module = spec.module.clone().expect("a module");
        let found = ModuleSites::new(ModuleFiles::of_named(named)).of(&spec, &module, MayFetch::No);
        let names = |found: Sites| {
            found
                .sites
                .iter()
                .map(|site| site.spec.to_string())
                .collect()
        };
        (found.map(names).map_err(|error| chain(&error)), build_id)
    }

    #[test]
    fn line_of_a_module_is_a_symbol_with_an_offset_in_the_build() {
        let program = module();
        for spec in ["kprobe:m:m.c:12", "kprobe:m:leaf:inlined"] {
            let (found, build_id) = sites(&program.path(), spec);
            let found = found.expect(spec);
            let begin = format!("kprobe:m@{}:begin", &build_id[..BUILD_DIGITS]);
            assert!(
                matches!(&found[..], [site] if site.starts_with(&begin)),
                "{found:?}"
            );
        }
        let (found, _) = sites(&program.path(), "kprobe:m:m.c:1");
        let error = found.expect_err("no code");
        assert!(
            error.starts_with("cannot probe `kprobe:m:m.c:1`"),
            "{error}"
        );
    }

    #[test]
    fn function_whose_name_another_of_the_module_has_is_refused() {
        let (found, _) = sites(&module().path(), "kprobe:m:o.c:4");
        assert_eq!(
            found.expect_err("two functions"),
            "cannot probe `kprobe:m:o.c:4`: it is in one of several functions of the module called `twice`"
        );
    }

    #[test]
    fn file_of_another_build_than_the_wanted_is_no_file() {
        let program = module();
        let (_, build_id) = sites(&program.path(), "kprobe:m:m.c:12");
        let wanted = format!("kprobe:m@{build_id}:m.c:12");
        let (found, _) = sites(&program.path(), &wanted);
        let expected = format!("kprobe:m@{build_id}:begin");
        assert!(found.expect("the build")[0].starts_with(&expected));
        let (found, _) = sites(&program.path(), "kprobe:m@0000000000:m.c:12");
        let error = found.expect_err("another build");
        assert!(
            error.contains("no debug file of the module `m@0000000000`"),
            "{error}"
        );
    }
}
