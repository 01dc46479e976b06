use std::fs;
use std::path::PathBuf;

use debuginfo::synthetic::Program;
use tempfile::TempDir;

use super::*;
use crate::cli::RunArgs;
use crate::run::judged::admit;
use crate::run::merge::{Plan, merge};

/// The test guest: `check` is inlined once, and `put_char` several times.
struct Kernel {
    dir: TempDir,
    file: PathBuf,
}

impl Kernel {
    fn build() -> Self {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = guest_images::build_testguest(dir.path()).expect("the test guest compiles");
        Self { dir, file }
    }

    fn strip(&self) {
        let mut strip = std::process::Command::new("strip");
        let status = strip.arg("-g").arg(&self.file).status();
        assert!(status.expect("strip, of binutils").success());
    }

    fn plan(&self, tables: &str) -> (Plan, Guest) {
        let manifest = self.dir.path().join("m.toml");
        let guest = format!("[guest]\nkernel = {:?}\n", self.file);
        fs::write(&manifest, guest + tables).expect("written");
        let args = RunArgs {
            manifest: Some(manifest),
            ..RunArgs::default()
        };
        let plan = merge(&args, &|_| {}).expect("a plan");
        let guest = Guest::load(&plan.config, &|_| {}).expect("a guest");
        (plan, guest)
    }

    /// The plan with places, and the notes.
    fn replaced(&self, tables: &str) -> Result<(Plan, Vec<String>), String> {
        self.replaced_by(tables, &[])
    }

    /// The plan with places by the files `given`, and the notes.
    fn replaced_by(&self, tables: &str, given: &[PathBuf]) -> Result<(Plan, Vec<String>), String> {
        let (mut plan, guest) = self.plan(tables);
        let (config, expectations) = (&mut plan.config, &mut plan.expectations);
        let replaced = replace(config, expectations, &guest, given, MayFetch::No);
        let replaced = replaced.map_err(|error| chain(&error))?;
        let admitted = admit(
            &mut plan.config,
            plan.expectations,
            &guest.kernel,
            &replaced.spellings,
        );
        plan.expectations = admitted.map_err(|error| chain(&error))?;
        Ok((plan, replaced.notes))
    }

    /// The only place of `check:inlined`.
    fn place(&self) -> String {
        let (plan, _) = self
            .replaced("[[probe]]\nat = 'kprobe:check:inlined'\n")
            .expect("a place");
        let [probe] = &plan.config.probes[..] else {
            panic!("{:?}", plan.config.probes);
        };
        assert!(matches!(
            probe.at.location,
            manifest::Location::Symbol { .. }
        ));
        probe.at.to_string()
    }
}

/// The probes of the plan.
fn names(plan: &Plan) -> Vec<String> {
    let probes = plan.config.probes.iter();
    probes.map(|probe| probe.at.to_string()).collect()
}

const EXPECTED: &str = "[[expect]]\nprobe = 'kprobe:check:inlined'\nat_least = 1\n";

#[test]
fn expectation_about_the_place_of_a_filtered_probe_of_another_spelling_is_refused() {
    let kernel = Kernel::build();
    let place = kernel.place();
    let filtered = format!("[[probe]]\nat = '{place}'\nfilter = 'arg2 > 100'\n");
    let counted = "[[probe]]\nat = 'kprobe:check:inlined'\naction = 'count'\n";
    let error = kernel.replaced(&format!("{filtered}{counted}{EXPECTED}"));
    assert_eq!(
        error.expect_err("two probes"),
        format!(
            "[[expect]] is about `{place}`, which the probe `{place}` with its program is not all of; `{place}` is a place of \
             `kprobe:check:inlined`"
        )
    );
    // With one probe, the expectation is about the hits that the filter accepts, as for a symbol.
    let (plan, _) = kernel
        .replaced(&format!("{filtered}{EXPECTED}"))
        .expect("one probe");
    assert!(matches!(&plan.config.probes[..], [probe] if probe.filter.is_some()));
    let aggregate = format!("[[probe]]\nat = '{place}'\naggregate = 'sum(arg2)'\n");
    let never = "[[expect]]\nprobe = 'kprobe:check:inlined'\nnever = true\n";
    let error = kernel.replaced(&format!("{aggregate}{never}"));
    let told = error.expect_err("an aggregate");
    assert!(told.contains("an aggregate keeps none"), "{told}");
}

