//! The messages for bad input, word by word, and the exit codes. No test needs KVM: hyprobe finds errors in the user's files before
//! looking for a machine.

mod bounds;
mod dumps;
mod https;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use assert_cmd::Command;
use tempfile::TempDir;

/// A working folder, with an image cache that stays empty.
struct Folder(TempDir);

/// The result of a command.
struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().expect("tempdir"))
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.0.path().join(name), contents).expect("write");
        self
    }

    fn hyprobe(&self, args: &[&str]) -> Outcome {
        let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
            .args(args)
            .current_dir(self.0.path())
            .env("HYPROBE_CACHE", self.0.path().join("cache"))
            .timeout(PATIENCE)
            .output()
            .expect("hyprobe");
        let folder = format!("{}/", self.0.path().display());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&folder, "");
        Outcome {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    /// Asserts that the command fails with `code` and prints exactly `stderr`.
    #[track_caller]
    fn refuses(&self, args: &[&str], code: i32, stderr: &str) {
        let outcome = self.hyprobe(args);
        assert_eq!(outcome.stderr.trim_end(), stderr.trim_end());
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(code), ""));
    }
}

/// The time limit of a refusal, long enough for a busy host.
const PATIENCE: Duration = Duration::from_secs(100);

/// A small kernel with symbols: the bare-metal test guest.
fn kernel() -> &'static str {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let dir = TempDir::new().expect("tempdir");
        let path = guest_images::build_testguest(dir.path()).expect("test guest");
        (dir, path)
    });
    path.to_str().expect("path")
}

/// The beginning of a bzImage whose header announces more bytes.
fn truncated_bzimage() -> Vec<u8> {
    let mut image = vec![0; 0x400];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1f1, &[1]); // setup_sects
    put(0x1fe, &[0x55, 0xaa]);
    put(0x200, &[0xeb, 0x66]);
    put(0x202, b"HdrS");
    put(0x206, &0x20f_u16.to_le_bytes());
    put(0x24c, &0x1000_u32.to_le_bytes()); // payload_length
    image
}

#[test]
fn usage() {
    let folder = Folder::new();
    folder.refuses(
        &["run"],
        2,
        "\
error: there is nothing to boot
  help: name a kernel: --kernel FILE, --image debian-6.1, or a manifest",
    );
    folder.refuses(
        &["run", "--kernel", "k", "--memory", "256"],
        2,
        "\
error: invalid value '256' for '--memory <SIZE>': `256` has no unit; write a number and K, M or G, like 256M

For more information, try '--help'.",
    );
    folder.refuses(
        &["run", "--kernel", "k", "--accel", "kvn"],
        2,
        "\
error: invalid value 'kvn' for '--accel <WHERE>'
  [possible values: auto, kvm, nested]

  tip: a similar value exists: 'kvm'

For more information, try '--help'.",
    );
    for args in [
        ["run", "--cpus=0"],
        ["run", "--cpus=255"],
        ["run", "--timeout=60"],
    ] {
        assert_eq!(folder.hyprobe(&args).code, Some(2), "{args:?}");
    }
    let both = folder.hyprobe(&["run", "--kernel", "k", "--image", "debian-6.1"]);
    assert!(
        both.stderr.contains("cannot be used with"),
        "{}",
        both.stderr
    );
    assert_eq!(both.code, Some(2));
}

#[test]
fn help_names_the_exit_codes() {
    let outcome = Folder::new().hyprobe(&["--help"]);
    assert_eq!(outcome.code, Some(0));
    assert!(outcome.stdout.contains("5  timeout"), "{}", outcome.stdout);
}

#[test]
fn probes_that_are_none() {
    let folder = Folder::new();
    folder.refuses(
        &["run", "--kernel", "k", "-p", "fexit:main"],
        2,
        "\
error: `fexit:main` is not a probe
  caused by: this version has no fexit probes
  help: there is: kprobe, kretprobe, syscall, retsyscall, tracepoint, watch, uprobe, uretprobe, usdt",
    );
    folder.refuses(
        &["run", "--kernel", "k", "-p", "kprob:vfs_read"],
        2,
        "\
error: `kprob:vfs_read` is not a probe
  caused by: there is no probe kind `kprob`
  help: did you mean `kprobe`?",
    );
}

