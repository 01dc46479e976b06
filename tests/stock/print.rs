//! Values in a live guest's memory, compared with what the guest says of itself.

use std::process::Command;
use std::time::Duration;

use control::Client;
use control::api::PerCpuVariable;
use serde_json::{Value, json};

use crate::boot::{Boot, Running, Stock};

const SOCKET: &str = "x.sock";
const SCRIPT: &str = "#!/bin/busybox sh
/bin/busybox mkdir -p /proc
/bin/busybox mount -t proc proc /proc
/bin/busybox hostname probed-guest
echo release $(/bin/busybox uname -r)
echo pid $$
echo stat $(/bin/busybox cat /proc/1/stat)
echo panic $(/bin/busybox cat /proc/sys/kernel/panic)
echo ready
# A pipe of the shell would be one inode more.
while :; do /bin/busybox sed 's/^/inodes /' /proc/sys/fs/inode-nr; /bin/busybox sleep 1; done
";
/// Fields of `/proc/PID/stat`, counted from 1 as in proc(5).
const START_CODE: usize = 26;
const START_STACK: usize = 28;
const ARG_START: usize = 48;
/// How often the number of inodes is looked at.
const COMPARISONS: usize = 20;

/// A guest whose init waits.
struct Guest {
    running: Running,
    console: String,
}

impl Guest {
    fn start(stock: &Stock) -> Self {
        let boot = Boot::with_script(stock, SCRIPT).cpus(2);
        let mut running = boot.option("--control", SOCKET).start();
        running.wait_for_console("ready");
        let console = std::fs::read(running.folder().join("console")).expect("readable");
        Self {
            running,
            console: String::from_utf8_lossy(&console).into_owned(),
        }
    }

    /// The rest of the console's line that begins with `word`.
    fn rest_of_line(&self, word: &str) -> &str {
        let lines = self.console.lines();
        let mut rests = lines.filter_map(|line| line.trim().strip_prefix(word)?.strip_prefix(' '));
        rests
            .next()
            .unwrap_or_else(|| panic!("no {word}\n{}", self.console))
    }

    /// The numbers of inodes in the whole lines about them.
    fn inodes(&self) -> Vec<String> {
        let console = std::fs::read(self.running.folder().join("console")).expect("readable");
        let console = String::from_utf8_lossy(&console);
        let whole = console.split_inclusive('\n');
        let numbers = whole.filter_map(|line| {
            let numbers = line.strip_suffix('\n')?.trim().strip_prefix("inodes ")?;
            Some(numbers.split_whitespace().next()?.to_owned())
        });
        numbers.collect()
    }

