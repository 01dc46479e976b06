//! Control of a running machine: HTTP/1.1 and JSON on a Unix socket.
//!
//! ```text
//!  clients ── socket ── connections ── routes ──┬── reads: engine, memory, symbols
//!                     one thread, tokio         ├── changes ── queue ── operator: the one thread that pauses
//!                                               └── events ◀── ring ◀── vCPU threads, which never wait for it
//! ```
//!
//! - [`api`]: what goes through the socket; `docs/openapi.json` is [`openapi`]'s text of it.
//! - [`ControlSocket`]: the socket's file. [`Server`]: who serves it. [`Live`]: what is controlled.
//! - [`EventHub`]: the ring of events.
//! - [`Client`]: the other end, for the command line.
//! - [`mux`]: many connections through one stream, for nested runs.
//!
//! Whoever can connect is the same user or root; all the same, nothing that a client does may hang, slow or bloat the
//! machine: [`limits`].

#![forbid(unsafe_code)]

pub mod api;
mod client;
mod hub;
pub mod limits;
pub mod mux;
mod operator;
mod server;
mod socket;
mod target;

pub use client::{Client, ClientError, Events};
pub use hub::{EventHub, Tee};
pub use server::{Incoming, Server, openapi};
pub use socket::{ControlSocket, SocketError};
pub use target::{Facts, Live, Registration, Target};