#[test]
fn typo_in_a_manifest_is_labelled() {
    let folder = Folder::new();
    folder.file("run.toml", "[guest]\nkernl = \"vmlinuz\"\n");
    folder.refuses(
        &["run", "run.toml"],
        2,
        "\
error: run.toml is not a valid manifest
  × [guest] has no key `kernl`
   ╭─[run.toml:2:1]
 1 │ [guest]
 2 │ kernl = \"vmlinuz\"
   · ──┬──
   ·   ╰── not known
   ╰────
  help: did you mean `kernel`? there are `kernel`, `image`, `initrd`, `workload`, `modules`,
        `cmdline`, `memory`, `cpus` and `boot`",
    );
}

#[test]
fn a_manifest_shows_all_that_is_wrong() {
    let folder = Folder::new();
    folder.file(
        "run.toml",
        "[guest]\nmemory = 256\n[[probe]]\nat = \"kprobe:vfs_*+5\"\n",
    );
    folder.refuses(
        &["run", "run.toml"],
        2,
        "\
error: run.toml is not a valid manifest
  × `memory` must be a string, not an integer
   ╭─[run.toml:2:10]
 1 │ [guest]
 2 │ memory = 256
   ·          ─┬─
   ·           ╰── an integer
 3 │ [[probe]]
   ╰────
  help: write it with a unit and in quotes: memory = \"256M\"
  × this is not a probe: a pattern has no offset: the same offset would be inside another
  │ instruction in each function
   ╭─[run.toml:4:20]
 3 │ [[probe]]
 4 │ at = \"kprobe:vfs_*+5\"
   ·                    ┬
   ·                    ╰── here
   ╰────",
    );
}

#[test]
fn a_manifest_that_is_not_there() {
    Folder::new().refuses(
        &["run", "run.toml"],
        2,
        "\
error: cannot read the manifest run.toml
  caused by: No such file or directory (os error 2)",
    );
}

#[test]
fn files_that_are_no_kernels() {
    let folder = Folder::new();
    folder
        .file("notes.txt", "hello, world")
        .file("empty", "")
        .file("cut", truncated_bzimage());
    folder.refuses(
        &["run", "--kernel", "missing"],
        2,
        "\
error: cannot read the kernel missing
  caused by: No such file or directory (os error 2)",
    );
    folder.refuses(
        &["run", "--kernel", "notes.txt"],
        2,
        "error: notes.txt is not a kernel: it starts with 68 65 6c 6c 6f 2c 20 77; \
         expected an ELF vmlinux (7f 45 4c 46) or a bzImage (\"HdrS\" at offset 0x202)",
    );
    folder.refuses(
        &["symbols", "--kernel", "empty", "vfs_read"],
        2,
        "error: empty is not a kernel: it is empty; \
         expected an ELF vmlinux (7f 45 4c 46) or a bzImage (\"HdrS\" at offset 0x202)",
    );
    let cut = folder.hyprobe(&["run", "--kernel", "cut"]);
    assert_eq!(cut.code, Some(2));
    assert!(cut.stderr.contains("it is truncated"), "{}", cut.stderr);
}

#[test]
fn a_kernel_that_is_cut_off() {
    let folder = Folder::new();
    let whole = std::fs::read(kernel()).expect("read");
    for bytes in [64, 100, whole.len() / 2] {
        folder.file("vmlinux", &whole[..bytes]);
        let outcome = folder.hyprobe(&["run", "--kernel", "vmlinux"]);
        assert_eq!(outcome.code, Some(2), "{bytes}: {}", outcome.stderr);
        assert!(
            outcome.stderr.starts_with("error: "),
            "{bytes}: {}",
            outcome.stderr
        );
    }
}

