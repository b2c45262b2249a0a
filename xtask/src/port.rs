//! Free ports for private servers.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

/// Below the range from which Linux (32768) and macOS (49152) take the local ports of outgoing
/// connections. Inside that range a client that retries while our server is down can be given the
/// very port it connects to, talks to itself and keeps the server from coming back.
const RANGE: std::ops::Range<u16> = 15_000..32_000;

/// A port of the loopback interface that nobody listens on right now. Somebody may take it before
/// the server does: who starts one tries again with another.
pub(crate) fn free() -> u16 {
    let span = u64::from(RANGE.end - RANGE.start);
    loop {
        // Every RandomState has other keys, so processes and threads spread over the range.
        let offset = RandomState::new().hash_one(std::process::id()) % span;
        let port = RANGE.start + u16::try_from(offset).expect("the span fits into 16 bits");
        if is_free(port) {
            return port;
        }
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::{RANGE, free, is_free};

    #[test]
    fn the_usual_ports_of_postgresql_redis_and_pgbouncer_are_never_taken() {
        for usual in [5432, 6379, 6432] {
            assert!(!RANGE.contains(&usual));
        }
    }

    #[test]
    fn a_port_in_use_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free())).unwrap();
        assert!(!is_free(listener.local_addr().unwrap().port()));
    }
}
