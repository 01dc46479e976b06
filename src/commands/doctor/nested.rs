//! The checks of the requirements of nested runs.

use outer::{IMAGE, Qemu, QemuError};

use super::Verdict::Warn;
use super::{Check, Group};

pub(super) fn checks(qemu: &Result<Qemu, QemuError>) -> Vec<Check> {
    let program = Check::new(Group::Nested, "qemu", "QEMU");
    let program = match qemu {
        Ok(qemu) => program.found(qemu.to_string()),
        Err(error) => program
            .found(match error {
                QemuError::Missing => "missing",
                QemuError::TooOld { .. } => "too old",
                QemuError::Start { .. } | QemuError::NotQemu { .. } => "not usable",
            })
            .verdict(Warn, crate::failure::in_one_line(error)),
    };
    let sandbox = Check::new(Group::Nested, "qemu-sandbox", "QEMU's system calls");
    let sandbox = qemu.as_ref().ok().map(|qemu| match qemu.has_sandbox() {
        true => sandbox.found("filtered"),
        false => sandbox.found("not filtered").verdict(
            Warn,
            "this QEMU refuses `-sandbox`, for want of seccomp in QEMU or on this host: a guest that takes QEMU over can start \
             programs",
        ),
    });
    let kernel = Check::new(Group::Nested, "outer-kernel", "kernel of the outer Linux");
    let kernel = match guest_images::cached(IMAGE) {
        Ok(Some(image)) => kernel.found(image.release()),
        Ok(None) => kernel.found("not here yet").verdict(
            Warn,
            "the first nested run fetches it, which takes a minute",
        ),
        Err(error) => kernel
            .found("not usable")
            .verdict(Warn, crate::failure::in_one_line(&error)),
    };
    [Some(program), sandbox, Some(kernel)]
        .into_iter()
        .flatten()
        .collect()
}