#[test]
fn a_name_that_no_symbol_has() {
    let folder = Folder::new();
    let symbols = folder
        .hyprobe(&["symbols", "--kernel", kernel(), "--json", "*"])
        .stdout;
    let known = symbols
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("json"))
        .filter(|symbol| symbol["type"] == "T" || symbol["type"] == "t")
        .filter_map(|symbol| symbol["name"].as_str().map(str::to_owned))
        .max_by_key(String::len)
        .expect("a function");
    let slip = &known[..known.len() - 1];

    let run = folder.hyprobe(&["run", "--kernel", kernel(), "-p", &format!("kprobe:{slip}")]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr
            .contains(&format!("the kernel has no symbol `{slip}`")),
        "{}",
        run.stderr
    );
    assert!(
        run.stderr.contains("help: near names: ") && run.stderr.contains(&known),
        "{}",
        run.stderr
    );

    let search = folder.hyprobe(&["symbols", "--kernel", kernel(), slip]);
    assert_eq!((search.code, search.stdout.as_str()), (Some(1), ""));
    assert!(
        search
            .stderr
            .contains(&format!("error: no symbol matches `{slip}`")),
        "{}",
        search.stderr
    );
    assert!(search.stderr.contains(&known), "{}", search.stderr);
}

#[test]
fn regular_expression_for_symbols_gets_the_advice_to_write_a_glob() {
    let folder = Folder::new();
    let search = folder.hyprobe(&["symbols", "--kernel", kernel(), "^fn_.*$"]);
    assert_eq!((search.code, search.stdout.as_str()), (Some(1), ""));
    assert!(
        search.stderr.contains("help: patterns are globs: "),
        "{}",
        search.stderr
    );
}

#[test]
fn types_of_a_kernel_without_btf_are_refused_with_the_reason() {
    let types = Folder::new().hyprobe(&["types", "--kernel", kernel(), "struct file"]);
    assert_eq!((types.code, types.stdout.as_str()), (Some(2), ""));
    assert!(
        types
            .stderr
            .contains("the kernel has no BTF: built without CONFIG_DEBUG_INFO_BTF"),
        "{}",
        types.stderr
    );
}

