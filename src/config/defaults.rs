//! What holds when nothing is said.

use std::net::{Ipv4Addr, SocketAddr};

use super::{Database, DatabaseUrl, Events, Log, LogFormat, Router, Sandbox, Server, Wake};
use crate::{
    model::units::{Bytes, Span},
    sandbox, store,
};

impl Default for Database {
    fn default() -> Self {
        let store = store::Options::default();
        Self {
            url: DatabaseUrl::from("sqlite:outrigger.db"),
            table_prefix: store.prefix,
            lanes: 16,
            connections: 10,
            patience: Span::from_secs(10),
            wake: Wake::Notify,
        }
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            admin_key: None,
            body_max: Bytes::mib(8),
        }
    }
}

impl Default for Events {
    fn default() -> Self {
        Self {
            payload_max: Bytes::mib(1),
            hops_max: 64,
            retention: Span::from_secs(7 * 86_400),
            archive: None,
        }
    }
}

impl Default for Router {
    fn default() -> Self {
        Self {
            poll_interval: Span::from_secs(1),
            batch_size: 500,
            lease: Span::from_secs(60),
            concurrency: 64,
            deaths_max: 3,
            grace: Span::from_secs(20),
            projects: None,
        }
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        let own = sandbox::Settings::default();
        Self {
            slots: own.slots,
            deadline_max: own.deadline_max,
            cpu_max: own.cpu_max,
            memory_max: own.memory_max,
            memory_total: own.memory_total,
            table_elements: own.table_elements,
            instances: own.instances,
            stack_max: own.stack_max,
            component_max: own.component_max,
            log_bytes: own.log_bytes,
            log_line_bytes: own.log_line_bytes,
            emit_count: own.emit_count,
            emit_bytes: own.emit_bytes,
            state_value_bytes: own.state_value_bytes,
            state_keys: own.state_keys,
            state_bytes: own.state_bytes,
            requests: own.requests,
            request_bytes: own.request_bytes,
            response_bytes: own.response_bytes,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { filter: "info,sqlx=warn,wasmtime_wasi_http=error".into(), format: LogFormat::Text }
    }
}
