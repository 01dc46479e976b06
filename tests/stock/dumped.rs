//! Views of a dump: each command gives the same text and the same JSON as for the paused guest that was dumped.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use control::Client;
use dump::DumpedKernel;

use crate::boot::{Boot, Stock};

/// The commands, without their source.
const COMMANDS: [&[&str]; 19] = [
    &["ps"],
    &["ps", "--threads"],
    &["ps", "--threads", "--json"],
    &["lsmod"],
    &["lsmod", "--json"],
    &["dmesg"],
    &["dmesg", "--json"],
    &["percpu"],
    &["percpu", "runqueues", "--json"],
    &["bt"],
    &["bt", "--vcpu", "1", "--json"],
    &["bt", "1"],
    &["bt", "--all"],
    &["bt", "--all", "--json"],
    &["print", "-t", "struct task_struct", "init_task"],
    &["print", "--json", "-t", "struct list_head", "modules"],
    &["print", "-t", "unsigned long", "vfs_read"],
    &["types", "struct task_struct"],
    &["types", "--json", "vfs_read"],
];
/// Commands that fail, and their exit codes.
const MISTAKES: [(&[&str], i32); 6] = [
    (&["bt", "99999"], 2),
    (&["bt", "--vcpu", "7"], 2),
    (&["percpu", "runqueus"], 2),
    (&["print", "init_tsk"], 2),
    (&["print", "init_task."], 2),
    (&["types", "struct file_operation"], 1),
];

/// Executes a probed function, and sleeps.
const SCRIPT: &str = "#!/bin/busybox sh
b=/bin/busybox
IFS=,; for m in ${modload}; do $b insmod $m; done; unset IFS
i=0
while [ $i -lt 20 ]; do $b dd if=/init of=/copy bs=4096 count=1 2>/copied; i=$((i + 1)); done
echo ready
$b sleep 100000
";

fn hyprobe(args: &[&str], source: (&str, &Path)) -> Output {
    let (option, path) = source;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hyprobe"));
    // The variable must not be preferred to the option.
    command.env("HYPROBE_SOCKET", "/nonexistent/socket");
    let output = command.args(args).arg(option).arg(path).output();
    output.expect("the command starts")
}

fn text(args: &[&str], source: (&str, &Path)) -> String {
    let output = hyprobe(args, source);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} {source:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Dumps the guest behind `socket`, which a client has paused, and compares the views of the guest and of the dump.
pub(crate) fn compare(socket: &Path) {
    let folder = tempfile::tempdir().expect("tempdir");
    let core = folder.path().join("core");
    let name = core.to_str().expect("UTF-8");
    text(&["dump", name, "--pause-limit", "5m"], ("--socket", socket));
    for args in COMMANDS {
        let live = text(args, ("--socket", socket));
        assert!(!live.is_empty(), "{args:?}");
        if args == ["bt", "--all", "--json"] {
            // The programs of sleeping tasks, with their files.
            assert!(live.contains(r#""program_stack":[{"address""#), "{live}");
        }
        assert_eq!(live, text(args, ("--dump", &core)), "{args:?}");
    }
    for (args, code) in MISTAKES {
        let [live, dumped] = [("--socket", socket), ("--dump", &core)].map(|source| {
            let Output { status, stderr, .. } = hyprobe(args, source);
            (status.code(), String::from_utf8_lossy(&stderr).into_owned())
        });
        assert_eq!(live, dumped, "{args:?}");
        assert_eq!(live.0, Some(code), "{args:?}: {}", live.1);
    }
    let (file, size) = files::open_regular(&core, u64::MAX).expect("the core file");
    let kernel = DumpedKernel::open(file, size).expect("a kernel");
    let machine = Client::new(socket).expect("client").machine();
    let machine = machine.expect("the machine");
    // Debug information is found by the release in the version line, and compared by the build-id. The version line in the kernel's file has
    // no number of the build.
    assert!(machine.build_id.is_some());
    assert_eq!(kernel.build_id().map(|id| id.to_string()), machine.build_id);
    let release = |banner: Option<String>| {
        let banner = banner.expect("a version line");
        let words: Vec<_> = banner.split(' ').take(4).map(str::to_owned).collect();
        words
    };
    assert_eq!(release(kernel.banner()), release(machine.kernel));
}

/// Plants and jumps are on `vfs_read`, and all vCPUs are idle, outside detours.
#[test]
fn dump_of_a_kernel_that_moves_has_no_plants_and_the_guest_s_views() {
    let stock = Stock::fetch("debian-6.1");
    let boot = Boot::with_script(&stock, SCRIPT)
        .cpus(2)
        .modules(&["dummy"])
        .counted("kprobe:vfs_read")
        .option("--boot", "bzimage")
        .option("--control", "x.sock");
    let mut running = boot.start();
    running.wait_for_console("ready");
    let socket = running.folder().join("x.sock");
    let client = Client::new(&socket).expect("client");
    let hits = client.probes().expect("probes")[0].summary.hits;
    assert!(hits >= 20, "{hits}");
    std::thread::sleep(Duration::from_secs(1));
    client.command("pause").expect("paused");
    compare(&socket);
    let client = Client::new(&socket).expect("client");
    client.command("stop").expect("stopped");
    running.finish().assert_well();
}