    /// The guest's next line about inodes, behind the first `lines`.
    fn next_inodes(&self, lines: usize) -> String {
        for _ in 0..600 {
            if let Some(number) = self.inodes().get(lines) {
                return number.clone();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("no line about inodes for a minute: {:?}", self.inodes());
    }

    /// The exit code, and the texts of standard output and standard error together.
    fn command(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
            .args(args)
            .env("HYPROBE_SOCKET", self.running.folder().join(SOCKET))
            .output()
            .expect("the command starts");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    fn shown(&self, args: &[&str]) -> String {
        let (code, text) = self.command(args);
        assert_eq!(code, Some(0), "{args:?}: {text}");
        text
    }

    /// The value of an expression in JSON.
    fn value(&self, args: &[&str]) -> Value {
        let all = [&["print", "--json"], args].concat();
        let printed: Value = serde_json::from_str(&self.shown(&all)).expect("JSON");
        printed["value"].clone()
    }
}

/// The number in `value`: beyond 2^53, JSON has text.
fn number(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let parsed = text.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    parsed
        .or_else(|| value.as_u64())
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let guest = Guest::start(&stock);
    let value = |expression: &str| guest.value(&[expression]);

    assert_eq!(value("init_uts_ns.name.nodename"), "probed-guest");
    assert_eq!(
        value("init_uts_ns.name.release"),
        guest.rest_of_line("release")
    );
    assert_eq!(value("init_task.pid"), 0);
    assert_eq!(value("init_task.comm"), "swapper/0");
    let init = "init_pid_ns.child_reaper";
    assert_eq!(value(&format!("{init}->comm")), "init");
    assert_eq!(
        value(&format!("{init}->pid")).to_string(),
        guest.rest_of_line("pid")
    );
    assert_eq!(
        value("panic_timeout").to_string(),
        guest.rest_of_line("panic")
    );
    assert_eq!(
        guest.value(&["-t", "int", "panic_timeout"]),
        value("panic_timeout")
    );

    // Behind the name in brackets, fields are numbers.
    let stat: Vec<&str> = guest.rest_of_line("stat").split(' ').collect();
    for (member, field) in [
        ("start_code", START_CODE),
        ("start_stack", START_STACK),
        ("arg_start", ARG_START),
    ] {
        let found = number(&value(&format!("{init}->mm->{member}")));
        assert_eq!(found.to_string(), stat[field - 1], "{member}");
    }
    let pgd = value(&format!("{init}->mm->pgd"));
    assert_eq!(number(&pgd["pointer"]) % 4096, 0, "{pgd}");

    for cpu in 0..2 {
        assert_eq!(value(&format!("per_cpu(runqueues, {cpu}).cpu")), cpu);
    }
    per_cpu_variables(&guest);

    // A pointer and the object behind it.
    let address = value(&format!("&{init}->pid"))["pointer"].clone();
    let address = address.as_str().expect("an address");
    assert_eq!(guest.value(&["-t", "pid_t", address]), 1);
    assert_eq!(
        guest.value(&["-t", "struct task_struct", "init_task"])["pid"],
        0
    );
    let missing = value("*(int *)0x10");
    assert_eq!(missing, json!({"fault": "0x10"}));
    let vfs_read = value("vfs_read");
    assert_eq!(vfs_read["symbol"], "vfs_read");

    let whole = guest.shown(&["print", "-t", "struct task_struct", "init_task"]);
    assert!(whole.starts_with("(struct task_struct) {\n"), "{whole}");
    assert!(whole.contains("\n    .comm = \"swapper/0\",\n"), "{whole}");
    for (expression, expected) in [
        ("init_tsk", "near names: "),
        ("init_task.com", "near names: comm"),
        ("init_task.", "is not a member's name at byte 10"),
        ("runqueues", "per_cpu(runqueues, 0)"),
        (
            "per_cpu(runqueues, 2)",
            "there is no processor 2: the kernel has 2",
        ),
    ] {
        let (code, text) = guest.command(&["print", expression]);
        assert_eq!(code, Some(2), "{expression}: {text}");
        assert!(text.contains(expected), "{expression}: {text}");
    }

    // The types in the image are the types of the running kernel.
    let live = guest.shown(&["types", "task_struct"]);
    assert_eq!(
        guest.shown(&["types", "--image", image, "task_struct"]),
        live
    );
    assert!(live.starts_with("struct task_struct {\n"), "{live}");
    guest.running.terminate();
    guest.running.finish();
}

/// Per-CPU variables have the values that the guest adds up for programs, and the addresses of `per_cpu()`.
fn per_cpu_variables(guest: &Guest) {
    let listed = |pattern: &str| -> Vec<PerCpuVariable> {
        let text = guest.shown(&["percpu", "--json", pattern]);
        let lines = text.lines().filter(|line| line.starts_with('{'));
        let parsed = lines.map(|line| serde_json::from_str(line).expect("JSON"));
        parsed.collect()
    };
    let all = listed("*");
    let names: Vec<&str> = all.iter().map(|variable| &*variable.name).collect();
    assert!(names.len() > 100, "{names:?}");
    // Labels, of which sid has the second.
    for name in ["__per_cpu_start", "__per_cpu_hot_end"] {
        assert!(!names.contains(&name), "{names:?}");
    }
    assert!(all.iter().all(|variable| variable.copies.len() == 2));
    for cpu in 0..2 {
        let at = guest.value(&[&format!("&per_cpu(runqueues, {cpu})")]);
        let queue = &listed("runqueues")[0];
        let queue = (queue.declared.as_deref(), queue.copies[cpu].address.0);
        assert_eq!(queue, (Some("struct rq"), number(&at["pointer"])));
    }
    // The kernel forgets inodes for a while after the boot, and later has two more at some moments of each turn of the guest's loop. So a
    // comparison counts if the guest says the same number before and after, and one has to be equal.
    let mut compared = Vec::new();
    let is_equal = (0..COMPARISONS).any(|_| {
        let before = guest.inodes();
        let ours = inodes(guest, &listed);
        // The first line after may have been on its way.
        let after = guest.next_inodes(before.len() + 1);
        let is_equal = before.last() == Some(&after) && ours == after;
        compared.push((before.last().cloned(), ours, after));
        is_equal
    });
    println!("inodes before, of hyprobe, after: {compared:?}");
    assert!(is_equal, "{compared:?}");
}

/// The sum of the processors' numbers of inodes, at one moment: a processor may forget the inode that another has made.
fn inodes(guest: &Guest, listed: &dyn Fn(&str) -> Vec<PerCpuVariable>) -> String {
    let client = Client::new(&guest.running.folder().join(SOCKET)).expect("a client");
    client.command("pause").expect("paused");
    let inodes = &listed("nr_inodes")[0];
    let words = inodes.copies.iter().map(|copy| match &inodes.declared {
        Some(_) => number(copy.value.as_ref().expect("a number")),
        // 5.10 has no types of per-CPU variables.
        None => {
            let at = copy.address.to_string();
            number(&guest.value(&["-t", "unsigned long", &at]))
        }
    });
    let sum = words.fold(0, u64::wrapping_add);
    client.command("resume").expect("resumed");
    sum.to_string()
}

#[test]
fn values_of_debian_5_10_equal_those_of_the_guest() {
    check("debian-5.10");
}

#[test]
fn values_of_debian_6_1_equal_those_of_the_guest() {
    check("debian-6.1");
}

#[test]
fn values_of_debian_6_12_equal_those_of_the_guest() {
    check("debian-6.12");
}

#[test]
fn values_of_debian_sid_equal_those_of_the_guest() {
    check("debian-sid");
}
