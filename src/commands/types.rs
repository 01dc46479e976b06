//! `hyprobe types`: shows a type of a kernel.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use control::api::{DeclaredType, ProblemKind};
use control::{Client, ClientError};
use inspect::types::{Declaration, DeclarationError};
use introspect::{Btf, BtfError};
use probes::{Kernel, KernelError};
use thiserror::Error;

use super::named_kernel::{NamedKernel, NamedKernelError};
use super::remote::{DumpFile, DumpViewError, RemoteError};
use crate::cli::TypesArgs;
use crate::exit::{Exit, Failure};
use crate::report::{Progress, printable};

/// Why no type can be shown.
#[derive(Debug, Error)]
pub(crate) enum TypesError {
    /// The kernel cannot be read.
    #[error(transparent)]
    Named(#[from] NamedKernelError),
    /// The contents of the kernel's file.
    #[error("cannot use {path}")]
    Contents {
        /// The kernel.
        path: PathBuf,
        /// The cause.
        source: KernelError,
    },
    /// The kernel has no types.
    #[error("{path} has no types")]
    NoTypes {
        /// The kernel.
        path: PathBuf,
        /// The cause.
        source: BtfError,
    },
    /// The kernel does not have the type.
    #[error(transparent)]
    Unknown(#[from] DeclarationError),
    /// The dump.
    #[error(transparent)]
    Dump(#[from] DumpViewError),
    /// The run.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// Standard output.
    #[error("cannot write to standard output")]
    Write(#[source] io::Error),
}

impl Failure for TypesError {
    fn exit(&self) -> Exit {
        match self {
            Self::Named(error) => error.exit(),
            // As for the kernel's file.
            Self::Remote(RemoteError::Client(ClientError::Refused(problem)))
                if problem.is(ProblemKind::CannotEvaluate) =>
            {
                Exit::ExpectationFailed
            }
            Self::Dump(error) => error.exit(),
            Self::Remote(error) => error.exit(),
            Self::Contents { .. } | Self::NoTypes { .. } => Exit::Usage,
            Self::Unknown(DeclarationError::Name { .. }) => Exit::Usage,
            Self::Unknown(DeclarationError::Unknown(_)) => Exit::ExpectationFailed,
            Self::Write(_) => Exit::HostCannot,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Unknown(DeclarationError::Unknown(error)) => error.help(),
            Self::Dump(error) => error.help(),
            Self::Remote(error) => error.help(),
            _ => None,
        }
    }
}

/// Prints the declaration of the type.
pub(crate) fn types(args: &TypesArgs) -> Result<Exit, TypesError> {
    let declared = declared(args)?;
    let mut out = io::stdout().lock();
    let printed = match args.json {
        true => json(&declared, &mut out),
        false => text(&declared.text, &mut out),
    };
    match printed {
        // The reader has closed the pipe: no more lines are wanted.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(TypesError::Write(error)),
        _ => Ok(Exit::Done),
    }
}

fn declared(args: &TypesArgs) -> Result<DeclaredType, TypesError> {
    let (file, image) = (args.kernel.as_deref(), args.image.as_deref());
    if let Some(path) = &args.dump {
        let dump = DumpFile::open(path)?;
        return find(dump.types(), &args.name, path);
    }
    if let (None, None, Some(socket)) = (file, image, &args.socket) {
        let client = Client::new(socket).map_err(RemoteError::from)?;
        return Ok(client.declared(&args.name).map_err(RemoteError::from)?);
    }
    let progress = Progress::on_stderr();
    let named = NamedKernel::read(file, image, &progress);
    progress.clear();
    let NamedKernel { path, vmlinux } = named?;
    let kernel = match Kernel::from_vmlinux(&*vmlinux) {
        Ok(kernel) => kernel,
        Err(source) => return Err(TypesError::Contents { path, source }),
    };
    find(kernel.types(), &args.name, &path)
}

/// The declaration of `name` among the types of the kernel in `path`.
fn find(
    types: Result<&Btf, &BtfError>,
    name: &str,
    path: &Path,
) -> Result<DeclaredType, TypesError> {
    match types {
        Ok(types) => Ok(Declaration::find(types, name)?.into()),
        Err(source) => Err(TypesError::NoTypes {
            path: path.to_owned(),
            source: source.clone(),
        }),
    }
}

fn json(declared: &DeclaredType, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, declared)?;
    writeln!(out)
}

/// Writes lines whose names are the guest's.
pub(super) fn text(text: &str, out: &mut impl Write) -> io::Result<()> {
    text.lines()
        .try_for_each(|line| writeln!(out, "{}", printable(line)))
}
