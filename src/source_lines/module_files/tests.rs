use std::process::Command;

use debuginfo::synthetic::Program;
use errors::chain;
use tempfile::TempDir;

use super::*;

const RELEASE: &str = "6.1.0-x";
const SOURCE: &str = "int begin(int n)\n{\n\treturn n + 1;\n}\n";

/// A folder of debug files with two builds of a module.
struct Fixture {
    root: TempDir,
    builds: [Program; 2],
}

impl Fixture {
    fn new() -> Self {
        let build = |flags: &[&str]| {
            let flags = [&["-r", "-mcmodel=kernel"], flags].concat();
            Program::of_sources(&[("sub/m.c", SOURCE)], &flags)
        };
        Self {
            root: tempfile::tempdir().expect("tempdir"),
            builds: [
                build(&[]),
                build(&["-DOTHER", "-fno-align-functions", "-O0"]),
            ],
        }
    }

    fn files(&self) -> ModuleFiles {
        ModuleFiles {
            package: Some("linux-image-6.1.0-x-dbg".to_owned()),
            ..ModuleFiles::below(self.root.path(), RELEASE)
        }
    }

    /// The module that the guest has: the first build, called `two_words`.
    fn module(&self) -> ModuleId {
        let info = DebugInfo::open_module(&self.builds[0].path(), &[]).expect("a module");
        ModuleId {
            name: "two_words".to_owned(),
            build_id: info.build_id().expect("a build-id").to_string(),
        }
    }

    /// Puts the build with this number at `path` below the folder.
    fn put(&self, build: usize, path: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::copy(self.builds[build].path(), path).expect("copied");
    }
}

#[test]
fn file_is_found_by_build_id_and_by_the_name_of_the_module() {
    let fixture = Fixture::new();
    let module = fixture.module();
    let (first, rest) = module.build_id.split_at(2);
    for path in [
        format!(".build-id/{first}/{rest}.debug"),
        format!("lib/modules/{RELEASE}/kernel/drivers/two-words.ko"),
        format!("usr/lib/modules/{RELEASE}/kernel/drivers/two_words.ko.debug"),
    ] {
        fixture.put(0, &path);
        let info = fixture.files().open(&module).expect(&path);
        assert!(info.symbols().lookup("begin").is_some());
        // Another release has other modules.
        let mut other = ModuleFiles {
            release: Some("6.2.0".to_owned()),
            ..fixture.files()
        };
        let is_found = other.open(&module).is_ok();
        assert_eq!(is_found, path.starts_with(".build-id"), "{path}");
        fs::remove_file(fixture.root.path().join(path)).expect("removed");
    }
}

#[test]
fn file_in_the_cache_of_debuginfod_is_found() {
    let fixture = Fixture::new();
    let module = fixture.module();
    fixture.put(0, &format!("cache/{}/debuginfo", module.build_id));
    let mut files = fixture.files();
    assert!(files.open(&module).is_err());
    files.servers = Some(Debuginfod::at(
        &["http://a"],
        &fixture.root.path().join("cache"),
    ));
    files.open(&module).expect("found");
}

#[test]
fn compressed_file_is_found() {
    let fixture = Fixture::new();
    let path = format!("lib/modules/{RELEASE}/two_words.ko");
    fixture.put(0, &path);
    let status = Command::new("xz")
        .arg(fixture.root.path().join(&path))
        .status();
    assert!(status.expect("xz").success());
    fixture.files().open(&fixture.module()).expect("found");
}

#[test]
fn file_of_another_build_is_refused_with_both_build_ids_and_the_search_goes_on() {
    let fixture = Fixture::new();
    let module = fixture.module();
    fixture.put(1, &format!("lib/modules/{RELEASE}/a/two_words.ko"));
    let error = fixture.files().open(&module).expect_err("another build");
    let ModuleFileError::OtherBuild { theirs, .. } = &error else {
        panic!("{error}")
    };
    assert_ne!(*theirs, module.build_id);
    let text = error.to_string();
    for id in [theirs, &module.build_id] {
        assert!(text.contains(id.as_str()), "{text}");
    }
    fixture.put(0, &format!("lib/modules/{RELEASE}/b/two-words.ko"));
    fixture.files().open(&module).expect("the right one");
}

#[test]
fn missing_and_damaged_files_are_named() {
    let fixture = Fixture::new();
    let module = fixture.module();
    let text = fixture.files().open(&module).expect_err("none").to_string();
    for part in [
        "two_words",
        &module.build_id,
        "install Debian's linux-image-6.1.0-x-dbg",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let path = format!("lib/modules/{RELEASE}/two_words.ko");
    fixture.put(0, &path);
    fs::write(fixture.root.path().join(&path), "no ELF file").expect("written");
    let text = chain(fixture.files().open(&module).expect_err("damaged"));
    assert!(text.contains(&path) && text.contains("ELF"), "{text}");
}

#[test]
fn name_or_build_id_of_a_hostile_guest_leads_to_no_file() {
    let fixture = Fixture::new();
    fixture.put(0, "two_words.ko");
    let hostile = [
        ("../../two_words", "00ab"),
        ("two_words", "/../../../two_words.ko"),
        ("two_words", "é"),
        ("two_words", ""),
        ("two_words", "0"),
    ];
    for (name, build_id) in hostile {
        let module = ModuleId {
            name: name.to_owned(),
            build_id: build_id.to_owned(),
        };
        let error = fixture.files().open(&module).expect_err(name);
        assert!(matches!(error, ModuleFileError::Missing { .. }), "{error}");
    }
}

/// The path of the file for a probe in any build of the module.
fn for_a_probe(files: &mut ModuleFiles) -> Result<String, String> {
    let spec: manifest::ProbeSpec = "kprobe:two_words:sub/m.c:3".parse().expect("a probe");
    let opened = files.open_named(&spec.module.expect("a module"));
    opened
        .map(|(_, build_id)| build_id)
        .map_err(|error| chain(&error))
}

#[test]
fn update_of_a_module_comes_before_the_kernels_own() {
    let fixture = Fixture::new();
    fixture.put(1, &format!("lib/modules/{RELEASE}/kernel/two_words.ko"));
    fixture.put(
        0,
        &format!("lib/modules/{RELEASE}/updates/dkms/two_words.ko"),
    );
    let build_id = fixture.module().build_id;
    assert_eq!(for_a_probe(&mut fixture.files()), Ok(build_id));
}

#[test]
fn probe_uses_no_other_file_than_those_of_the_user() {
    let fixture = Fixture::new();
    fixture.put(0, &format!("lib/modules/{RELEASE}/kernel/two_words.ko"));
    let named = fixture.root.path().join("two_words.ko");
    let mut files = fixture.files();
    files.named = NamedFiles::new(std::slice::from_ref(&named)).expect("no kernel");
    let error = for_a_probe(&mut files).expect_err("the file is missing");
    assert!(error.contains(&*named.to_string_lossy()), "{error}");
    fixture.put(1, "two_words.ko");
    let build_id = for_a_probe(&mut files).expect("the user's");
    assert_ne!(build_id, fixture.module().build_id);
}