#[test]
fn probes_at_one_place_without_a_program_become_one() {
    let kernel = Kernel::build();
    let place = kernel.place();
    let probe = format!("[[probe]]\nat = '{place}'\naction = 'count'\n");
    let (plan, notes) = kernel
        .replaced(&format!("{probe}{EXPECTED}"))
        .expect("one probe");
    assert_eq!(names(&plan), [place]);
    assert_eq!(notes, [] as [&str; 0]);
}

#[test]
fn optional_expectation_about_a_place_that_the_kernel_lacks_is_dropped() {
    let kernel = Kernel::build();
    for spec in [
        "kprobe:no_such_function:inlined",
        "kprobe:no_such_file.c:1",
        "kprobe:leave.c:1",
    ] {
        let required = format!("[[expect]]\nprobe = '{spec}'\nnever = true\n");
        let optional = format!("{required}optional = true\n");
        let (plan, notes) = kernel
            .replaced(&format!("{optional}{EXPECTED}"))
            .expect(spec);
        let [note] = &notes[..] else {
            panic!("{notes:?}");
        };
        let expected = format!("an optional expectation is skipped: cannot probe `{spec}`");
        assert!(note.starts_with(&expected), "{note}");
        assert_eq!(plan.expectations.len(), 1, "{spec}");
        assert_eq!(plan.config.probes.len(), 1, "{spec}");
        let told = kernel.replaced(&required).expect_err(spec);
        assert!(told.contains(spec), "{told}");
    }
    // The kernel has these places, and the expectation does not say which is meant.
    let several = "[[expect]]\nprobe = 'kprobe:put_char:inlined'\nnever = true\noptional = true\n";
    let told = kernel.replaced(several).expect_err("several places");
    assert!(told.contains("an expectation is about one place"), "{told}");
}

#[test]
fn without_a_debug_file_only_optional_expectations_are_skipped() {
    let kernel = Kernel::build();
    kernel.strip();
    let optional = format!("{EXPECTED}name = 'checks'\noptional = true\n");
    let (plan, notes) = kernel.replaced(&optional).expect("nothing else needs it");
    assert_eq!(plan.expectations, []);
    let [note] = &notes[..] else {
        panic!("{notes:?}");
    };
    assert!(
        note.starts_with("optional expectations are skipped (checks): "),
        "{note}"
    );
    assert!(note.contains("--debug-info FILE"), "{note}");
    let probe = "[[probe]]\nat = 'kprobe:check:inlined'\n";
    for required in [EXPECTED, probe] {
        let told = kernel
            .replaced(&format!("{optional}{required}"))
            .expect_err("a file is needed");
        assert!(
            told.contains("without the kernel's debug information"),
            "{told}"
        );
    }
}

#[test]
fn place_that_the_engine_cannot_resolve_is_left_out_if_others_remain() {
    let kernel = Kernel::build();
    let place = kernel.place();
    let (_, guest) = kernel.plan("");
    let spec: ProbeSpec = "kprobe:check:inlined".parse().expect("a probe");
    let good: ProbeSpec = place.parse().expect("a probe");
    let bad: ProbeSpec = "kprobe:no_such_function+0x5".parse().expect("a probe");
    let (sites, note) = resolved(
        &guest.kernel,
        &spec,
        vec![Site::only(&bad), Site::only(&good)],
    );
    assert_eq!(sites, [Site::only(&good)]);
    let note = note.expect("a note");
    let expected = "of the 2 places of `kprobe:check:inlined`, 1 are left out: ";
    assert!(note.starts_with(expected), "{note}");
    assert!(note.contains("no_such_function+0x5"), "{note}");
    // With no other place, the check of the run says why.
    let (sites, note) = resolved(&guest.kernel, &spec, vec![Site::only(&bad)]);
    assert_eq!((sites, note), (vec![Site::only(&bad)], None));
}

