//! `hyprobe ps`, `lsmod`, `dmesg` and `bt`, compared with what the guest itself says, and with the views of a dump.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use control::Client;
use control::api::{ListedModule, ListedStack, ListedTask, LogRecord, MachineState};
use guest_images::workload;

use crate::boot::{Boot, Running, Stock};
use crate::{dumped, sleeping};

const SOCKET: &str = "x.sock";
/// The text of a view of `/proc`: the lines between these words on the console.
const VIEW: &str = "view";
const END: &str = "end of view";
/// A user without a name.
const USER: u32 = 1234;
const CGROUP: &str = "/outer/inner";
/// Idle processes: with a user, in a cgroup, stopped, with an ended child, and with a second thread. Then the guest prints
/// views of its own, with time for hyprobe's between them. The shell reads `/proc` itself: a process for each file would be in the view.
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /cgroup /etc
$b ln -s /bin/busybox /bin/sh
echo 'user:x:1234:1234::/:/bin/sh' >/etc/passwd
echo 'user:x:1234:' >/etc/group
$b mount -t proc proc /proc
$b mount -t devtmpfs devtmpfs /dev
echo on >/proc/sys/kernel/printk_devkmsg
# The kernel prints nothing into the guest's own views.
echo 0 >/proc/sys/kernel/printk
$b mount -t cgroup2 cgroup2 /cgroup
$b mkdir -p /cgroup/outer/inner
IFS=,; for m in ${modload}; do $b insmod $m; done; unset IFS
$b su user -c 'exec /bin/busybox sleep 70001' &
$b sleep 70002 &
echo $! >/cgroup/outer/inner/cgroup.procs
$b sleep 70003 &
stopped=$!
$b sh -c '/bin/busybox sleep 0 & exec /bin/busybox sleep 70004' &
THREADS &
# Two lines in a record, a tab, and an empty line, in the log.
printf '<7>two\nlines\n' >/dev/kmsg
printf '<7>a\ttab\n' >/dev/kmsg
printf '<7>\n' >/dev/kmsg
$b sleep 2
kill -STOP $stopped
$b sleep 1

tasks() {
    for d in /proc/[0-9]*; do
        read -r stat 2>/dev/null <$d/stat || continue
        cgroup=
        read -r cgroup 2>/dev/null <$d/cgroup
        while read -r key real effective rest; do
            [ "$key" = Uid: ] && echo "task $real $effective ${cgroup#0::} $stat"
        done 2>/dev/null <$d/status
    done
}
threads() {
    for d in /proc/[0-9]*/task/[0-9]*; do
        pid=${d#/proc/}
        read -r stat 2>/dev/null <$d/stat && echo "thread ${pid%%/*} $stat"
    done
}
stacks() {
    for d in /proc/[0-9]*; do
        switches=
        while read -r key count rest; do
            case $key in *voluntary_ctxt_switches:) switches="$switches $count" ;; esac
        done 2>/dev/null <$d/status
        echo "task ${d#/proc/}$switches"
        while read -r at function; do
            echo "$function"
        done 2>/dev/null <$d/stack
    done
}
view() {
    echo "view $1 tasks"
    tasks
    echo "end of view"
    echo "view $1 threads"
    threads
    echo "end of view"
    echo "view $1 stacks"
    stacks
    echo "end of view"
}
view before
echo "view before log"
$b dmesg | $b gzip | $b base64
echo "end of view"
echo "view before modules"
$b cat /proc/modules
echo "end of view"
echo "ready for views"
$b sleep 12
view after

# More than the ring holds.
i=0
while [ $i -lt 3000 ]; do
    echo "<7>filler $i of the ring, with a text as long as those of drivers" >/dev/kmsg
    i=$((i + 1))
done
echo "view wrapped log"
$b dmesg | $b gzip | $b base64
echo "end of view"
echo "ready for the log"
$b sleep 12
$b poweroff -f
"#;

/// A task in the guest's words.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    comm: String,
    state: char,
    ppid: i32,
    uid: u32,
    euid: u32,
    cgroup: String,
}

