# Shared by the scripts: what a machine needs, and how to get it.
# Sourced, not run; expects `set -euo pipefail` and the repository's root as $root.

say() { printf '\033[1m%s\033[0m\n' "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }

# apt_install PACKAGE...: installs on Debian as root, and says what to do elsewhere.
apt_install() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $*"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$@"; } >/dev/null ||
            fail "apt-get could not install: $*"
    else
        fail "missing: $*. Install it with your package manager (Debian: sudo apt-get install $*)."
    fi
}

need_rust() {
    command -v cargo >/dev/null ||
        fail "missing: Rust. Install it from https://rustup.rs, then run this again."
    command -v cc >/dev/null || apt_install gcc libc6-dev
    local sysroot
    sysroot=$(cd "$root" && rustc --print sysroot) || fail "rustc does not run; see above."
    if [ ! -d "$sysroot/lib/rustlib/wasm32-wasip2" ]; then
        command -v rustup >/dev/null ||
            fail "missing: the Rust target wasm32-wasip2. Install it beside your toolchain."
        (cd "$root" && rustup target add wasm32-wasip2) ||
            fail "rustup could not add the target wasm32-wasip2."
    fi
}

need_python() {
    command -v python3 >/dev/null || apt_install python3
    python3 -c 'import sqlite3' 2>/dev/null || fail "missing: Python's sqlite3 module."
}

# What limits files of a running process.
need_prlimit() {
    command -v prlimit >/dev/null || apt_install util-linux
}

# Sets $pg_bin to the folder of a PostgreSQL server's programs, 14 or later.
need_postgres() {
    find_postgres || { apt_install postgresql; find_postgres; } ||
        fail "missing: a PostgreSQL server, version 14 or later (initdb and postgres)."
}

find_postgres() {
    local candidate
    for candidate in "${PG_BIN:-}" $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -rV) \
        "$(dirname "$(command -v initdb 2>/dev/null || echo /nowhere/initdb)")"; do
        if [ -n "$candidate" ] && [ -x "$candidate/initdb" ] && [ -x "$candidate/postgres" ]; then
            pg_bin=$candidate
            return 0
        fi
    done
    return 1
}

# The server refuses to run as root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        (cd / && runuser -u postgres -- "$@")
    else
        "$@"
    fi
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# start_postgres [SETTING...]: a cluster of its own in a new folder $pg_dir, on
# a free port $pg_port; $pg_url names it. stop_postgres ends and deletes it.
start_postgres() {
    pg_dir=$(mktemp -d)
    [ "$(id -u)" = 0 ] && chown postgres "$pg_dir"
    pg_port=$(free_port)
    as_postgres "$pg_bin/initdb" -D "$pg_dir/data" -A trust -U postgres --no-sync \
        >"$pg_dir.log" 2>&1 || { cat "$pg_dir.log" >&2; fail "initdb failed; see above."; }
    local options="-p $pg_port -k $pg_dir -c listen_addresses=127.0.0.1 -c max_connections=200" setting
    for setting in "$@"; do options="$options -c $setting"; done
    as_postgres "$pg_bin/pg_ctl" -D "$pg_dir/data" -o "$options" -l "$pg_dir/server.log" \
        -w -t 60 start >>"$pg_dir.log" 2>&1 ||
        { cat "$pg_dir/server.log" >&2; fail "PostgreSQL did not start; see above."; }
    pg_url="postgres://postgres@127.0.0.1:$pg_port/postgres"
}

stop_postgres() {
    [ -n "${pg_dir:-}" ] || return 0
    as_postgres "$pg_bin/pg_ctl" -D "$pg_dir/data" -m immediate stop >/dev/null 2>&1 || true
    rm -rf "$pg_dir" "$pg_dir.log"
    pg_dir=
}

# The example plugins and the test guests, as components in $wasm.
build_plugins() {
    wasm=$root/target/plugins/wasm32-wasip2/release
    (cd "$root" && cargo build --locked --release --target wasm32-wasip2 \
        --manifest-path plugins/Cargo.toml --target-dir target/plugins)
}