#[test]
fn line_of_a_module_needs_no_debug_file_of_the_kernel() {
    let kernel = Kernel::build();
    kernel.strip();
    let source = "int begin(int n)\n{\n\treturn n * 3;\n}\n";
    let flags = ["-r", "-mcmodel=kernel"];
    let module = Program::of_sources(&[("sub/m.c", source)], &flags);
    let file = kernel.dir.path().join("m.ko");
    fs::copy(module.path(), &file).expect("copied");
    let probe = "[[probe]]\nat = 'kprobe:m:m.c:3'\n";
    let (plan, notes) = kernel.replaced_by(probe, &[file]).expect("a place");
    let probes = names(&plan);
    let [place] = &probes[..] else {
        panic!("{probes:?}");
    };
    assert!(
        place.starts_with("kprobe:m@") && place.contains(":begin"),
        "{place}"
    );
    assert_eq!(notes, [] as [&str; 0]);
    let told = kernel.replaced(probe).expect_err("no file");
    assert!(
        told.starts_with("cannot probe `kprobe:m:m.c:3`: "),
        "{told}"
    );
    // Another host may have the file.
    let optional = "[[expect]]\nprobe = 'kprobe:m:m.c:3'\nat_least = 1\noptional = true\n";
    let (plan, notes) = kernel.replaced(optional).expect("nothing else needs it");
    assert_eq!(plan.expectations, []);
    assert!(
        notes[0].starts_with("an optional expectation is skipped: "),
        "{notes:?}"
    );
}

#[test]
fn file_of_a_module_alone_gives_lines_to_frames_and_the_kernel_s_reason() {
    let kernel = Kernel::build();
    kernel.strip();
    let file = kernel.dir.path().join("m.ko");
    fs::write(&file, "").expect("written");
    let (mut plan, guest) = kernel.plan("");
    let (config, expectations) = (&mut plan.config, &mut plan.expectations);
    let replaced = replace(config, expectations, &guest, &[file], MayFetch::No);
    let files = replaced.expect("no probe").files.expect("files");
    let why = files.kernel.expect_err("the kernel is stripped");
    assert!(why.contains("no debug file of the kernel"), "{why}");
    assert!(why.contains("--debug-info FILE"), "{why}");
}

#[test]
fn damaged_file_of_a_module_that_the_user_names_is_an_error_also_for_an_optional_expectation() {
    let kernel = Kernel::build();
    let file = kernel.dir.path().join("m.ko");
    fs::write(&file, "no ELF file").expect("written");
    let optional = "[[expect]]\nprobe = 'kprobe:m:m.c:3'\nat_least = 1\noptional = true\n";
    let told = kernel.replaced_by(optional, &[file]).expect_err("damaged");
    assert!(told.contains("m.ko") && told.contains("ELF"), "{told}");
}

#[test]
fn probe_that_is_traced_has_the_variables_of_the_line() {
    let kernel = Kernel::build();
    let names = |action: &str| {
        let probe = format!("[[probe]]\nat = 'kprobe:put_char:inlined'\n{action}");
        let (plan, _) = kernel.replaced(&probe).expect("places");
        let probes = plan.config.probes.iter();
        let names = probes.map(|probe| {
            let variables = probe.variables.iter();
            variables.map(|variable| variable.name.clone()).collect()
        });
        names.collect::<Vec<Vec<String>>>()
    };
    let traced = names("");
    assert!(!traced.is_empty());
    assert!(traced.iter().all(|names| names[0] == "c"), "{traced:?}");
    // An expectation about the same place leaves the probe as it is.
    let (plan, _) = kernel
        .replaced(&format!(
            "[[probe]]\nat = 'kprobe:check:inlined'\n{EXPECTED}"
        ))
        .expect("a place");
    let [probe] = &plan.config.probes[..] else {
        panic!("{:?}", plan.config.probes);
    };
    assert!(!probe.variables.is_empty());
    for action in ["action = 'count'", "aggregate = 'sum(arg0)'"] {
        assert!(names(action).iter().all(Vec::is_empty), "{action}");
    }
}
