use std::fs;
use std::path::Path;
use std::process::Command;

use introspect::BuildId;

use super::open;
use crate::synthetic::Program;
use crate::{DebugInfo, OpenError};

#[test]
fn build_id_is_that_of_the_file() {
    let program = Program::compile(&[]);
    let bytes = fs::read(program.path()).expect("read");
    let id = BuildId::of_elf(&bytes).expect("a build-id");
    assert_eq!(open(&program).build_id(), Some(&id));
    assert_eq!(id.to_string().len(), 40);
    let without = Program::compile(&["-Wl,--build-id=none"]);
    assert_eq!(open(&without).build_id(), None);
}

#[test]
fn wrong_files_are_refused_with_their_kind() {
    let refused = |path: &Path| DebugInfo::open(path).expect_err("refused");
    assert!(matches!(
        refused(Path::new("/dev/zero")),
        OpenError::File(_)
    ));
    assert!(matches!(
        refused(Path::new("/nonexistent")),
        OpenError::File(_)
    ));
    assert!(matches!(
        refused(Path::new("/etc/passwd")),
        OpenError::Elf(_)
    ));
    let bare = Program::compile(&["-g0", "-s"]);
    let error = refused(&bare.path());
    assert!(matches!(error, OpenError::NoDebugInfo { .. }), "{error}");
    let object = Program::compile(&["-r", "-Wl,--build-id=none"]);
    assert!(matches!(refused(&object.path()), OpenError::Relocatable));
}

#[test]
fn file_with_functions_in_other_files_is_refused() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let program = Program::compile(&[version, "-gsplit-dwarf"]);
        let error = DebugInfo::open(&program.path()).expect_err("refused");
        assert!(matches!(error, OpenError::Split), "{version}: {error}");
    }
}

#[test]
fn old_form_of_compression_is_named_with_the_way_out() {
    let program = Program::compile(&[]);
    let objcopy = |option: &str, to: &Path| {
        let mut command = Command::new("objcopy");
        let status = command.arg(option).arg(program.path()).arg(to).status();
        assert!(status.expect("objcopy").success(), "{option}");
    };
    let compressed = program.path().with_extension("compressed");
    objcopy("--compress-debug-sections=zlib-gnu", &compressed);
    let error = DebugInfo::open(&compressed).expect_err("refused");
    assert!(matches!(error, OpenError::OldCompression), "{error}");
}
