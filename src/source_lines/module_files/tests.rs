use std::process::Command;

use debuginfo::synthetic::Program;
use errors::chain;
use tempfile::TempDir;

use super::*;
use crate::source_lines::debuginfod::tests::Server;

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
    opened_for(files, "kprobe:two_words:sub/m.c:3").map_err(|error| chain(&error))
}

fn opened_for(files: &mut ModuleFiles, spec: &str) -> Result<String, ModuleFileError> {
    let spec: manifest::ProbeSpec = spec.parse().expect("a probe");
    let opened = files.open_named(&spec.module.expect("a module"), MayFetch::Yes(&|_| {}));
    opened.map(|(_, build_id)| build_id)
}

/// A server with the first build of the module, and files with this server and an empty cache.
fn with_server(fixture: &Fixture) -> (Server, ModuleFiles) {
    let path = format!("/buildid/{}/debuginfo", fixture.module().build_id);
    let contents = fs::read(fixture.builds[0].path()).expect("read");
    let server = Server::with_file(&path, &contents);
    let cache = fixture.root.path().join("cache");
    let servers = Debuginfod::at(&[&server.address], &cache);
    let files = ModuleFiles {
        servers: Some(servers),
        ..fixture.files()
    };
    (server, files)
}

#[test]
fn known_build_of_a_module_is_fetched_for_a_probe_and_comes_before_other_files() {
    let fixture = Fixture::new();
    fixture.put(1, &format!("lib/modules/{RELEASE}/two_words.ko"));
    let build_id = fixture.module().build_id;
    let (server, files) = with_server(&fixture);
    let loaded = [("two_words".to_owned(), build_id.clone())];
    let mut files = files.with_builds(KnownBuilds::Loaded(loaded.into()));
    for _ in 0..2 {
        assert_eq!(for_a_probe(&mut files), Ok(build_id.clone()));
    }
    assert_eq!(server.requests().len(), 1, "the cache has the file");
}

#[test]
fn build_id_in_a_probe_is_fetched_if_it_is_whole() {
    let fixture = Fixture::new();
    let build_id = fixture.module().build_id;
    let (server, mut files) = with_server(&fixture);
    let begin = format!("kprobe:two_words@{}:sub/m.c:3", &build_id[..12]);
    let error = opened_for(&mut files, &begin).expect_err("a part");
    assert!(chain(&error).contains("DEBUGINFOD_URLS"), "{error}");
    assert_eq!(server.requests(), [] as [&str; 0]);
    let whole = format!("kprobe:two_words@{build_id}:sub/m.c:3");
    let found = opened_for(&mut files, &whole);
    assert_eq!(found.expect("fetched"), build_id);
}

#[test]
fn without_a_known_build_no_server_is_asked_and_the_error_says_why() {
    let fixture = Fixture::new();
    let (server, mut files) = with_server(&fixture);
    let error = opened_for(&mut files, "kprobe:two_words:sub/m.c:3").expect_err("no file");
    let (text, help) = (chain(&error), error.help().expect("help"));
    assert!(
        text.contains("known only after the guest has loaded"),
        "{text}"
    );
    assert!(help.contains("kprobe:two_words@BUILDID:"), "{help}");
    assert_eq!(server.requests(), [] as [&str; 0]);
    let wanted = "kprobe:two_words@00112233445566778899:sub/m.c:3";
    let text = chain(opened_for(&mut files, wanted).expect_err("no file"));
    assert!(text.contains(&server.address), "{text}");
    let process = MayFetch::No;
    let spec: manifest::ProbeSpec = wanted.parse().expect("a probe");
    let error = files.open_named(&spec.module.expect("a module"), process);
    assert!(error.expect_err("not fetched").is_absence());
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn damaged_file_of_this_host_is_an_absence_and_of_the_user_an_error() {
    let fixture = Fixture::new();
    let path = fixture
        .root
        .path()
        .join(format!("lib/modules/{RELEASE}/two_words.ko"));
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(&path, "no ELF file").expect("written");
    let spec = "kprobe:two_words:sub/m.c:3";
    let error = opened_for(&mut fixture.files(), spec).expect_err("damaged");
    assert!(error.is_absence(), "{error:?}");
    let text = chain(&error);
    assert!(
        text.contains("two_words.ko") && text.contains("ELF"),
        "{text}"
    );
    let mut files = fixture.files();
    files.named = NamedFiles::new(&[path]).expect("no kernel");
    let error = opened_for(&mut files, spec).expect_err("damaged");
    assert!(!error.is_absence(), "{error:?}");
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
