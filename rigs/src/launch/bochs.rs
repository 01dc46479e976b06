//! Starting Bochs, which interprets VT-x with EPT and SVM with NPT.
//!
//! Bochs draws its screen on a terminal and is built with its debugger: the rig gives Bochs a pseudo-terminal, and a file with the
//! debugger's command to continue.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use super::follow::{self, Follow, kill};
use super::image::Outer;
use super::{Launch, LaunchError, error, iso};
use crate::line::Backend;

/// The packages with all programs and files for the rig.
pub(super) const PACKAGES: &str =
    "bochs bochs-term bochsbios vgabios isolinux syslinux-common xorriso";

const PROGRAM: &str = "/usr/bin/bochs";
const BIOS: [&str; 2] = [
    "/usr/share/bochs/BIOS-bochs-latest",
    "/usr/share/bochs/VGABIOS-lgpl-latest",
];
/// Instructions in a second of Bochs's clock. With fewer, waits for time are shorter. With too few, the outer Linux does nothing but take
/// its timer interrupts.
const INSTRUCTIONS_PER_SECOND: u64 = 100_000_000;
/// The time of Bochs's clock at the start. Everything else in Bochs depends on instructions alone, so that runs are alike.
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
pub(super) fn start(launch: &Launch<'_>, dir: &Path, outer: &Outer) -> Result<Bochs, LaunchError> {
    for file in [PROGRAM].into_iter().chain(BIOS) {
        if !Path::new(file).exists() {
            return Err(LaunchError::Missing {
                missing: file.to_owned(),
                packages: PACKAGES,
            });
        }
    }
    let model = match launch.backend {
        Backend::Intel => "corei7_skylake_x",
        _ => "trinity_apu",
    };
    let iso = iso::build(dir, outer)?;
    let serial = dir.join("serial");
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(error::file("write", &path))?;
        Ok::<PathBuf, LaunchError>(path)
    };
    let config = write(
        "bochsrc",
        &config(model, outer.memory_mib, &iso, &serial, &dir.join("log")),
    )?;
    let go_on = write("debugger", "c\n")?;
    let terminal =
        terminal(&dir.join("said"), &dir.join("screen")).map_err(LaunchError::Terminal)?;
    let theirs = || terminal.try_clone().map_err(LaunchError::Terminal);
    let child = follow::command(PROGRAM)
        .args(["-q", "-rc"])
        .arg(&go_on)
        .arg("-f")
        .arg(&config)
        .env("TERM", "linux")
        // If Bochs panics, the debugger asks for a command, reads the end of the input, and ends.
        .stdin(Stdio::null())
        .stdout(theirs()?)
        .stderr(theirs()?)
        .spawn()
        .map_err(error::start(PROGRAM))?;
    Ok(Bochs { child, serial })
}

/// The greatest memory of its own that Bochs accepts; the guest's memory beyond is in a file.
const HOST_MIB_MAX: u64 = 2048;

fn config(model: &str, memory_mib: u64, iso: &Path, serial: &Path, log: &Path) -> String {
    let [bios, vga_bios] = BIOS;
    let host_mib = memory_mib.min(HOST_MIB_MAX);
    format!(
        "display_library: term\n\
         memory: guest={memory_mib}, host={host_mib}\n\
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

/// Bochs's end of a terminal. The terminal's output goes to the file `said`, Bochs's screen to `screen`.
fn terminal(said: &Path, screen: &Path) -> io::Result<OwnedFd> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = open_terminal(&ptsname(&ours, Vec::new())?)?;
    let (said, screen) = (File::create(said)?, File::create(screen)?);
    thread::Builder::new()
        .name("terminal".to_owned())
        // The thread ends with an error when Bochs ends.
        .spawn(move || follow_terminal(File::from(ours), said, screen))?;
    Ok(theirs)
}

fn open_terminal(name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(name, flags, Mode::empty())?)
}

/// The text before the name of the terminal that Bochs opens for the screen. The given terminal is left to the debugger.
const DRAWS_ON: &str = "connected to screen \"";

fn follow_terminal(mut terminal: File, mut said: File, screen: File) -> io::Result<()> {
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    let drawn_on = loop {
        let len = terminal.read(&mut bytes)?;
        said.write_all(&bytes[..len])?;
        all.extend_from_slice(&bytes[..len]);
        if let Some(name) = drawn_on(&String::from_utf8_lossy(&all)) {
            break name;
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| drain(&drawn_on, screen));
        io::copy(&mut terminal, &mut said)
    })?;
    Ok(())
}

fn drawn_on(said: &str) -> Option<CString> {
    let (name, _) = said.split_once(DRAWS_ON)?.1.split_once('"')?;
    CString::new(name).ok()
}

/// Reads the screen: if nothing reads the terminal, Bochs blocks after some kilobytes.
fn drain(name: &CStr, mut screen: File) -> io::Result<()> {
    let terminal = open_terminal(name)?;
    let mut settings = tcgetattr(&terminal)?;
    settings.make_raw();
    tcsetattr(&terminal, OptionalActions::Now, &settings)?;
    io::copy(&mut File::from(terminal), &mut screen)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terminal_that_is_drawn_on_is_found_once_its_name_is_whole() {
        let said = "x\r\nBochs connected to screen \"/dev/pts/4\"\r\nNext";
        assert_eq!(drawn_on(said).as_deref(), Some(c"/dev/pts/4"));
        assert_eq!(drawn_on(&said[..said.len() - 8]), None);
    }
}
