//! The application's own connections to the router's database.

use std::{str::FromStr, sync::Arc};

use sqlx::{
    PgPool, SqlitePool,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

use crate::store::{Options, Store, StoreError, postgres::Postgres, sqlite::Sqlite};

/// Connections for the application, apart from the router's own.
#[derive(Debug, Clone)]
pub(super) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// Opens a database for the router, and a pool on it for the application.
pub(super) async fn open(
    url: &str,
    options: &Options,
) -> Result<(Arc<dyn Store>, Pool), StoreError> {
    let wrong = |error: sqlx::Error| StoreError::Setting(format!("the database URL: {error}"));
    match url.split_once(':').map_or("", |(scheme, _)| scheme) {
        "postgres" | "postgresql" => {
            let store = Postgres::connect(url, options)?;
            let base = PgConnectOptions::from_str(url).map_err(wrong)?;
            let pool = PgPoolOptions::new()
                .max_connections(options.connections.max(2))
                .acquire_timeout(options.patience)
                .connect_lazy_with(base);
            Ok((Arc::new(store), Pool::Postgres(pool)))
        }
        "sqlite" => {
            let store = Sqlite::connect(url, options).await?;
            let pool = if let Some(pool) = store.memory() {
                pool
            } else {
                let base = SqliteConnectOptions::from_str(url).map_err(wrong)?;
                SqlitePoolOptions::new()
                    .max_connections(options.connections.max(2))
                    .acquire_timeout(options.patience)
                    .connect_lazy_with(base.busy_timeout(options.patience))
            };
            Ok((Arc::new(store), Pool::Sqlite(pool)))
        }
        _ => Err(StoreError::Setting(
            "the database URL begins with neither `postgres:` nor `sqlite:`".into(),
        )),
    }
}
