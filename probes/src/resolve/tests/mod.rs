//! Tests of resolving, with synthetic kernels.

mod names;
mod places;
mod watched;

use address::Gva;
use introspect::insn::NotABoundary;
use introspect::int3::HANDLER;
use introspect::optimise::WhyNot;

use super::synthetic::{SyntheticKernel, TEXT};
use super::{
    MemoryOwner, PATTERN_HELP, Place, PlantTime, Refusal, ResolveError, ResolveProblem, Resolved,
    TaskMember, Via, functions, in_task, resolve,
};
use crate::{ArgumentSource, Kernel};

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// A call of another function.
const CALL: [u8; 5] = [0xe8, 0, 0x10, 0, 0];
/// `push rbp; mov rbp, rsp; pop rbp; ret`
const PLAIN: [u8; 6] = [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3];
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
const RET: u8 = 0xc3;

fn try_resolve(kernel: &Kernel, spec: &str) -> Result<Vec<Resolved>, ResolveError> {
    resolve(kernel, &spec.parse().expect("a probe"), 0)
}

fn place(kernel: &Kernel, spec: &str) -> Place {
    let mut found = try_resolve(kernel, spec).expect("it resolves");
    assert_eq!(found.len(), 1);
    let found = found.remove(0);
    assert_eq!(&*found.name, spec);
    found.place.expect("it can be probed")
}

fn problem(kernel: &Kernel, spec: &str) -> ResolveError {
    try_resolve(kernel, spec).expect_err("it cannot be meant")
}

/// A kernel with one function, whose code has an ftrace call at its start or behind an `endbr64`.
fn traced(code: &[u8]) -> (Kernel, Gva, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("traced", code);
    let call = at.wrapping_add(if code.starts_with(&ENDBR64) { 4 } else { 0 });
    kernel.ftrace_calls(&[call]);
    (kernel.kernel(), at, call)
}
