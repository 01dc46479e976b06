//! Dumps of stock guests: their log, their text and their registers, as other programs read them, equal what the guest itself says.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use control::Client;
use control::api::{AddProbe, AddProbes};
use manifest::GuestEnd;
use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use crate::boot::{Boot, Running, Stock};

const SOCKET: &str = "x.sock";
/// Prints the kernel's log and the page of `vfs_read`, as `/proc/kcore` has it, before any probe; then reads for ever.
///
/// The file `/proc/kcore` is an ELF file. Its program headers begin at byte 64 and have seven words, of which the second is the place in the
/// file, the third the address and the fifth the length.
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc && $b mount -t proc proc /proc
# The kernel prints nothing into the log.
echo 1 >/proc/sys/kernel/printk
echo 'log begins'; $b dmesg; echo 'log ends'
page=$(( 0x$($b awk '$3 == "vfs_read" { print $1; exit }' /proc/kallsyms) & ~0xfff ))
count=$($b od -A n -t u2 -j 56 -N 2 /proc/kcore)
$b od -v -A n -t x8 -w56 -j 64 -N $(( count * 56 )) /proc/kcore | while read kind at start phys len rest; do
    within=$(( page - 0x$start ))
    if [ $within -ge 0 ] && [ $within -lt $(( 0x$len )) ]; then
        echo "page $page $($b dd if=/proc/kcore iflag=skip_bytes skip=$(( 0x$at + within )) bs=4096 count=1 2>/dev/null | $b md5sum)"
    fi
done
echo ready
while :; do $b dd if=/init of=/dev/null bs=4096 count=1 2>/dev/null; $b usleep 1000; done
"#;

/// The lines of the guest's log, as the guest printed them.
fn log(console: &str) -> Vec<String> {
    let lines = console.lines().map(str::trim_end);
    let behind = lines.skip_while(|line| *line != "log begins").skip(1);
    let log = behind.take_while(|line| *line != "log ends");
    log.map(str::to_owned).collect()
}

/// The address of the guest's page of text, and the sum of its bytes.
fn page(console: &str) -> (u64, String) {
    let line = console.lines().find_map(|line| line.strip_prefix("page "));
    let mut words = line.expect("the guest reads its text").split(' ');
    let address: i64 = words
        .next()
        .and_then(|word| word.parse().ok())
        .expect("a number");
    (
        address.cast_unsigned(),
        words.next().expect("a sum").to_owned(),
    )
}

/// The bytes of the page at `address`, by the program headers of the core file.
fn dumped_page(core: &[u8], address: u64) -> Vec<u8> {
    let file = FileHeader64::<LittleEndian>::parse(core).expect("an ELF file");
    let endian = file.endian().expect("little-endian");
    let headers = file.program_headers(endian, core).expect("whole");
    let mut loads = headers.iter().filter(|one| one.p_type(endian) == PT_LOAD);
    let bytes = loads.find_map(|one| {
        let within = usize::try_from(address.checked_sub(one.p_vaddr(endian))?).ok()?;
        one.data(endian, core).ok()?.get(within..within + 4096)
    });
    bytes.expect("the text is in the core file").to_vec()
}

/// The first output of `program`, of which the caller needs a zero exit code.
fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| {
        panic!("`scripts/setup.sh` installs {program} for the tests: {error}")
    });
    let (out, err) = (&output.stdout, &output.stderr);
    let text = String::from_utf8_lossy(out).into_owned();
    let said = String::from_utf8_lossy(err);
    assert!(output.status.success(), "{program} {args:?}: {said}{text}");
    text
}

fn hyprobe(args: &[&str]) {
    output(env!("CARGO_BIN_EXE_hyprobe"), args);
}

