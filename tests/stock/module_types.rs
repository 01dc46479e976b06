//! Named and typed arguments of functions in modules, compared with what the guest does with them.

use events::{Hit, Number, Param, Return};

use crate::boot::{Boot, Ran, Stock};

/// Makes a network device: the tool opens `/dev/net/tun` and calls `ioctl` with TUNSETIFF.
const SCRIPT: &str = "#!/bin/busybox sh
/bin/busybox insmod /tun.ko
/bin/busybox mkdir -p /dev/net
/bin/busybox mknod /dev/net/tun c 10 200
/bin/busybox tunctl -t probed
/bin/busybox insmod /dummy.ko
/bin/busybox poweroff -f
";
/// `_IOW('T', 202, int)`, as in the kernel's <linux/if_tun.h>.
const TUNSETIFF: i64 = 0x4004_54ca;
const OPEN: &str = "kprobe:tun:tun_chr_open";
const OPENED: &str = "kretprobe:tun:tun_chr_open";
const IOCTL: &str = "kprobe:tun:tun_chr_ioctl";
const SETUP: &str = "kprobe:dummy:dummy_setup";
const INIT: &str = "kprobe:dummy:dummy_dev_init";

fn run(image: &str) -> Ran {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT).modules(&["tun", "dummy"]);
    let boot = [OPEN, OPENED, IOCTL, SETUP, INIT]
        .iter()
        .fold(boot, |boot, probe| boot.probe(probe));
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran
}

fn declared(params: &[Param]) -> Vec<String> {
    let params = params.iter();
    params
        .map(|param| format!("{} {}", param.typed.ty, param.name))
        .collect()
}

/// The first hit of `probe`.
fn hit<'h>(hits: &'h [Hit], probe: &str, ran: &Ran) -> &'h Hit {
    let hit = hits.iter().find(|hit| &*hit.probe == probe);
    hit.unwrap_or_else(|| panic!("no hit of {probe}\n{}", ran.report()))
}

fn check(image: &str) {
    let ran = run(image);
    let hits = ran.hits();
    let params = |probe| hit(&hits, probe, &ran).params.clone().expect("typed");
    assert_eq!(
        declared(&params(OPEN)),
        ["struct inode * inode", "struct file * file"]
    );
    let ioctl = params(IOCTL);
    assert_eq!(
        declared(&ioctl),
        [
            "struct file * file",
            "unsigned int cmd",
            "long unsigned int arg"
        ]
    );
    assert_eq!(ioctl[1].typed.value, Some(Number::Integer(TUNSETIFF)));
    // The opened file is the file of the call.
    assert_eq!(ioctl[0].typed.value, params(OPEN)[1].typed.value);
    let opened: Vec<Return> = ran.returns();
    let opened = opened.iter().find(|call| &*call.probe == OPENED);
    let returned = opened
        .and_then(|call| call.returned.as_ref())
        .expect("typed");
    assert_eq!(
        (&*returned.ty, returned.value),
        ("int", Some(Number::Integer(0)))
    );
    // Both get the module's device.
    assert_eq!(declared(&params(INIT)), ["struct net_device * dev"]);
    assert_eq!(params(INIT)[0].typed.value, params(SETUP)[0].typed.value);
}

#[test]
fn arguments_in_modules_of_debian_6_1_are_named_and_typed() {
    check("debian-6.1");
}

#[test]
fn arguments_in_modules_of_debian_6_12_are_named_and_typed() {
    check("debian-6.12");
}

#[test]
fn arguments_in_modules_of_debian_sid_are_named_and_typed() {
    check("debian-sid");
}

/// The kernel keeps the types of modules from 5.11 on.
#[test]
fn arguments_in_modules_of_debian_5_10_are_registers_and_a_note_says_why() {
    let ran = run("debian-5.10");
    let hits = ran.hits();
    let open = hit(&hits, OPEN, &ran);
    assert!(open.params.is_none() && open.args[0].0 != 0, "{open:?}");
    let notes = ran.notes();
    let why = "arguments in the module tun have no types: the kernel keeps no type information of modules";
    assert!(notes.iter().any(|note| note.starts_with(why)), "{notes:?}");
}
