//! The program as people run it, against real servers.

mod arguments;
mod dead;
mod doctor;
mod doctor_held;
mod doctor_schema;
mod metrics;
mod migrate;
mod ops;
mod program;
mod relay;
mod repair;
mod status;
mod tail;
mod tls;
mod tls_redis;