/// The log in the core file, by makedumpfile.
fn dumped_log(core: &str, folder: &Path) -> Vec<String> {
    let to = folder.join("log");
    let to = to.to_str().expect("UTF-8");
    output("makedumpfile", &["--dump-dmesg", core, to]);
    let log = std::fs::read_to_string(to).expect("the log");
    log.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// The first address of the kernel's half, with page tables of four levels.
const KERNEL: u64 = 0xffff_8000_0000_0000;

/// The register `name` of each thread, as gdb prints them.
fn registers(threads: &str, name: &str) -> Vec<u64> {
    let lines = threads.lines().map(str::split_whitespace);
    let values = lines.filter_map(|mut words| (words.next()? == name).then(|| words.next())?);
    let numbers = values.map(|value| u64::from_str_radix(value.trim_start_matches("0x"), 16));
    numbers.collect::<Result<_, _>>().expect("numbers")
}

struct Guest {
    running: Running,
    socket: PathBuf,
    console: String,
}

/// Starts the guest with two vCPUs. The guest has printed the log and the page of text; then a probe is added, and has a hit.
fn start(stock: &Stock) -> Guest {
    let boot = Boot::with_script(stock, SCRIPT).cpus(2);
    let mut running = boot.option("--control", SOCKET).start();
    running.wait_for_console("ready");
    let socket = running.folder().join(SOCKET);
    let client = Client::new(&socket).expect("client");
    let probes = ["kprobe:vfs_read", "kretprobe:vfs_read"];
    let probes = probes.map(AddProbe::new).to_vec();
    let added = client.add(&AddProbes::Many(probes)).expect("added");
    let id = added.ids[0].to_string();
    let began = Instant::now();
    while client.stats(&id).expect("stats").probes[0].hits == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "no hit");
    }
    let console = std::fs::read_to_string(running.folder().join("console")).expect("text");
    Guest {
        running,
        socket,
        console,
    }
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let guest = start(&stock);
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("core");
    let (core, socket) = (
        path.to_str().expect("UTF-8"),
        guest.socket.to_str().expect("UTF-8"),
    );
    let began = Instant::now();
    hyprobe(&["dump", core, "--socket", socket, "--pause-limit", "5m"]);
    println!("{image}: {:?}", began.elapsed());

    let (told, dumped) = (log(&guest.console), dumped_log(core, folder.path()));
    assert!(told.len() > 100, "{}", guest.console);
    // The kernel may have printed more since.
    assert_eq!(dumped.get(..told.len()), Some(&told[..]), "{dumped:#?}");

    let bytes = std::fs::read(&path).expect("the core file");
    let (address, sum) = page(&guest.console);
    let page = folder.path().join("page");
    std::fs::write(&page, dumped_page(&bytes, address)).expect("written");
    let dumped = output("md5sum", &[page.to_str().expect("UTF-8")]);
    assert!(dumped.starts_with(&sum), "{dumped}: {sum}");

    let threads = output(
        "gdb",
        &[
            "-nx",
            "-batch",
            "-ex",
            &format!("target core {core}"),
            "-ex",
            "thread apply all info registers rip rsp cs",
        ],
    );
    let of_vcpus = |name| registers(&threads, name);
    let (rips, stacks) = (of_vcpus("rip"), of_vcpus("rsp"));
    assert_eq!((rips.len(), stacks.len()), (2, 2), "{threads}");
    assert_ne!(stacks[0], stacks[1], "{threads}");
    // Not the registers of a reset, nor zeros: Linux's selectors, and instructions on the selector's side of the address space.
    for ((cs, rip), stack) in of_vcpus("cs").into_iter().zip(rips).zip(stacks) {
        let sides = match cs {
            0x10 => KERNEL..=u64::MAX,
            0x33 => 0x1000..=0x7fff_ffff_ffff,
            _ => panic!("no selector of Linux: {threads}"),
        };
        assert!(sides.contains(&rip) && stack >= 0x1000, "{threads}");
    }

    let client = Client::new(&guest.socket).expect("client");
    client.command("stop").expect("stopped");
    let ran = guest.running.finish();
    ran.assert_well();
    assert_eq!(ran.summary().guest.end, GuestEnd::Stopped);
}

/// Prints a word, and crashes.
const CRASH: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc && /bin/busybox mount -t proc proc /proc
echo c >/proc/sysrq-trigger
"#;

#[test]
fn dump_of_a_crash_has_the_panic_s_last_words_and_only_the_user_may_read_it() {
    let stock = Stock::fetch("debian-6.1");
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("vmcore");
    let core = path.to_str().expect("UTF-8");
    let boot = Boot::with_script(&stock, CRASH).cpus(2);
    let ran = boot.option("--dump-on-crash", core).run();
    assert_eq!(ran.code, Some(4), "{}", ran.report());
    let metadata = std::fs::metadata(&path).expect("the core file");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    // Zeros are holes.
    assert!(metadata.blocks() * 512 < metadata.len() / 2, "{metadata:?}");
    let log = dumped_log(core, folder.path());
    let panic = "Kernel panic - not syncing: sysrq triggered crash";
    assert!(log.iter().any(|line| line.ends_with(panic)), "{log:#?}");
}

#[test]
fn guest_that_does_not_crash_leaves_an_empty_core_file() {
    let stock = Stock::fetch("debian-6.1");
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("vmcore");
    let off = "#!/bin/busybox sh\n/bin/busybox poweroff -f\n";
    let boot = Boot::with_script(&stock, off);
    let ran = boot
        .option("--dump-on-crash", path.to_str().expect("UTF-8"))
        .run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 0);
}

#[test]
fn dump_of_debian_5_10_has_the_guest_s_log_text_and_registers() {
    check("debian-5.10");
}

#[test]
fn dump_of_debian_6_1_has_the_guest_s_log_text_and_registers() {
    check("debian-6.1");
}

#[test]
fn dump_of_debian_6_12_has_the_guest_s_log_text_and_registers() {
    check("debian-6.12");
}

#[test]
fn dump_of_debian_sid_has_the_guest_s_log_text_and_registers() {
    check("debian-sid");
}
