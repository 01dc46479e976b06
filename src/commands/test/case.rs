//! A test case: a manifest with the settings of the matrix put over the manifest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::TestError;
use crate::cli::{RunArgs, Setting, TestArgs};
use crate::config::Console;
use crate::run::merge::{MergeError, Plan, merge};
use crate::source_lines::FetchProcess;

/// The timeout if neither the command line nor the manifest gives a timeout: no user sits beside a test and ends the guest.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// The maximum depth of folders in folders.
const MAX_DEPTH: usize = 8;

/// A guest to boot.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// The index among all cases, including the cases of other shards.
    pub(super) number: usize,
    /// The manifest and the settings of the matrix.
    pub(super) name: String,
    /// The name of the folder for the case's artifacts.
    pub(super) folder: String,
    /// The run.
    pub(super) plan: Plan,
    /// The debug file of the kernel, if the user names one.
    pub(super) debug_info: Vec<PathBuf>,
    /// The process that fetches debug files of modules, if there is one.
    pub(super) fetches: Option<FetchProcess>,
}

impl Case {
    /// Reads the manifest. If a stock kernel has to be fetched, `say` reports the progress.
    pub(super) fn read(
        number: usize,
        file: &Path,
        settings: &[Setting],
        args: &TestArgs,
        say: &dyn Fn(String),
    ) -> Result<Self, MergeError> {
        let mut run = RunArgs {
            manifest: Some(file.to_owned()),
            accel: args.accel,
            // No input is typed; the output is kept.
            console: Some(Console::None),
            no_sandbox: args.no_sandbox,
            ..RunArgs::default()
        };
        for setting in settings {
            // The value was tried when the matrix was parsed.
            let _ = setting.apply(&mut run);
        }
        let name = name(file, settings);
        let mut plan = merge(&run, say)?;
        let timeout = args.timeout.or(plan.config.timeout);
        plan.config.timeout = Some(timeout.unwrap_or(DEFAULT_TIMEOUT));
        plan.config.control = None;
        plan.config.dump_on_crash = args.dump_on_crash;
        let folder = folder(&name);
        Ok(Self {
            number,
            name,
            folder,
            plan,
            debug_info: args.debug_info.clone(),
            fetches: None,
        })
    }
}

/// The name of a folder for the case `name`.
fn folder(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.=".contains(c);
    let name = name.trim_start_matches(['.', '/']);
    name.chars()
        .map(|c| if fits(c) { c } else { '-' })
        .collect::<String>()
        .trim_end_matches('-')
        .to_owned()
}

/// The name of the case: the manifest, and the settings of the matrix.
pub(super) fn name(file: &Path, settings: &[Setting]) -> String {
    let name = file.with_extension("").display().to_string();
    if settings.is_empty() {
        return name;
    }
    let words: Vec<_> = settings.iter().map(Setting::in_words).collect();
    format!("{name} [{}]", words.join(" "))
}

/// A folder name for each case: `a/b.toml` and `a-b.toml` would share a folder.
pub(super) fn folders(names: &[String]) -> Vec<String> {
    let plain: Vec<String> = names.iter().map(|name| folder(name)).collect();
    let mut cases: BTreeMap<&str, usize> = BTreeMap::new();
    for folder in &plain {
        *cases.entry(folder).or_default() += 1;
    }
    let own = |(number, folder): (usize, &String)| match cases.get(folder.as_str()) {
        // No other folder name has a `~`.
        Some(2..) => format!("{folder}~{number}"),
        _ => folder.clone(),
    };
    plain.iter().enumerate().map(own).collect()
}

/// The manifests named by `paths` or in the folders of `paths`, the files of each folder in order.
pub(super) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, TestError> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            collect(path, MAX_DEPTH, &mut files)?;
        } else {
            files.push(path.clone());
        }
    }
    if files.is_empty() {
        return Err(TestError::Nothing {
            folders: paths
                .iter()
                .map(|path| path.display().to_string())
                .collect(),
        });
    }
    Ok(files)
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), TestError> {
    let failed = |source| TestError::Read {
        path: folder.to_owned(),
        source,
    };
    let entries: Result<Vec<_>, _> = fs::read_dir(folder).map_err(failed)?.collect();
    let mut paths: Vec<_> = entries
        .map_err(failed)?
        .into_iter()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if depth > 0 {
                collect(&path, depth - 1, files)?;
            }
        } else if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_with_similar_names_have_folders_of_their_own() {
        let names = ["a/b", "./a-b", "c [cpus=1]"].map(str::to_owned);
        assert_eq!(folders(&names), ["a-b~0", "a-b~1", "c--cpus=1"]);
    }

    #[test]
    fn folders_are_searched_in_order() {
        let dir = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("c")).expect("mkdir");
        for name in ["d.toml", "a.toml", "c/x.toml", "b.txt"] {
            fs::write(at(name), "").expect("write");
        }
        let found = files(&[dir.path().to_owned()]).expect("files");
        assert_eq!(found, ["a.toml", "c/x.toml", "d.toml"].map(at));
        assert_eq!(files(&["x".into()]).expect("a file"), [Path::new("x")]);
        fs::create_dir(at("empty")).expect("mkdir");
        files(&[at("empty")]).expect_err("nothing");
    }
}