/// A view of the guest's on the console: the lines behind `name`.
fn view(console: &str, name: &str) -> String {
    let lines = console.lines().map(|line| line.trim_end_matches('\r'));
    let start = format!("{VIEW} {name}");
    let behind = lines.skip_while(|line| *line != start).skip(1);
    let lines = behind.take_while(|line| *line != END);
    lines.map(|line| format!("{line}\n")).collect()
}

/// The log in a view of the guest's. The guest compresses the log: each byte of the console costs exits.
fn unpacked_log(console: &str, name: &str) -> String {
    let mut decoder = Command::new("sh")
        .args(["-c", "base64 -d | gzip -d"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the decoder starts");
    let mut input = decoder.stdin.take().expect("a pipe");
    // Less than a pipe holds.
    input
        .write_all(view(console, name).as_bytes())
        .expect("it reads");
    drop(input);
    let output = decoder.wait_with_output().expect("it is a child");
    assert!(output.status.success(), "{console}");
    String::from_utf8(output.stdout).expect("text")
}

/// The guest's tasks: `task REAL EFFECTIVE CGROUP PID (COMM) STATE PPID …`.
fn tasks(text: &str) -> BTreeMap<i32, Seen> {
    let line = |line: &str| {
        let (head, tail) = line.strip_prefix("task ")?.rsplit_once(')')?;
        let (head, comm) = head.split_once('(')?;
        let head: Vec<&str> = head.split_whitespace().collect();
        let [uid, euid, cgroup, pid] = head[..] else {
            return None;
        };
        let mut tail = tail.split_whitespace();
        let seen = Seen {
            comm: comm.to_owned(),
            state: tail.next()?.chars().next()?,
            ppid: tail.next()?.parse().ok()?,
            uid: uid.parse().ok()?,
            euid: euid.parse().ok()?,
            cgroup: cgroup.to_owned(),
        };
        Some((pid.parse().ok()?, seen))
    };
    let parse = |text: &str| line(text).unwrap_or_else(|| panic!("{text}"));
    text.lines().map(parse).collect()
}

/// A thread in the guest's words: process, number, name and parent.
type SeenThread = (i32, i32, String, i32);

/// The guest's threads: `thread PID TID (COMM) STATE PPID …`.
fn threads(text: &str) -> BTreeSet<SeenThread> {
    let line = |line: &str| {
        let (head, tail) = line.strip_prefix("thread ")?.rsplit_once(')')?;
        let (head, comm) = head.split_once('(')?;
        let (pid, tid) = head.trim_end().split_once(' ')?;
        let parent = tail.split_whitespace().nth(1)?.parse().ok()?;
        let (pid, tid) = (pid.parse().ok()?, tid.parse().ok()?);
        Some((pid, tid, lasting(comm).to_owned(), parent))
    };
    let parse = |text: &str| line(text).unwrap_or_else(|| panic!("{text}"));
    text.lines().map(parse).collect()
}

/// The name without the work of a workqueue's thread, which changes.
fn lasting(comm: &str) -> &str {
    match comm.starts_with("kworker/") && !comm.starts_with("kworker/R-") {
        true => comm.split(['-', '+']).next().unwrap_or(comm),
        false => comm,
    }
}

struct Views {
    running: Running,
    socket: PathBuf,
}

impl Views {
    fn start(stock: &Stock) -> Self {
        let folder = tempfile::tempdir().expect("tempdir");
        let program = workload::build_threads(folder.path()).expect("the program compiles");
        let script = SCRIPT.replace("THREADS", program.to_str().expect("a path in UTF-8"));
        let boot = Boot::with_script(stock, &script)
            .host_file(&program)
            .cpus(2)
            .modules(&["dummy", "tun", "virtio_net"])
            .option("--control", SOCKET)
            .option("--timeout", "500s");
        let running = boot.start();
        let socket = running.folder().join(SOCKET);
        Self { running, socket }
    }

    fn console(&self) -> String {
        self.running.console()
    }

    fn client(&self) -> Client {
        Client::new(&self.socket).expect("a client")
    }

    fn command(&self, args: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
            .args(args)
            .env("HYPROBE_SOCKET", &self.socket)
            .output()
            .expect("the command starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn objects<T: serde::de::DeserializeOwned>(&self, args: &[&str]) -> Vec<T> {
        let text = self.command(args);
        let objects = text.lines().map(serde_json::from_str);
        objects.map(|object| object.expect("an object")).collect()
    }
}

fn compare_tasks(
    views: &[Vec<ListedTask>],
    before: &BTreeMap<i32, Seen>,
    after: &BTreeMap<i32, Seen>,
    asleep: &BTreeSet<i32>,
) {
    for ours in views {
        let by_pid: BTreeMap<i32, &ListedTask> = ours.iter().map(|task| (task.pid, task)).collect();
        assert_eq!(by_pid.len(), ours.len(), "{ours:?}");
        let (mut compared, mut states) = (0, 0);
        for (pid, seen) in before {
            let Some(still) = after.get(pid) else {
                continue;
            };
            let task = by_pid
                .get(pid)
                .unwrap_or_else(|| panic!("no {pid}: {seen:?}"));
            assert_eq!(task.tid, *pid);
            assert_eq!(lasting(&task.comm), lasting(&seen.comm), "{task:?}");
            assert_eq!(
                (task.ppid, task.uid, task.euid),
                (seen.ppid, seen.uid, seen.euid),
                "{task:?}"
            );
            assert_eq!(task.cgroup.as_deref(), Some(&*seen.cgroup), "{task:?}");
            assert_eq!(task.kernel_thread, *pid == 2 || seen.ppid == 2, "{task:?}");
            if asleep.contains(pid) {
                assert_eq!(task.state, seen.state, "{task:?}, then {}", still.state);
                states += 1;
            }
            compared += 1;
        }
        assert!(compared > 20, "{compared} of {}", before.len());
        assert!(states > 20, "{states} of {}", asleep.len());
        for task in ours {
            let is_known = before.contains_key(&task.pid) || after.contains_key(&task.pid);
            let is_pause = task.cmdline.last().is_some_and(|word| word == "12");
            let is_new = task.comm.starts_with("kworker/");
            assert!(is_known || is_pause || is_new, "{task:?}");
        }
    }
}

/// Compares the rows of `ps` with the guest's tasks: process, parent, user and the state of tasks that were `asleep`. Returns the number of compared rows.
fn compare_rows(
    printed: &str,
    before: &BTreeMap<i32, Seen>,
    after: &BTreeMap<i32, Seen>,
    asleep: &BTreeSet<i32>,
) -> usize {
    let mut compared = 0;
    for row in printed.lines().skip(1) {
        let words: Vec<&str> = row.split_whitespace().collect();
        let [pid, parent, user, state, _, ..] = words[..] else {
            panic!("{row}");
        };
        let pid: i32 = pid.parse().expect("a number");
        let Some(seen) = before.get(&pid).filter(|_| after.contains_key(&pid)) else {
            continue;
        };
        let expected = (seen.ppid.to_string(), seen.euid.to_string());
        assert_eq!((parent, user), (&*expected.0, &*expected.1), "{row}");
        if asleep.contains(&pid) {
            assert_eq!(state, seen.state.to_string(), "{row}");
        }
        compared += 1;
    }
    compared
}

/// Compares all threads with those in both of the guest's views.
fn compare_threads(
    ours: &[ListedTask],
    before: &BTreeSet<SeenThread>,
    after: &BTreeSet<SeenThread>,
) {
    let in_words = |task: &ListedTask| {
        let comm = lasting(&task.comm).to_owned();
        (task.pid, task.tid, comm, task.ppid)
    };
    let listed: BTreeSet<SeenThread> = ours.iter().map(in_words).collect();
    assert_eq!(listed.len(), ours.len(), "{ours:?}");
    let lasting: BTreeSet<SeenThread> = before & after;
    assert!(lasting.len() > 20, "{before:?}");
    let missing = &lasting - &listed;
    assert!(missing.is_empty(), "{missing:?} of {listed:?}");
    let second = lasting.iter().filter(|(pid, tid, ..)| pid != tid);
    let names: Vec<&str> = second.map(|(_, _, comm, _)| comm.as_str()).collect();
    assert_eq!(names, ["second"]);
    let second = listed.iter().filter(|(pid, tid, ..)| pid != tid);
    assert_eq!(second.count(), 1, "{listed:?}");
}

/// The processes of the script, by the last words of their command lines.
fn processes_of_the_script(tasks: &[ListedTask]) {
    let sleeper = |time: &str| {
        let is_it = |task: &&ListedTask| task.cmdline.last().is_some_and(|word| word == time);
        tasks
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("no {time}: {tasks:?}"))
    };
    let of_user = sleeper("70001");
    assert_eq!((of_user.uid, of_user.euid), (USER, USER));
    let in_cgroup = sleeper("70002");
    assert_eq!(in_cgroup.cmdline, ["/bin/busybox", "sleep", "70002"]);
    assert_eq!(in_cgroup.cgroup.as_deref(), Some(CGROUP));
    assert_eq!((in_cgroup.ppid, in_cgroup.state), (1, 'S'));
    assert_eq!(sleeper("70003").state, 'T');
    let parent = sleeper("70004").pid;
    let child = tasks
        .iter()
        .find(|task| task.ppid == parent)
        .expect("a child");
    assert_eq!((child.state, child.cmdline.len()), ('Z', 0));
}

/// A line of `/proc/modules`, up to the state: `NAME SIZE COUNT USERS STATE`.
fn in_the_words_of_proc(module: &ListedModule) -> String {
    let mut users: String = module.users.iter().map(|user| format!("{user},")).collect();
    if module.permanent {
        users.push_str("[permanent],");
    }
    if users.is_empty() {
        users.push('-');
    }
    let state = match module.state {
        control::api::LoadState::Live => "Live",
        control::api::LoadState::Loading => "Loading",
        control::api::LoadState::Unloading => "Unloading",
    };
    let address = module.address.expect("an address").0;
    let count = module.refcount.expect("Debian's kernels unload modules");
    format!(
        "{} {} {count} {users} {state} {address:#018x}",
        module.name, module.size
    )
}

/// A row of `lsmod` by a line of `/proc/modules`: `NAME SIZE COUNT USERS`.
fn row_of_lsmod(line: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').take(4).collect();
    let users = words.pop().expect("users").trim_end_matches([',', '-']);
    words.push(users);
    words.join(" ").trim_end().to_owned()
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let mut views = Views::start(&stock);
    views.running.wait_for_console("ready for views");
    let console = views.console();

    // While the guest runs, and while it is paused.
    let mut ours: Vec<Vec<ListedTask>> = vec![views.objects(&["ps", "--json"])];
    let threads: Vec<ListedTask> = views.objects(&["ps", "--json", "--threads"]);
    let client = views.client();
    let pause = client.tasks(false).expect("tasks").pause;
    println!("{image}: the guest stood for {pause:?} for its tasks");
    assert!(pause.held_ns > 0, "{pause:?}");
    assert_eq!(
        client.command("pause").expect("paused").state,
        MachineState::Paused
    );
    assert_eq!(client.tasks(false).expect("tasks").pause.held_ns, 0);
    ours.push(views.objects(&["ps", "--json"]));
    let log = views.command(&["dmesg"]);
    let modules: Vec<ListedModule> = views.objects(&["lsmod", "--json"]);
    let listed = views.command(&["lsmod"]);
    let printed = views.command(&["ps"]);
    let stacks: Vec<ListedStack> = views.objects(&["bt", "--all", "--json"]);
    let of_vcpus: Vec<ListedStack> = views.objects(&["bt", "--json"]);
    client.command("resume").expect("resumed");
    let idle = sleeping::idle(|| views.objects(&["bt", "--json"]));
    println!("{image}: idle: {idle:?}");

    let in_guest = unpacked_log(&console, "before log");
    assert!(in_guest.lines().count() > 100, "{in_guest}");
    let later = log.strip_prefix(&*in_guest);
    let later = later.unwrap_or_else(|| panic!("{image}: the guest:\n{in_guest}\nhyprobe:\n{log}"));
    assert!(later.lines().count() < 10, "{later}");
    for line in ["] two\n", "] lines\n", "] a\ttab\n"] {
        assert!(log.contains(line), "{log}");
    }

    let in_guest = view(&console, "before modules");
    let with_address = |line: &str| line.split(' ').take(6).collect::<Vec<_>>().join(" ");
    let in_guest: Vec<String> = in_guest.lines().map(with_address).collect();
    let in_words: Vec<String> = modules.iter().map(in_the_words_of_proc).collect();
    assert_eq!(in_words, in_guest);
    assert!(
        modules.iter().any(|module| module.name == "dummy"),
        "{modules:?}"
    );
    assert!(
        modules.iter().any(|module| !module.users.is_empty()),
        "{modules:?}"
    );
    let expected: Vec<String> = in_guest.iter().map(|line| row_of_lsmod(line)).collect();
    let rows = listed.lines().skip(1);
    let rows: Vec<String> = rows
        .map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(rows, expected);

    views.running.wait_for_console("ready for the log");
    client.command("pause").expect("paused");
    let log = views.command(&["dmesg"]);
    let records: Vec<LogRecord> = views.objects(&["dmesg", "--json"]);
    dumped::compare(&views.socket);
    client.command("resume").expect("resumed");
    let console = views.console();
    let in_guest = unpacked_log(&console, "wrapped log");
    // The guest prints as many of the last records as its buffer holds with the times.
    let last: String = in_guest
        .lines()
        .skip(1)
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(last.lines().count() > 100, "{in_guest}");
    assert!(
        log.contains(&last),
        "{image}: the guest:\n{last}\nhyprobe:\n{log}"
    );
    let first = records.first().expect("a record");
    assert!(first.seq > 0, "{first:?}");
    // A record without text outlives the text of later records.
    let in_order = records.is_sorted_by(|one, next| one.seq < next.seq);
    assert!(in_order, "{records:?}");

    let [stacks_before, stacks_after] =
        ["before stacks", "after stacks"].map(|name| view(&console, name));
    // hyprobe's views are between these two.
    let asleep = sleeping::asleep(&stacks_before, &stacks_after);
    let [before, after] = ["before tasks", "after tasks"].map(|name| tasks(&view(&console, name)));
    compare_tasks(&ours, &before, &after, &asleep);
    assert_eq!(printed.lines().count(), ours[1].len() + 1, "{printed}");
    let compared = compare_rows(&printed, &before, &after, &asleep);
    assert!(compared > 20, "{compared}:\n{printed}");
    let [before, after] =
        ["before threads", "after threads"].map(|name| self::threads(&view(&console, name)));
    compare_threads(&threads, &before, &after);
    processes_of_the_script(&ours[1]);
    let compared = sleeping::compare(&stock, &stacks, &stacks_before, &stacks_after);
    println!("{image}: {compared} stacks of sleeping tasks are equal");
    assert!(compared > 20, "{compared}:\n{stacks_before}");
    assert_eq!(stacks[..2], of_vcpus);
    let ran = views.running.finish();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
}

#[test]
fn views_of_debian_5_10_equal_the_guests_own() {
    check("debian-5.10");
}

#[test]
fn views_of_debian_6_1_equal_the_guests_own() {
    check("debian-6.1");
}

#[test]
fn views_of_debian_6_12_equal_the_guests_own() {
    check("debian-6.12");
}

#[test]
fn views_of_debian_sid_equal_the_guests_own() {
    check("debian-sid");
}
