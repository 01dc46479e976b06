//! Control of a running machine: HTTP/1.1 and JSON on a Unix socket.
//!
//! ```text
//!  clients ── socket ── connections ── routes ──┬── reads: engine, memory, symbols
//!                     one thread, tokio         ├── changes ── queue ── operator: the one thread that pauses
//!                                               └── events ◀── ring ◀── vCPU threads, which never wait for it
//! ```
//!
//! - [`api`]: the types of requests and answers; `docs/openapi.json` is a copy of the description from [`openapi`].
//! - [`ControlSocket`]: the socket's file. [`Server`]: the service for clients. [`Live`]: the controlled machine.
//! - [`EventHub`]: the ring of events.
//! - [`Client`]: the other end, for the command line.
//! - [`mux`]: many connections through one stream, for nested runs.
//!
//! Only clients of the same user or of root are served. Even so, no action of a client may hang, slow or bloat the machine: [`limits`].

#![forbid(unsafe_code)]

pub mod api;
mod client;
mod dumped;
mod hub;
pub mod limits;
pub mod mux;
mod operator;
mod server;
mod socket;
mod target;
mod target_memory;

pub use client::{Client, ClientError, DumpStream, Events};
pub use dumped::{DumpEndedError, dump_ended};
pub use hub::{EventHub, Tee};
pub use inspect::stacks::StacksOf;
pub use server::{Incoming, Server, openapi};
pub use socket::{ControlSocket, SocketError};
pub use target::{Facts, Live, Registration, Target};
pub use target_memory::TargetMemory;
