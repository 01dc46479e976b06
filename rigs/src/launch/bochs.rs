//! Starting Bochs, which interprets VT-x with EPT and SVM with NPT.
//!
//! It draws its screen on a terminal and is built with its debugger: it gets a pseudo-terminal, and a file that tells the
//! debugger to go on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::follow::{self, Follow, kill};
use super::payload::Payload;
use super::{Launch, LaunchError, error, image, iso};
use crate::line::Backend;

/// What brings everything that this rig needs.
pub(super) const PACKAGES: &str =
    "bochs bochs-term bochsbios vgabios isolinux syslinux-common xorriso";

const PROGRAM: &str = "/usr/bin/bochs";
const BIOS: [&str; 2] = [
    "/usr/share/bochs/BIOS-bochs-latest",
    "/usr/share/bochs/VGABIOS-lgpl-latest",
];
/// Instructions to a second of its clock. Fewer make what waits for time wait shorter; with too few the outer Linux does
/// nothing but take its timer interrupts.
const INSTRUCTIONS_PER_SECOND: u64 = 100_000_000;
/// What its clock says at the start: everything else in it depends on instructions alone, so that runs are alike.
const BOOT_TIME: u64 = 1_700_000_000;

/// A running Bochs.
#[derive(Debug)]
pub(super) struct Bochs {
    child: Child,
    serial: PathBuf,
}

impl Follow for Bochs {
    fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    fn output(&mut self) -> Result<Vec<u8>, LaunchError> {
        match std::fs::read(&self.serial) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read.map_err(error::file("read", &self.serial)),
        }
    }
}

impl Drop for Bochs {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

/// Starts Bochs with the vendor's processor.
pub(super) fn start(
    launch: &Launch<'_>,
    dir: &Path,
    payload: &Payload,
) -> Result<Bochs, LaunchError> {
    for file in [PROGRAM].into_iter().chain(BIOS) {
        if !Path::new(file).exists() {
            return Err(LaunchError::Missing {
                missing: file.to_owned(),
                packages: PACKAGES,
            });
        }
    }
    let (model, module) = match launch.backend {
        Backend::Intel => ("corei7_skylake_x", "kvm_intel"),
        _ => ("trinity_apu", "kvm_amd"),
    };
    let outer = image::build(launch, dir, payload, module)?;
    let iso = iso::build(dir, &outer)?;
    let serial = dir.join("serial");
    let memory_mib = payload.memory_mib;
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(error::file("write", &path))?;
        Ok::<PathBuf, LaunchError>(path)
    };
    let config = write(
        "bochsrc",
        &config(model, memory_mib, &iso, &serial, &dir.join("log")),
    )?;
    let go_on = write("debugger", "c\n")?;
    let terminal = terminal(&dir.join("screen")).map_err(LaunchError::Terminal)?;
    let theirs = || terminal.try_clone().map_err(LaunchError::Terminal);
    let child = follow::command(PROGRAM)
        .args(["-q", "-rc"])
        .arg(&go_on)
        .arg("-f")
        .arg(&config)
        .env("TERM", "linux")
        // A debugger that asks for a command, because Bochs has panicked, gets the end of its input and ends.
        .stdin(Stdio::null())
        .stdout(theirs()?)
        .stderr(theirs()?)
        .spawn()
        .map_err(error::start(PROGRAM))?;
    Ok(Bochs { child, serial })
}

fn config(model: &str, memory_mib: u64, iso: &Path, serial: &Path, log: &Path) -> String {
    let [bios, vga_bios] = BIOS;
    format!(
        "display_library: term\n\
         memory: guest={memory_mib}, host={memory_mib}\n\
         romimage: file={bios}\n\
         vgaromimage: file={vga_bios}\n\
         cpu: model={model}, count=2, ips={INSTRUCTIONS_PER_SECOND}, reset_on_triple_fault=0, ignore_bad_msrs=1\n\
         ata0-master: type=cdrom, path={}, status=inserted\n\
         boot: cdrom\n\
         com1: enabled=1, mode=file, dev={}\n\
         clock: sync=none, time0={BOOT_TIME}\n\
         log: {}\n",
        iso.display(),
        serial.display(),
        log.display()
    )
}

/// The end for Bochs of a terminal; what is drawn on it goes to the file `screen`.
fn terminal(screen: &Path) -> io::Result<OwnedFd> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let theirs = rustix::fs::open(
        name,
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let ours = File::from(ours);
    let screen = File::create(screen)?;
    thread::Builder::new()
        .name("screen".to_owned())
        .spawn(move || keep(ours, screen))?;
    Ok(theirs)
}

/// What Bochs says before the name of a second terminal, which it opens itself to draw on.
const DRAWS_ON: &[u8] = b"connected to screen \"";

/// Copies what is written to the terminal. Bochs waits for ever once its second terminal is full, so that one is read
/// too.
fn keep(mut ours: File, mut screen: File) {
    let mut said = Vec::new();
    let mut reads_drawn = false;
    let mut bytes = [0; 4096];
    // The read fails when Bochs has ended, which is the usual end of it.
    while let Ok(read @ 1..) = ours.read(&mut bytes) {
        if screen.write_all(&bytes[..read]).is_err() {
            break;
        }
        if !reads_drawn {
            said.extend_from_slice(&bytes[..read]);
            if let Some(name) = second_terminal(&said) {
                reads_drawn = true;
                let flags = rustix::fs::OFlags::RDONLY
                    | rustix::fs::OFlags::NOCTTY
                    | rustix::fs::OFlags::CLOEXEC;
                if let Ok(drawn) = rustix::fs::open(name, flags, rustix::fs::Mode::empty()) {
                    thread::spawn(move || io::copy(&mut File::from(drawn), &mut io::sink()));
                }
            }
        }
    }
}

fn second_terminal(said: &[u8]) -> Option<&str> {
    let start = said
        .windows(DRAWS_ON.len())
        .position(|part| part == DRAWS_ON)?;
    let rest = &said[start + DRAWS_ON.len()..];
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&rest[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_terminal_is_known_once_its_name_is_complete() {
        let said = b"x\r\nBochs connected to screen \"/dev/pts/7\"\r\n";
        assert_eq!(second_terminal(said), Some("/dev/pts/7"));
        assert_eq!(second_terminal(&said[..said.len() - 3]), None);
        assert_eq!(second_terminal(b"Bochs"), None);
    }
}