#[test]
fn memory_that_is_too_small() {
    let outcome = Folder::new().hyprobe(&["run", "--kernel", kernel(), "--memory", "64K"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("error: "), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("give it at least"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn an_initrd_that_is_not_there() {
    let folder = Folder::new();
    folder.refuses(
        &["run", "--kernel", kernel(), "--initrd", "initrd.gz"],
        2,
        "\
error: cannot read the initrd initrd.gz
  caused by: No such file or directory (os error 2)",
    );
}

#[test]
fn an_image_that_is_not_known() {
    let folder = Folder::new();
    let outcome = folder.hyprobe(&["run", "--image", "debian-9"]);
    assert_eq!(outcome.code, Some(2));
    assert!(
        outcome.stderr.contains("known are debian-5.10, debian-6.1"),
        "{}",
        outcome.stderr
    );
    let outcome = folder.hyprobe(&["images", "fetch", "debian-9"]);
    assert_eq!(outcome.code, Some(2));
    assert!(!Path::new(&folder.0.path().join("cache")).exists());
}

#[test]
fn images_are_listed() {
    let outcome = Folder::new().hyprobe(&["images", "list"]);
    assert_eq!(outcome.code, Some(0));
    assert!(
        outcome
            .stdout
            .contains("debian-6.1           kernel   not here"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn run_without_kvm_and_qemu_fails_with_the_reason() {
    let folder = Folder::new();
    let outcome = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
        .args(["run", "--accel", "nested", "--kernel", kernel()])
        .env("HYPROBE_QEMU", folder.0.path().join("none"))
        .output()
        .expect("hyprobe");
    let stderr = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(3), "{stderr}");
    assert!(
        stderr.starts_with("error: cannot run nested\n  caused by: cannot start "),
        "{stderr}"
    );
}

#[test]
fn doctor_has_a_verdict_on_any_host() {
    let outcome = Folder::new().hyprobe(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("json");
    let runs = report["accel"].is_string();
    assert_eq!(outcome.code, Some(if runs { 0 } else { 3 }));
    assert!(!report["why"].as_str().expect("why").is_empty());
    for check in report["checks"].as_array().expect("checks") {
        let fine = check["verdict"] == "ok";
        assert!(
            fine || !check["means"].as_str().expect("means").is_empty(),
            "{check}"
        );
    }
}

const CHECKED: &str = "\
[[probe]]
at = 'kprobe:fn_nop+0x0'
[[expect]]
probe = 'kprobe:fn_ret'
never = true
[[expect]]
probe = 'kprobe:kasan_report'
never = true
optional = true
[[inject]]
at = 'fn_nop'
return = -1
";

#[test]
fn a_manifest_is_checked_without_booting() {
    let folder = Folder::new();
    folder.file("m.toml", CHECKED);
    let outcome = folder.hyprobe(&["check", "m.toml", "--kernel", kernel()]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let lines: Vec<Vec<&str>> = outcome
        .stdout
        .lines()
        .map(|line| line.split_whitespace().take(3).collect())
        .collect();
    assert_eq!(
        lines,
        [
            ["kprobe:fn_nop", "armed", "fn_nop+0x0"],
            ["kprobe:fn_ret", "armed", "fn_ret+0x0"],
            ["inject:fn_nop", "armed", "fn_nop+0x0"],
        ]
    );
    let json = folder.hyprobe(&["check", "m.toml", "--kernel", kernel(), "--json"]);
    let line = json.stdout.lines().next().expect("a line");
    assert!(
        line.starts_with("{\"probe\":\"kprobe:fn_nop\",\"verdict\":\"armed\""),
        "{line}"
    );
}

#[test]
fn every_function_is_judged() {
    let folder = Folder::new();
    let all = folder.hyprobe(&["check", "--all", "--kernel", kernel()]);
    assert_eq!((all.code, all.stderr.as_str()), (Some(0), ""));
    for (name, expected) in [
        ("fn_nop5 ", ["optimisable", "5", "bytes,"]),
        ("fn_int3 ", ["not", "the", "instruction"]),
    ] {
        let function = all.stdout.lines().find(|line| line.starts_with(name));
        let words: Vec<&str> = function.expect("a line").split_whitespace().collect();
        assert_eq!(words[1..4], expected, "{name}");
    }
    let json = folder.hyprobe(&["check", "--all", "--kernel", kernel(), "--json"]);
    let lines: Vec<serde_json::Value> = json
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("json"))
        .collect();
    let (totals, functions) = lines.split_last().expect("lines");
    assert_eq!(totals["totals"]["all"]["functions"], functions.len());
    assert!(functions.iter().any(|line| line["function"] == "fn_nop"));
    for wrong in [
        &["check"][..],
        &["check", "--all"],
        &["check", "m.toml", "--all"],
    ] {
        assert_eq!(folder.hyprobe(wrong).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn check_refuses_an_unresolvable_probe_as_a_run_does() {
    let folder = Folder::new();
    folder.file(
        "m.toml",
        "[[expect]]\nprobe = 'kprobe:fn_nopp'\nnever = true\n",
    );
    let outcome = folder.hyprobe(&["check", "m.toml", "--kernel", kernel()]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
    let said = "error: cannot probe `kprobe:fn_nopp`: the kernel has no symbol `fn_nopp`\n  help: near names: fn_nop,";
    assert!(outcome.stderr.starts_with(said), "{}", outcome.stderr);
}

#[test]
fn tests_are_not_begun_with_a_wrong_manifest() {
    let folder = Folder::new();
    folder.refuses(
        &["test", "."],
        2,
        "error: there is no manifest (*.toml) in .",
    );
    let good = format!("[guest]\nkernel = {:?}\n", kernel());
    folder
        .file("a.toml", good)
        .file("b.toml", "[guest]\nkernel = 5\n");
    let outcome = folder.hyprobe(&["test", ".", "--junit", "j.xml"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
    let last = outcome.stderr.lines().last();
    assert_eq!(last, Some("error: 1 of 2 cases cannot be run, so none was"));
    assert!(
        outcome.stderr.contains("must be a string"),
        "{}",
        outcome.stderr
    );
    assert!(!folder.0.path().join("j.xml").exists());
    for wrong in [
        ["--shard", "3/2"],
        ["--matrix", "cpu=1"],
        ["--matrix", "cpus=0"],
    ] {
        let args = ["test", "a.toml", wrong[0], wrong[1]];
        assert_eq!(folder.hyprobe(&args).code, Some(2), "{wrong:?}");
    }
}
